#include "scheduler/held_requests.h"

#include <fmt/format.h>

#include "proto/base/assert.h"
#include "proto/wire/frame.h"

namespace bps {

Status HeldRequests::hold(Rank rank, const Message& message) {
  const std::span<const std::byte> frame = encoder_.encode(message, 0);
  if (held_.size() >= limits_.messages || frame.size() > limits_.bytes - bytes_) {
    return make_error(ErrorCode::out_of_memory,
                      fmt::format("too much is asked while the job recovers: {} requests and {} MiB wait, at "
                                  "most {} and {} MiB may",
                                  held_.size(), bytes_ >> 20, limits_.messages, limits_.bytes >> 20));
  }
  bytes_ += frame.size();
  held_.push_back({rank, {frame.begin(), frame.end()}});
  return {};
}

void HeldRequests::drop(Rank rank) {
  std::erase_if(held_, [&](const Held& held) {
    if (held.rank != rank) return false;
    bytes_ -= held.frame.size();
    return true;
  });
}

std::vector<std::pair<Rank, Message>> HeldRequests::take() {
  std::vector<std::pair<Rank, Message>> out;
  out.reserve(held_.size());
  for (const Held& held : std::exchange(held_, {})) {
    const Status status = decode(std::span(held.frame).subspan(kFramePrefixBytes),
                                 out.emplace_back(held.rank, Message()).second);
    BPS_ASSERT(status.ok());  // it was decoded before it was held
  }
  bytes_ = 0;
  return out;
}

}  // namespace bps
