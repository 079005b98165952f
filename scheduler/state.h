// What a scheduler has to know of the one before it, if it can: the rest its nodes say back (decision 0013).
// As text, a line each, with a checksum at the end:
//
//   bps-scheduler-state 1
//   term 1763771234
//   last-server 3
//   run 00000000000000b2 resnet50
//   waited 00000000000000b2 2500
//   checksum 1a2b3c4d
//
// `waited`: milliseconds, of a run whose workers have not come back yet. No line holds a time of day: clocks
// may be wrong. How long a run lasts already its workers say.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"

namespace bps {

struct SchedulerState {
  struct Run {
    std::string job;
    Duration waited{};  // schedulers for its workers, as long as none has come back
    friend bool operator==(const Run&, const Run&) = default;
  };

  std::uint64_t term = 0;  // number; 0: there was none
  ServerId last_server;
  std::map<JobRun, Run> runs;
  friend bool operator==(const SchedulerState&, const SchedulerState&) = default;
};

inline constexpr std::size_t kMaxStateRuns = 1 << 16;
inline constexpr std::size_t kMaxStateBytes = 64 << 20;

std::string to_text(const SchedulerState& state);
// What the last line says of the lines before it.
std::uint32_t checksum_of_state(std::string_view body);
// The error says in which line what is wrong.
Result<SchedulerState> parse_state(std::string_view text);

}  // namespace bps
