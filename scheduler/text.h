// Words for error messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/base/error.h"
#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

// "rank 2", "ranks 1, 2 and 5", "ranks 0, 1, 2, ..., 15 and 240 more"
std::string ranks_text(std::span<const Rank> ranks);

// What a user does about a job that has lost somebody.
inline constexpr const char* kRestartAdvice =
    "start the job again; exit code 75 asks an orchestrator to do that";

// A report that does not fit what others have said: `what` is the part of it that does not, or who says it.
Error contradiction(const std::string& what, ErrorCode code = ErrorCode::protocol);

// Whole ones; 0 of what is negative.
std::uint64_t milliseconds_of(Duration duration);

// "60 s", "0.3 s", "2.5 s"
std::string seconds_text(Duration duration);

}  // namespace bps
