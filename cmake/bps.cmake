# What every folder uses: compiler settings, third-party libraries, and the helpers
# bps_library, bps_program, bps_test, bps_command_test, bps_folder, bps_flatbuffers, bps_client_library,
# bps_next_version.
include_guard(GLOBAL)
include(GNUInstallDirs)
include(settings)
include(third_party)

# bps_library(name [SOURCES ...] [DEPS ...] [PRIVATE_DEPS ...])
# Static, position independent, so that it can end up in a program and in libbpsclient alike.
# Without sources it is an INTERFACE library that only passes DEPS on.
function(bps_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS;PRIVATE_DEPS")
  _bps_reject_unknown(bps_library ${name} "${arg_UNPARSED_ARGUMENTS}")
  if(NOT arg_SOURCES)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE bps_options ${arg_DEPS})
    return()
  endif()
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC bps_options bps_sanitizers ${arg_DEPS}
                                PRIVATE bps_warnings ${arg_PRIVATE_DEPS})
endfunction()

# bps_program(name SOURCES ... [DEPS ...] [NO_INSTALL])
# Lands in <build>/bin and is installed to bin, side by side in both, so that programs find each
# other. With NO_INSTALL (a tool for tests) it stays in the folder's own build directory.
function(bps_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_INSTALL" "" "SOURCES;DEPS")
  _bps_reject_unknown(bps_program ${name} "${arg_UNPARSED_ARGUMENTS}")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE bps_options bps_sanitizers bps_warnings ${arg_DEPS})
  if(NOT arg_NO_INSTALL)
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin"
      INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
endfunction()

# bps_test(name SOURCES ... [DEPS ...] [LABELS ...] [TIMEOUT seconds] [ARGS ...] [ENVIRONMENT ...]
#          [DEPENDS programs it starts ...] [SKIP_RETURN_CODE code that says: not here])
# One Catch2 executable with the shared main, one ctest entry of the same name. TIMEOUT is for what hangs: ten times
# what a test takes alone, and more, because other programs keep the machine busy. LABELS say the tier:
# unit (default), sim, conformance, fuzz, process, install, lint; `long` keeps it out of --quick.
function(bps_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;SKIP_RETURN_CODE"
    "SOURCES;DEPS;LABELS;ARGS;ENVIRONMENT;DEPENDS")
  _bps_reject_unknown(bps_test ${name} "${arg_UNPARSED_ARGUMENTS}")
  if(NOT BPS_TESTS)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE bps_options bps_sanitizers bps_warnings bps_test_main ${arg_DEPS})
  # What a test checks is optimised fully; its own code spends longer in the compiler than it would save.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  if(BPS_TEST_LAUNCHER)
    set_target_properties(${name} PROPERTIES CROSSCOMPILING_EMULATOR "${BPS_TEST_LAUNCHER}")
  endif()
  bps_command_test(${name} COMMAND ${name} ${arg_ARGS} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT}
                   ENVIRONMENT ${arg_ENVIRONMENT} DEPENDS ${name} ${arg_DEPENDS}
                   SKIP_RETURN_CODE ${arg_SKIP_RETURN_CODE})
endfunction()

# bps_command_test(name COMMAND ... [LABELS ...] [TIMEOUT seconds] [ENVIRONMENT ...] [DEPENDS targets ...]
#                  [RUN_SERIAL] [SKIP_RETURN_CODE code])
# Any other command as a ctest entry: a script, or a program of ours with arguments. A sanitizer build
# registers only the tiers that tests/run.sh runs there, as name.address or name.thread, and its target
# bps_tests builds what those need.
function(bps_command_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "RUN_SERIAL" "TIMEOUT;SKIP_RETURN_CODE"
    "COMMAND;LABELS;ENVIRONMENT;DEPENDS")
  _bps_reject_unknown(bps_command_test ${name} "${arg_UNPARSED_ARGUMENTS}")
  if(NOT BPS_TESTS)
    return()
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set(test ${name})
  if(BPS_SANITIZE)
    set(tiers ${arg_LABELS})
    set(wanted unit sim conformance)
    if(BPS_SANITIZE STREQUAL "address")
      list(APPEND wanted fuzz)
    endif()
    list(JOIN wanted "|" wanted)
    list(FILTER tiers INCLUDE REGEX "^(${wanted})$")
    if(NOT tiers)
      return()
    endif()
    set(test ${name}.${BPS_SANITIZE})
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  add_test(NAME ${test} COMMAND ${arg_COMMAND})
  set_tests_properties(${test} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
                                          ENVIRONMENT "${arg_ENVIRONMENT}")
  if(arg_SKIP_RETURN_CODE)
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE ${arg_SKIP_RETURN_CODE})
  endif()
  if(arg_RUN_SERIAL)
    set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
  endif()
  if(NOT TARGET bps_tests)
    add_custom_target(bps_tests)
  endif()
  if(arg_DEPENDS)
    add_dependencies(bps_tests ${arg_DEPENDS})
  endif()
endfunction()

# bps_folder(name [DIRS dir ...] [EXCLUDE regex ...] [DEPS ...] [PRIVATE_DEPS ...]
#            [SOURCES ...] [TEST test_name] [TEST_DEPS ...] [LABELS ...] [TIMEOUT seconds])
# The library `name` of all *.cc in DIRS (default: this folder, not below) and, with TEST, one
# executable of all *_test.cc there. main.cc and whatever matches EXCLUDE are left out.
function(bps_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TEST;TIMEOUT" "DIRS;EXCLUDE;DEPS;PRIVATE_DEPS;SOURCES;TEST_DEPS;LABELS")
  _bps_reject_unknown(bps_folder ${name} "${arg_UNPARSED_ARGUMENTS}")
  if(NOT arg_DIRS)
    set(arg_DIRS ".")
  endif()
  set(sources ${arg_SOURCES})
  set(tests "")
  foreach(dir IN LISTS arg_DIRS)
    cmake_path(ABSOLUTE_PATH dir NORMALIZE)
    file(GLOB found CONFIGURE_DEPENDS "${dir}/*.cc")
    foreach(pattern IN LISTS arg_EXCLUDE)
      list(FILTER found EXCLUDE REGEX "${pattern}")
    endforeach()
    list(FILTER found EXCLUDE REGEX "/main\\.cc$")
    set(found_tests ${found})
    list(FILTER found_tests INCLUDE REGEX "_test\\.cc$")
    list(FILTER found EXCLUDE REGEX "_test\\.cc$")
    list(APPEND sources ${found})
    list(APPEND tests ${found_tests})
  endforeach()
  bps_library(${name} SOURCES ${sources} DEPS ${arg_DEPS} PRIVATE_DEPS ${arg_PRIVATE_DEPS})
  if(arg_TEST AND tests)
    bps_test(${arg_TEST} SOURCES ${tests} DEPS ${name} ${arg_TEST_DEPS} LABELS ${arg_LABELS}
             TIMEOUT ${arg_TIMEOUT})
  endif()
endfunction()

# bps_flatbuffers(library schema.fbs ...)
# Generates x_generated.h from each x.fbs. Only `library` sees the folder they are in.
function(bps_flatbuffers library)
  set(out "${CMAKE_CURRENT_BINARY_DIR}/generated/${library}")
  set(headers "")
  foreach(schema IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH schema NORMALIZE)
    cmake_path(GET schema STEM LAST_ONLY stem)
    set(header "${out}/${stem}_generated.h")
    add_custom_command(
      OUTPUT "${header}"
      COMMAND "${BPS_FLATC}" --cpp --cpp-std c++17 --scoped-enums -o "${out}" "${schema}"
      DEPENDS "${schema}" ${ARGN}
      COMMENT "flatc ${stem}.fbs"
      VERBATIM)
    list(APPEND headers "${header}")
  endforeach()
  get_target_property(type ${library} TYPE)
  if(headers AND NOT type STREQUAL "INTERFACE_LIBRARY")
    target_sources(${library} PRIVATE ${headers})
    target_include_directories(${library} SYSTEM PRIVATE "${out}")
  endif()
endfunction()

# bps_client_library(name SOURCES ... [DEPS ...])
# The shared library that users link: libbpsclient.so.0. Everything else is linked in and hidden;
# the version script lets only bps_* out. Public headers lie in <current folder>/include.
function(bps_client_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  _bps_reject_unknown(bps_client_library ${name} "${arg_UNPARSED_ARGUMENTS}")
  set(map "${PROJECT_SOURCE_DIR}/cmake/bpsclient.map")
  add_library(${name} SHARED ${arg_SOURCES})
  add_library(bps::client ALIAS ${name})
  target_link_libraries(${name} PRIVATE bps_options bps_sanitizers bps_warnings ${arg_DEPS})
  target_include_directories(${name} PUBLIC
    "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_options(${name} PRIVATE "LINKER:--version-script=${map}" "LINKER:--exclude-libs,ALL")
  if(NOT BPS_SANITIZE)
    target_link_options(${name} PRIVATE "LINKER:-z,defs")
  endif()
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME bpsclient
    EXPORT_NAME client
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS "${map}"
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  install(TARGETS ${name} EXPORT bpsclient
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)
  install(DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/include/bps" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT client FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
  set_property(GLOBAL PROPERTY bps_client_target ${name})
endfunction()

# bps_next_version(target)
# `target`_next: the objects of a program, a test or a shared library, linked a second time as one that speaks the next
# version of the protocol (proto/wire/version.h). Programs and libraries keep their names, in <build>/next.
function(bps_next_version target)
  if(NOT TARGET bps_version_next)
    add_library(bps_version_next OBJECT "${PROJECT_SOURCE_DIR}/proto/wire/version.cc")
    target_link_libraries(bps_version_next PRIVATE bps_options bps_sanitizers bps_warnings)
    target_compile_definitions(bps_version_next PRIVATE BPS_NEXT_VERSION)
  endif()
  set(next ${target}_next)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "SHARED_LIBRARY")
    add_library(${next} SHARED $<TARGET_OBJECTS:${target}>)
  else()
    add_executable(${next} $<TARGET_OBJECTS:${target}>)
  endif()
  foreach(property LINK_LIBRARIES LINK_OPTIONS LINK_DEPENDS OUTPUT_NAME VERSION SOVERSION)
    get_target_property(value ${target} ${property})
    if(NOT value MATCHES "-NOTFOUND$")  # SOVERSION may be 0
      set_target_properties(${next} PROPERTIES ${property} "${value}")
    elseif(property STREQUAL "OUTPUT_NAME")
      set_target_properties(${next} PROPERTIES OUTPUT_NAME ${target})
    endif()
  endforeach()
  # Its object is linked before the libraries, so theirs is not.
  target_link_libraries(${next} PRIVATE bps_version_next)
  set_target_properties(${next} PROPERTIES
    LINKER_LANGUAGE CXX
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/next"
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/next")
endfunction()

function(_bps_reject_unknown function name unknown)
  if(unknown)
    message(FATAL_ERROR "${function}(${name}): unknown arguments: ${unknown}")
  endif()
endfunction()
