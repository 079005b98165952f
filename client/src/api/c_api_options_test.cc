// bps_options: what a program sets, by field and by name, and what bps_open makes of it.
#include <arpa/inet.h>
#include <bps/bps.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <type_traits>

#include "client/src/api/testing/c_api_harness.h"

namespace bps::c_api_options_test {

using Catch::Contains;
using namespace bps::testing;

static_assert(std::is_trivially_copyable_v<bps_options>);

std::int64_t operation_timeout_of(const bps_options& options) {
  const OpenClient client(options);
  bps_client_info info{};
  info.struct_size = sizeof info;
  REQUIRE(bps_get_client_info(client, &info) == BPS_OK);
  return info.operation_timeout_ms;
}

TEST_CASE("c api: options that are not set") {
  bps_options options;
  std::memset(&options, 0x5a, sizeof options);
  bps_options_init(&options, sizeof options);
  CHECK(options.rank == -1);
  CHECK(options.operation_timeout_ms == -1);
  CHECK(options.scheduler == nullptr);
  CHECK(options.settings[0] == '\0');
  // A program built with an older header has a shorter struct; what lies behind it stays untouched.
  bps_options old;
  std::memset(&old, 0x5a, sizeof old);
  bps_options_init(&old, offsetof(bps_options, log));
  CHECK(old.struct_size == offsetof(bps_options, log));
  CHECK(old.operation_timeout_ms == -1);
  CHECK(reinterpret_cast<std::uintptr_t>(old.log_user) == 0x5a5a5a5a5a5a5a5a);
}

TEST_CASE("c api: a setting is set by its name, the later call counts, and it beats the field") {
  bps_options options = embedded_options();
  options.operation_timeout_ms = 1000;
  CHECK(operation_timeout_of(options) == 1000);
  set(options, "operation-timeout", "2s");
  set(options, "local-group-id", "a = b");  // what lies between name and value
  set(options, "retain", "false");
  CHECK(operation_timeout_of(options) == 2000);
  set(options, "operation-timeout", "3s");
  const bps_options copy = options;
  std::memset(&options, 0, sizeof options);
  CHECK(operation_timeout_of(copy) == 3000);
  CHECK(std::string(copy.settings) == "local-group-id = a = b\noperation-timeout = 3s\nretain = false\n");
}

TEST_CASE("c api: a name or value that does not exist is refused at once, and changes nothing") {
  bps_options options = embedded_options();
  set(options, "rdma-tclass", "104");
  const std::string before = options.settings;
  Refusal why;
  CHECK(bps_options_set(&options, "rdma_tclass", "8", why) == BPS_INVALID_ARGUMENT);
  CHECK(why.message() == "there is no setting 'rdma_tclass'");
  CHECK(std::string(why.error.advice) == "did you mean rdma-tclass?");
  CHECK(why.error.exit_code == 64);
  CHECK(bps_options_set(&options, "rdma-tclass", "256", why) == BPS_CONFIGURATION);
  CHECK(why.message() == "rdma-tclass: '256' is not a whole number from 0 to 255");
  CHECK(bps_options_set(&options, "transport", "rmda", why) == BPS_CONFIGURATION);
  CHECK(std::string(why.error.advice) == "did you mean rdma?");
  CHECK(why.error.exit_code == 78);
  CHECK(bps_options_set(&options, "job", "a\nrank = 1", why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(why.message(), Contains("job has more than one line"));
  CHECK(bps_options_set(nullptr, "rank", "0", why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_options_set(&options, nullptr, "0", why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_options_set(&options, "rank", nullptr, why) == BPS_INVALID_ARGUMENT);
  CHECK(bps_options_set(&options, "rank", nullptr, nullptr) == BPS_INVALID_ARGUMENT);
  CHECK(options.settings == before);
}

TEST_CASE("c api: settings that do not fit are refused with their sizes") {
  bps_options options = embedded_options();
  const std::size_t room = sizeof options.settings - 1;
  const std::string longest(room - std::strlen("key-file = \n"), 'k');
  Refusal why;
  CHECK(bps_options_set(&options, "key-file", (longest + "k").c_str(), why) == BPS_INVALID_ARGUMENT);
  CHECK(why.message() ==
        "key-file does not fit: with it, the settings of these options have 4096 bytes, and there is room "
        "for 4095");
  CHECK_THAT(std::string(why.error.advice), Contains("config_file"));
  CHECK(options.settings[0] == '\0');
  set(options, "key-file", longest.c_str());
  CHECK(bps_options_set(&options, "rank", "0", why) == BPS_INVALID_ARGUMENT);
  set(options, "key-file", "k");  // instead of the long one
  set(options, "rank", "0");
  // A header whose buffer is shorter.
  options.struct_size = offsetof(bps_options, settings) + sizeof "job = j\n";
  options.settings[0] = '\0';
  options.settings[sizeof "job = j\n"] = 'x';
  set(options, "job", "j");
  CHECK(bps_options_set(&options, "job", "jj", why) == BPS_INVALID_ARGUMENT);
  CHECK(std::string(options.settings) == "job = j\n");
  CHECK(options.settings[sizeof "job = j\n"] == 'x');
  options.struct_size = offsetof(bps_options, settings);
  CHECK(bps_options_set(&options, "job", "j", why) == BPS_INVALID_ARGUMENT);
  CHECK_THAT(std::string(why.error.advice), Contains("bps_options_init"));
}

TEST_CASE("c api: a buffer of settings that the library has not written is refused") {
  bps_options options = embedded_options();
  Refusal why;
  for (const char filler : {'x', '\n'}) {
    std::memset(options.settings, filler, sizeof options.settings);
    bps_client* client = nullptr;
    for (const bool ends : {false, true}) {
      if (ends) options.settings[10] = '\0';
      CHECK(bps_open(&options, &client, why) == BPS_INVALID_ARGUMENT);
      CHECK_THAT(why.message(), Contains("bps_options.settings is not what"));
      CHECK(bps_options_set(&options, "rank", "0", why) == BPS_INVALID_ARGUMENT);
    }
  }
}

TEST_CASE("c api: a config file may be named by its field or its setting") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("bps-options-" + std::to_string(::getpid()))).string();
  std::ofstream(path) << "operation-timeout = \"7s\"\n";
  bps_options options = embedded_options();
  options.config_file = path.c_str();
  CHECK(operation_timeout_of(options) == 7000);
  options.config_file = "/none";
  set(options, "config", path.c_str());
  CHECK(operation_timeout_of(options) == 7000);
  std::filesystem::remove(path);
}

TEST_CASE("c api: open refuses what cannot be, with advice and exit code") {
  bps_options options = embedded_options();
  bps_client* client = reinterpret_cast<bps_client*>(&options);
  Refusal why;
  SECTION("no place for the result") {
    CHECK(bps_open(&options, nullptr, why) == BPS_INVALID_ARGUMENT);
    CHECK(why.error.exit_code == 64);
    return;
  }
  SECTION("embedded for two") {
    options.world_size = 2;
    CHECK(bps_open(&options, &client, why) == BPS_CONFIGURATION);
    CHECK_THAT(why.message(), Contains("world size 1, not 2"));
    CHECK(why.error.exit_code == 78);
    CHECK_THAT(std::string(why.error.advice), Contains("bps-run"));
  }
  SECTION("options that were not initialised") {
    options.struct_size = 0;
    CHECK(bps_open(&options, &client, why) == BPS_INVALID_ARGUMENT);
    CHECK_THAT(std::string(why.error.advice), Contains("bps_options_init"));
  }
  SECTION("a congestion control that does not exist") {
    set(options, "congestion-control", "no-such-thing");
    CHECK(bps_open(&options, &client, why) != BPS_OK);
    CHECK_THAT(why.message(), Contains("no-such-thing"));
  }
  SECTION("nobody listens") {
    const int bound = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(::bind(bound, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::getsockname(bound, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    options.scheduler = where.c_str();
    options.join_timeout_ms = 300;
    CHECK(bps_open(&options, &client, why) == BPS_UNREACHABLE);
    CHECK_THAT(why.message(), Contains("scheduler " + where + " does not answer"));
    CHECK(why.error.exit_code == 69);
    CHECK(bps_open(&options, &client, nullptr) == BPS_UNREACHABLE);
    ::close(bound);
  }
  CHECK(client == nullptr);
  CHECK(why.error.status != BPS_OK);
}

}  // namespace bps::c_api_options_test
