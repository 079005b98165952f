// For tests and fuzzing: the settings of an imaginary server, one of each type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/config/config.h"

namespace bps::testing {

struct SampleSettings {
  SampleSettings() {
    config.add("listen", listen, "Where workers connect");
    config.add("memory-max", memory_max, "Memory for partitions");
    config.add("join-timeout", join_timeout, "How long to wait for the others");
    config.add("bandwidth", bandwidth, "Rate of this host's link");
    config.add("insecure", insecure, "Allow other addresses without a key");
    config.add("retain", retain, "Keep answers");
    config.add("shards", shards, "Threads").range(1, 256).short_flag('s');
    config.add("rank", rank, "Rank of this worker");
    config.add("mode", mode, "Network").choices({"auto", "tcp"});
    config.add("log-level", log_level, "What to log");
  }

  Endpoint listen{"127.0.0.1", 4710};
  ByteSize memory_max{4ull << 30};
  Duration join_timeout = std::chrono::seconds(60);
  BitRate bandwidth{};
  bool insecure = false;
  bool retain = true;
  std::uint32_t shards = 2;
  std::optional<std::int32_t> rank;
  std::string mode = "auto";
  LogLevel log_level = LogLevel::info;
  std::vector<std::string> arguments;  // for add_arguments()
  Config config{"bps-test", "Tests the settings."};
};

}  // namespace bps::testing
