// What a rank tells the scheduler of its calls on one group, so that calls that differ are found (decision
// 0039): those under way, the lowest numbers first, and the last exchanges that are over. An exchange of
// messages may be over here while ranks that this one has no message with call something else.
//
// Owner: GroupCalls, one for each group. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "client/src/calls/group_request.h"
#include "proto/wire/messages.h"

namespace bps {

// By what it is compared.
OpenCall signature_of(std::uint64_t number, const GroupRequest& request);

class CallReport {
 public:
  static constexpr std::size_t kMostOver = 64;
  static constexpr std::size_t kMostOpen = kMaxOpenCallsNamed - kMostOver;

  void note_over(const OpenCall& call);
  // `open`: at most kMostOpen, by number, at least one. None: these have been told, and it is not to be said
  // `again`.
  std::optional<OpenCalls> say(TensorId group, std::vector<OpenCall> open, bool again);
  bool has_said() const { return said_to_ != 0; }

 private:
  std::deque<OpenCall> over_;
  std::uint64_t said_from_ = 0, said_to_ = 0;  // numbers
};

}  // namespace bps
