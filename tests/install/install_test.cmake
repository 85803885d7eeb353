# Installs the build into a fresh prefix, then builds and runs a consumer that knows nothing but the prefix.
# cmake -D BUILD_DIR=… -D BUILD_TYPE=… -D CXX_FLAGS=… -D CXX_COMPILER=… -P install_test.cmake
set(folder ${BUILD_DIR}/install_test)
file(REMOVE_RECURSE ${folder})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed: ${command}\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${folder}/prefix)
# What Lynx itself is built with must not be needed to use it.
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${folder}/build -G Ninja
  -DCMAKE_PREFIX_PATH=${folder}/prefix -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_CXX_FLAGS=${CXX_FLAGS}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON
  -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DCMAKE_DISABLE_FIND_PACKAGE_llama=ON)
run(${CMAKE_COMMAND} --build ${folder}/build)
run(${folder}/build/consumer)
run(${folder}/prefix/bin/lynx --version)
