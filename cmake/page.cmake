# The page at / of the HTTP front becomes part of the program.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/front/page.html)
file(READ ${CMAKE_SOURCE_DIR}/src/front/page.html LYNX_PAGE)
configure_file(${CMAKE_CURRENT_LIST_DIR}/page.cc.in ${CMAKE_BINARY_DIR}/page.cc @ONLY)
target_sources(lynx_front PRIVATE ${CMAKE_BINARY_DIR}/page.cc)
