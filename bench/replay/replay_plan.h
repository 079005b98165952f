// What a worker does in one replayed iteration: which tensors, when, and how long the compute between takes.
//
// Compute is scaled to `compute_s` for forward and backward together, split by the model's operations.
// Transfers are bytes * t*/M. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/models/model.h"
#include "bench/replay/fluid_schedule.h"
#include "bench/replay/replay_options.h"

namespace bps::bench {

struct ReplayTensor {
  std::string name;
  std::uint64_t elements = 0;
  std::uint64_t offset_bytes = 0;  // in one buffer that holds all of them
  std::uint32_t layer = 0;
};

struct ReplayPlan {
  std::vector<ReplayTensor> tensors;  // in forward order
  std::vector<FluidLayer> layers;     // likewise
  std::uint64_t tensor_bytes = 0;     // of all tensors
  std::uint64_t buffer_bytes = 0;     // with what aligns them
};

ReplayPlan make_replay_plan(const Model& model, std::size_t element_bytes, double compute_s,
                            double tstar_s_per_byte);

// For a worker: transfers take no time. Fails if there is no such model.
Result<ReplayPlan> replay_plan_of(const ReplayOptions& options, std::size_t element_bytes);

}  // namespace bps::bench
