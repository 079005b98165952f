#include "deploy/bps_run/ports_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>

namespace bps {

Result<Endpoint> find_port(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.size() <= name.size() || line.substr(0, name.size()) != name || line[name.size()] != ' ')
      continue;
    Result<Endpoint> endpoint = parse_endpoint(line.substr(name.size() + 1));
    if (endpoint.ok() && endpoint->port == 0) {
      return make_error(ErrorCode::protocol, "'" + std::string(line) + "' names no port");
    }
    return endpoint;
  }
  return make_error(ErrorCode::protocol, "no line '" + std::string(name) + " HOST:PORT'");
}

Result<std::optional<Endpoint>> read_port(const std::string& path, std::string_view name) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (!file) {
    if (errno == ENOENT) return std::optional<Endpoint>();
    return os_error(path, errno);
  }
  char text[4096];
  const std::size_t size = std::fread(text, 1, sizeof text, file.get());
  Result<Endpoint> endpoint = find_port(std::string_view(text, size), name);
  if (!endpoint.ok()) {
    Error error = std::move(endpoint).error();
    error.message = path + ": " + error.message;
    return error;
  }
  return std::optional<Endpoint>(endpoint.value());
}

}  // namespace bps
