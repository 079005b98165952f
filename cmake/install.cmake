# find_package(bpsclient) -> bps::client, and pkg-config bpsclient. Both find the prefix from where
# they lie, so an installed tree can be moved.
get_property(_client GLOBAL PROPERTY bps_client_target)
if(_client)
  include(CMakePackageConfigHelpers)
  set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/bpsclient")
  install(EXPORT bpsclient NAMESPACE bps:: DESTINATION "${_package_dir}" FILE bpsclientTargets.cmake
          COMPONENT client)
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/bpsclientConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/package/bpsclientConfig.cmake" INSTALL_DESTINATION "${_package_dir}")
  # Before 1.0 a minor version may change the API.
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/bpsclientConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/package/bpsclientConfig.cmake"
                "${PROJECT_BINARY_DIR}/package/bpsclientConfigVersion.cmake"
          DESTINATION "${_package_dir}" COMPONENT client)

  file(RELATIVE_PATH _pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" _pc_prefix "${_pc_prefix}")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/bpsclient.pc.in" "${PROJECT_BINARY_DIR}/package/bpsclient.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/package/bpsclient.pc"
          DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT client)
endif()
