# The CUDA kernels: lynx_cuda, and codec_gpu_test (label gpu), which skips its tests without a GPU. Nothing else needs
# them.
if(NOT LYNX_CUDA)
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(NOT LYNX_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "LYNX_CUDA is on and there is no nvcc: set CUDACXX, or LYNX_CUDA to OFF")
  endif()
  return()
endif()
# Ampere and Hopper; the driver compiles the latter's PTX for what comes after it.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# As on the CPU: every operation IEEE, none contracted. One-element definitions are constexpr functions.
# Warning 554: conversions of a page to itself, which C++ never calls.
set(LYNX_CUDA_OPTIONS --expt-relaxed-constexpr -fmad=false -ftz=false -prec-div=true -diag-suppress=554)
if(LYNX_WERROR)
  list(APPEND LYNX_CUDA_OPTIONS -Werror=all-warnings)
endif()

add_library(lynx_cuda OBJECT src/codec/codec_cuda.cu)
target_include_directories(lynx_cuda PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_compile_options(lynx_cuda PRIVATE ${LYNX_CUDA_OPTIONS} -Xcompiler=-Wall,-Wextra,-Wshadow)
target_link_libraries(lynx_cuda PUBLIC CUDA::cudart_static)

if(LYNX_TESTS)
  add_executable(codec_gpu_test src/codec/codec_gpu_test.cc)
  target_compile_options(codec_gpu_test PRIVATE ${LYNX_WARNINGS})
  target_link_libraries(codec_gpu_test PRIVATE lynx_cuda lynx_codec lynx_base GTest::gtest GTest::gtest_main)
  set_target_properties(codec_gpu_test PROPERTIES LINKER_LANGUAGE CXX)
  add_test(NAME codec_gpu_test COMMAND codec_gpu_test)
  set_tests_properties(codec_gpu_test PROPERTIES LABELS gpu TIMEOUT 900 SKIP_REGULAR_EXPRESSION "no GPU")
endif()
