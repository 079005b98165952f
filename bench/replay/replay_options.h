// What a worker needs to know to replay a training step, as one argument of its process:
// "MODEL:SCALE:COMPUTE-SECONDS".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bps::bench {

struct ReplayOptions {
  std::string model;     // empty: none
  double scale = 1;      // of the tensors' sizes
  double compute_s = 0;  // forward and backward together
};

std::string to_argument(const ReplayOptions& options);
std::optional<ReplayOptions> parse_replay_options(std::string_view text);

}  // namespace bps::bench
