// What a scheduler has to know of the one before it, if it can: the rest its nodes say back (decision 0013).
// As text, a line each, with a checksum at the end:
//
//   bps-scheduler-state 1
//   term 1763771234
//   last-server 3
//   run 00000000000000b2 resnet50
//   checksum 1a2b3c4d
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace bps {

struct SchedulerState {
  std::uint64_t term = 0;  // number; 0: there was none
  ServerId last_server;
  std::map<JobRun, std::string> runs;  // names of jobs
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
