# Third-party libraries as INTERFACE targets with SYSTEM headers. libbpsclient carries what it needs
# inside and shows none of it, so here stands the header-only or static form of each.
set(_bps_hint "run `bash cmake/setup.sh`, which installs what is missing")

function(_bps_need variable package)
  if(NOT ${variable})
    message(FATAL_ERROR "${package} is missing: ${_bps_hint}")
  endif()
endfunction()

# Asio and Beast. 1.81, not Debian's default 1.74.
find_package(Boost 1.81 QUIET)
_bps_need(Boost_FOUND libboost1.81-dev)
add_library(bps_asio INTERFACE)
target_include_directories(bps_asio SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
target_compile_definitions(bps_asio INTERFACE BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(bps_asio INTERFACE Threads::Threads)

# Debian has fmt and spdlog only as shared libraries, and header-only fmt costs seconds in every file that
# includes it. So proto/base/fmt_library.cc compiles fmt once into bps_base; spdlog is used by one file.
find_path(BPS_FMT_INCLUDE fmt/format-inl.h)
_bps_need(BPS_FMT_INCLUDE libfmt-dev)
add_library(bps_fmt INTERFACE)
target_include_directories(bps_fmt SYSTEM INTERFACE ${BPS_FMT_INCLUDE})

find_path(BPS_SPDLOG_INCLUDE spdlog/spdlog.h)
_bps_need(BPS_SPDLOG_INCLUDE libspdlog-dev)
add_library(bps_spdlog INTERFACE)
target_include_directories(bps_spdlog SYSTEM INTERFACE ${BPS_SPDLOG_INCLUDE})
target_compile_definitions(bps_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(bps_spdlog INTERFACE bps_fmt)

find_package(CLI11 QUIET CONFIG)
_bps_need(CLI11_FOUND libcli11-dev)
add_library(bps_cli11 INTERFACE)
target_link_libraries(bps_cli11 INTERFACE CLI11::CLI11)

find_package(nlohmann_json QUIET CONFIG)
_bps_need(nlohmann_json_FOUND nlohmann-json3-dev)
add_library(bps_json INTERFACE)
target_link_libraries(bps_json INTERFACE nlohmann_json::nlohmann_json)

find_path(BPS_TOMLPLUSPLUS_INCLUDE toml++/toml.h)
_bps_need(BPS_TOMLPLUSPLUS_INCLUDE libtomlplusplus-dev)
add_library(bps_toml INTERFACE)
target_include_directories(bps_toml SYSTEM INTERFACE ${BPS_TOMLPLUSPLUS_INCLUDE})

find_path(BPS_FLATBUFFERS_INCLUDE flatbuffers/flatbuffers.h)
_bps_need(BPS_FLATBUFFERS_INCLUDE libflatbuffers-dev)
find_program(BPS_FLATC flatc)
_bps_need(BPS_FLATC flatbuffers-compiler)
add_library(bps_flatbuffers_headers INTERFACE)
target_include_directories(bps_flatbuffers_headers SYSTEM INTERFACE ${BPS_FLATBUFFERS_INCLUDE})

# Headers only: proto/reduce/highway_runtime.cc stands in for Debian's libhwy, which is shared only.
find_path(BPS_HWY_INCLUDE hwy/highway.h)
_bps_need(BPS_HWY_INCLUDE libhwy-dev)
add_library(bps_highway INTERFACE)
target_include_directories(bps_highway SYSTEM INTERFACE ${BPS_HWY_INCLUDE})

find_path(BPS_OPENSSL_INCLUDE openssl/hmac.h)
_bps_need(BPS_OPENSSL_INCLUDE libssl-dev)
find_library(BPS_CRYPTO_LIBRARY NAMES libcrypto.a)
_bps_need(BPS_CRYPTO_LIBRARY libssl-dev)

find_library(BPS_SSL_LIBRARY NAMES libssl.a)
_bps_need(BPS_SSL_LIBRARY libssl-dev)
# As targets, not paths, so that libssl stands before libcrypto, which it needs, on every command line.
add_library(bps_libcrypto STATIC IMPORTED)
set_target_properties(bps_libcrypto PROPERTIES IMPORTED_LOCATION ${BPS_CRYPTO_LIBRARY})
target_link_libraries(bps_libcrypto INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
add_library(bps_libssl STATIC IMPORTED)
set_target_properties(bps_libssl PROPERTIES IMPORTED_LOCATION ${BPS_SSL_LIBRARY})
target_link_libraries(bps_libssl INTERFACE bps_libcrypto)
add_library(bps_crypto INTERFACE)
target_include_directories(bps_crypto SYSTEM INTERFACE ${BPS_OPENSSL_INCLUDE})
target_link_libraries(bps_crypto INTERFACE bps_libcrypto)
add_library(bps_ssl INTERFACE)
target_link_libraries(bps_ssl INTERFACE bps_libssl bps_crypto)

if(BPS_TESTS)
  find_path(BPS_CATCH_INCLUDE catch2/catch.hpp)
  _bps_need(BPS_CATCH_INCLUDE catch2)
  add_library(bps_catch INTERFACE)
  target_include_directories(bps_catch SYSTEM INTERFACE ${BPS_CATCH_INCLUDE})
endif()

if(BPS_BENCH)
  find_package(benchmark QUIET CONFIG)
  _bps_need(benchmark_FOUND libbenchmark-dev)
  add_library(bps_benchmark INTERFACE)
  target_link_libraries(bps_benchmark INTERFACE benchmark::benchmark)
endif()

# RDMA. Only headers: the libraries are opened when a program that uses them runs.
find_path(BPS_VERBS_INCLUDE infiniband/verbs.h)
find_path(BPS_RDMACM_INCLUDE rdma/rdma_cma.h)
mark_as_advanced(BPS_VERBS_INCLUDE BPS_RDMACM_INCLUDE)
if(BPS_VERBS_INCLUDE AND BPS_RDMACM_INCLUDE)
  add_library(bps_verbs INTERFACE)
  target_include_directories(bps_verbs SYSTEM INTERFACE ${BPS_VERBS_INCLUDE} ${BPS_RDMACM_INCLUDE})
  target_link_libraries(bps_verbs INTERFACE ${CMAKE_DL_LIBS})
endif()

# CUDA and NCCL. Both are opened when a program runs, by functions that are declared here; where the headers are found,
# too, those declarations are compared with them. NVIDIA's header of NCCL includes one of the CUDA runtime.
find_package(CUDAToolkit QUIET)
find_path(BPS_CUDA_INCLUDE cuda.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(BPS_NCCL_INCLUDE nccl.h)
mark_as_advanced(BPS_CUDA_INCLUDE BPS_NCCL_INCLUDE)
