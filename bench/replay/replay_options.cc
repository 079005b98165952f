#include "bench/replay/replay_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace bps::bench {
namespace {

bool read_number(std::string_view text, double& out) {
  const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), out);
  return errc == std::errc{} && end == text.data() + text.size() && std::isfinite(out) && out >= 0;
}

}  // namespace

std::string to_argument(const ReplayOptions& options) {
  return fmt::format("{}:{}:{}", options.model, options.scale, options.compute_s);
}

std::optional<ReplayOptions> parse_replay_options(std::string_view text) {
  ReplayOptions options;
  const std::size_t first = text.find(':');
  const std::size_t second = first == text.npos ? text.npos : text.find(':', first + 1);
  if (second == text.npos) return std::nullopt;
  options.model = text.substr(0, first);
  if (!read_number(text.substr(first + 1, second - first - 1), options.scale) ||
      !read_number(text.substr(second + 1), options.compute_s)) {
    return std::nullopt;
  }
  return options;
}

}  // namespace bps::bench
