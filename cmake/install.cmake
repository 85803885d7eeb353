include(CMakePackageConfigHelpers)

install(TARGETS lynx EXPORT lynx-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/lynx DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT lynx-targets NAMESPACE lynx:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lynx)
configure_package_config_file(cmake/lynx-config.cmake.in lynx-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lynx)
write_basic_package_version_file(lynx-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lynx-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/lynx-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lynx)
install(TARGETS lynx_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
