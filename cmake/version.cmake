# Lynx's release and commit for src/base/version.cc. The commit is asked for at every build; only version.cc is
# compiled again when it has changed.
set(LYNX_COMMIT_HEADER ${CMAKE_BINARY_DIR}/generated/lynx_commit.h)
add_custom_target(lynx_commit
  COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${CMAKE_SOURCE_DIR} -D HEADER=${LYNX_COMMIT_HEADER}
          -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake
  BYPRODUCTS ${LYNX_COMMIT_HEADER}
  COMMENT "Asking git for the commit")
add_dependencies(lynx_base lynx_commit)
set_source_files_properties(src/base/version.cc PROPERTIES
  COMPILE_DEFINITIONS LYNX_VERSION="${PROJECT_VERSION}"
  COMPILE_OPTIONS "-include;${LYNX_COMMIT_HEADER}")
