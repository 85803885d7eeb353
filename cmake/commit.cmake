# cmake -D SOURCE_DIR=… -D HEADER=… -P commit.cmake: defines LYNX_COMMIT in the header, which is left alone when it says
# so already.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define LYNX_COMMIT \"@commit@\"\n" @ONLY)
