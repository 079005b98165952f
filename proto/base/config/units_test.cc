#include "proto/base/config/units.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

namespace bps {

TEST_CASE("units: things are counted as people do") {
  CHECK(counted(0, "job") == "0 jobs");
  CHECK(counted(1, "job") == "1 job");
  CHECK(counted(2, "job") == "2 jobs");
}
namespace {

using namespace std::chrono_literals;

TEST_CASE("byte sizes") {
  const auto bytes = [](std::string_view text) { return parse_byte_size(text).value().bytes; };
  CHECK(bytes("0") == 0);
  CHECK(bytes("4096") == 4096);
  CHECK(bytes("256KiB") == 256 * 1024);
  CHECK(bytes("4gib") == 4ull << 30);
  CHECK(bytes("100MB") == 100'000'000);
  CHECK(bytes("1.5GiB") == 3ull << 29);
  CHECK(bytes("16777215TiB") == 16777215ull << 40);
  for (const char* bad :
       {"", "4G", "4 GiB", "-1", "GiB", "1.2.3MB", "16777216TiB", "1e3", "0x10", "4GiBs", "nan"}) {
    INFO(bad);
    CHECK_FALSE(parse_byte_size(bad).ok());
  }
  CHECK(to_string(ByteSize{4ull << 30}) == "4GiB");
  CHECK(to_string(ByteSize{100'000'000}) == "100MB");
  CHECK(to_string(ByteSize{1234567}) == "1234567B");
  CHECK(to_string(ByteSize{0}) == "0B");
  CHECK(rounded(ByteSize{300}) == "300 bytes");
  CHECK(rounded(ByteSize{1234567}) == "1.2 MiB");
  CHECK(rounded(ByteSize{5'000ull << 40}) == "5000.0 TiB");
  CHECK(bytes(to_string(ByteSize{UINT64_MAX})) == UINT64_MAX);
}

TEST_CASE("durations") {
  CHECK(parse_duration("500ms").value() == 500ms);
  CHECK(parse_duration("30s").value() == 30s);
  CHECK(parse_duration("0.5s").value() == 500ms);
  CHECK(parse_duration("5min").value() == 5min);
  CHECK(parse_duration("2h").value() == 2h);
  CHECK(parse_duration("250us").value() == 250us);
  CHECK(parse_duration("0").value() == 0s);
  for (const char* bad : {"30", "", "-5s", "5 s", "5m", "10000000000000s", "s"}) {
    INFO(bad);
    CHECK_FALSE(parse_duration(bad).ok());
  }
  CHECK(to_string(Duration(1500ms)) == "1500ms");
  CHECK(to_string(Duration(60s)) == "1min");
  CHECK(to_string(Duration(0)) == "0s");
  CHECK(to_string(Duration(-2s)) == "-2s");
}

TEST_CASE("rates") {
  CHECK(parse_bit_rate("500mbit").value().bits_per_second == 500'000'000);
  CHECK(parse_bit_rate("25Gbit").value().bits_per_second == 25'000'000'000);
  CHECK(parse_bit_rate("1000").value().bits_per_second == 1000);
  CHECK(parse_bit_rate("2.5gbit").value().bits_per_second == 2'500'000'000);
  for (const char* bad : {"", "500mb", "fast", "-1gbit"}) {
    INFO(bad);
    CHECK_FALSE(parse_bit_rate(bad).ok());
  }
  CHECK(to_string(BitRate{500'000'000}) == "500mbit");
  CHECK(to_string(BitRate{0}) == "0bit");
}

TEST_CASE("booleans") {
  for (const char* yes : {"true", "True", "YES", "on", "1"})
    CHECK(parse_bool(yes).value());
  for (const char* no : {"false", "no", "OFF", "0"})
    CHECK_FALSE(parse_bool(no).value());
  for (const char* bad : {"", "maybe", "2", "tru"})
    CHECK_FALSE(parse_bool(bad).ok());
}

}  // namespace
}  // namespace bps
