// pushpull of GPU memory: what it is measured beside, and what is said about both.
#pragma once

#include <vector>

#include "bench/commands/race.h"
#include "bench/commands/report.h"

namespace bps::bench {

// Wrong if these flags do not go together, or there is no GPU.
Status check_gpus(const Options& options);

// The stages of a push_pull of GPU memory by themselves, for the same servers: "host", the same bytes from
// host memory to the servers and back, whose answers are read in place; "copies", the same bytes to the host
// and to the GPU at once. With a local group each worker moves its part. And, if wanted, the push_pull while
// matrices are multiplied, and that alone.
void add_gpu_sides(const Options& options, Race& race);

// Ratios of the push_pull `series` to those sides, by round, and to the slower of the two stages.
void compare_with_stages(Outcome& outcome, const Series& series, const std::vector<Side>& sides);

// What multiplying loses beside push_pulls, if it was measured.
void add_products(Outcome& outcome, const Options& options, const std::vector<Side>& sides);

// Whether such a side moves tensors, so that it has a column.
bool moves_tensors(const Side& side);

}  // namespace bps::bench
