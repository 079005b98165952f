// What a client says of a scheduler that sends what it must not.
#pragma once

#include <string>
#include <utility>

#include "proto/base/error.h"

namespace bps {

inline Error scheduler_error(std::string what) {
  return make_error(ErrorCode::protocol, "the scheduler sent " + std::move(what),
                    "run the same bps version everywhere; if it is, please report this");
}

}  // namespace bps
