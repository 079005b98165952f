# Language, build type, warnings, sanitizers. Everything is on targets (bps_options, bps_warnings,
# bps_sanitizers); a project that includes this one inherits nothing.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
# -g1 keeps line numbers in backtraces at a fraction of the link time and disk of -g.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

# Paths that a compiler is told are made relative for the cache, so that every clone on a machine shares it; what is
# written for debuggers and messages is then relative to the source, too.
find_program(BPS_CCACHE ccache)
if(BPS_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${BPS_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

# What each compiler run takes, for tests/compile_report.py.
set(BPS_COMPILE_LOG "" CACHE FILEPATH "Where each compiler run appends its CPU seconds and memory; empty: nowhere")
if(BPS_COMPILE_LOG)
  foreach(language C CXX)
    list(PREPEND CMAKE_${language}_COMPILER_LAUNCHER
      /usr/bin/python3 "${PROJECT_SOURCE_DIR}/cmake/timed_compiler.py" "${BPS_COMPILE_LOG}")
  endforeach()
endif()

# -DCMAKE_UNITY_BUILD=ON compiles this many files of a target as one, in half of the time. demo.sh and tests/run.sh ask
# for it; without it a change compiles only the files that see it.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)

find_package(Threads REQUIRED)

add_library(bps_options INTERFACE)
target_compile_features(bps_options INTERFACE cxx_std_20)
target_include_directories(bps_options INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
# Sums must have the same bits on every CPU: never fuse a multiply and an add.
target_compile_options(bps_options INTERFACE -ffp-contract=off "-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.")
target_compile_definitions(bps_options INTERFACE "BPS_VERSION=\"${PROJECT_VERSION}\"")
target_link_libraries(bps_options INTERFACE Threads::Threads)

add_library(bps_warnings INTERFACE)
target_compile_options(bps_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Werror
  # Members that a designated initializer leaves out have their own defaults.
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
  # GCC 12 warns falsely about std::string concatenation (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>>:-Wno-restrict>
  # In a unity build a source file is not the main file; the build without checks the headers.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>)

add_library(bps_sanitizers INTERFACE)
if(BPS_SANITIZE STREQUAL "address")
  set(flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(BPS_SANITIZE STREQUAL "thread")
  set(flags -fsanitize=thread -fno-omit-frame-pointer)
elseif(BPS_SANITIZE)
  message(FATAL_ERROR "BPS_SANITIZE=${BPS_SANITIZE}: use address, thread or nothing")
endif()
if(BPS_SANITIZE)
  target_compile_options(bps_sanitizers INTERFACE ${flags})
  target_link_options(bps_sanitizers INTERFACE ${flags})
  # The thread sanitizer of GCC 12 cannot live with more than 28 bits of address randomisation.
  if(BPS_SANITIZE STREQUAL "thread")
    find_program(BPS_SETARCH setarch)
    execute_process(COMMAND "${BPS_SETARCH}" -R true RESULT_VARIABLE refused ERROR_QUIET)
    if(refused EQUAL 0)
      set(BPS_TEST_LAUNCHER "${BPS_SETARCH};-R")
    endif()
  endif()
  if(BPS_FUZZ)
    if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      message(FATAL_ERROR "BPS_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang")
    endif()
    # Counts what an input reaches; the fuzzers themselves bring the engine (tests/fuzz/CMakeLists.txt).
    target_compile_options(bps_sanitizers INTERFACE -fsanitize=fuzzer-no-link)
  endif()
  # Instrumentation hides initialisations from GCC's flow analysis.
  target_compile_options(bps_sanitizers INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
