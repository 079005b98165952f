// A network address as users write it: HOST:PORT, [V6]:PORT, :PORT (host 127.0.0.1), port 0 = any free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace bps {

struct Endpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

Result<Endpoint> parse_endpoint(std::string_view text);
std::string to_string(const Endpoint& endpoint);

// True for 127.0.0.0/8, ::1 and "localhost": the only addresses that need neither a key nor --insecure.
bool is_loopback(const Endpoint& endpoint);

}  // namespace bps
