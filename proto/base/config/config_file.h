// Reads a settings file: TOML, top level only. Knows no names; Config checks them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace bps {

struct ConfigFileEntry {
  std::string key;
  std::string value;  // as a flag would be given: 4GiB, true, 8
  std::uint32_t line = 0;
};

// Errors (`configuration`) name the file, the line and the cause.
Result<std::vector<ConfigFileEntry>> read_config_file(const std::string& path);

}  // namespace bps
