#include "scheduler/text.h"

#include <fmt/format.h>

namespace bps {

std::string ranks_text(std::span<const Rank> ranks) {
  constexpr std::size_t kMostNamed = 16;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0].value);
  std::string text = "ranks ";
  const bool cut = ranks.size() > kMostNamed;
  const std::size_t named = cut ? kMostNamed : ranks.size();
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == named && !cut ? " and " : ", ";
    text += std::to_string(ranks[i].value);
  }
  if (cut) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

Error contradiction(const std::string& what, ErrorCode code) {
  return make_error(code, what + " contradicts what others say", kRestartAdvice);
}

std::uint64_t milliseconds_of(Duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return count > 0 ? static_cast<std::uint64_t>(count) : 0;
}

std::string seconds_text(Duration duration) {
  const auto tenths = (std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() + 50) / 100;
  return tenths % 10 == 0 ? fmt::format("{} s", tenths / 10)
                          : fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

}  // namespace bps
