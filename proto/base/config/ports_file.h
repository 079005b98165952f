// The file in which a daemon started with `--ports-file F` says where it listens, for whoever started it:
// lines `name HOST:PORT`, such as `listen 127.0.0.1:4710`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/base/endpoint.h"
#include "proto/base/result.h"

namespace bps {

// Written under another name and renamed: a reader finds it whole or not at all. What is there
// and is no regular file stays: a `configuration` error.
Status write_ports_file(const std::string& path, const std::vector<std::pair<std::string, Endpoint>>& ports);

}  // namespace bps
