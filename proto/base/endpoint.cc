#include "proto/base/endpoint.h"

#include <charconv>

namespace bps {

Result<Endpoint> parse_endpoint(std::string_view text) {
  auto bad = [&](std::string_view why) {
    return make_error(ErrorCode::invalid_argument,
                      "'" + std::string(text) + "' is not HOST:PORT: " + std::string(why),
                      "write it like 127.0.0.1:4710, [::1]:4710 or :0");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("there is no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, errc] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (errc != std::errc{} || end != digits.data() + digits.size()) return bad("the port must be 0 to 65535");
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad("put an IPv6 address in brackets");
  }
  Endpoint endpoint;
  if (!host.empty()) endpoint.host = std::string(host);
  endpoint.port = port;
  return endpoint;
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

bool is_loopback(const Endpoint& endpoint) {
  if (endpoint.host == "localhost" || endpoint.host == "::1") return true;
  // A name may begin with "127." too: only digits and dots are an address.
  return endpoint.host.starts_with("127.") &&
         endpoint.host.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace bps
