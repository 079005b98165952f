// The file in which a daemon started with `--ports-file F` says where it listens: lines `name HOST:PORT`,
// such as `listen 127.0.0.1:4710`. The daemon writes it under another name and renames it, so it is there
// whole or not at all.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "proto/base/endpoint.h"
#include "proto/base/result.h"

namespace bps {

// The address of the line `name`; an error if the line is missing or no address with a port.
Result<Endpoint> find_port(std::string_view text, std::string_view name);

// The same from a file; nullopt while the file is not there.
Result<std::optional<Endpoint>> read_port(const std::string& path, std::string_view name);

}  // namespace bps
