// The buffers of one call of a simulated worker: apart, or in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/sim/workload.h"

namespace bps::sim {

class RoundMemory {
 public:
  RoundMemory() = default;
  // Filled with what the rank gives in this round, and where it gives nothing with rubbish.
  RoundMemory(const JobPlan& job, std::size_t tensor, std::uint64_t round, const RoundCall& how,
              std::uint64_t count, Rank rank, bool in_place);

  // What the call is given: the tensor's first `count` elements, or of a call of parts the rank's. Of a
  // broadcast, both are the one buffer that it has.
  std::span<const std::byte> input() const {
    return std::span(is_one_ ? out_ : in_).subspan(input_begin_, input_bytes_);
  }
  std::span<std::byte> output() { return std::span(out_).subspan(output_begin_, output_bytes_); }
  std::span<const std::byte> output() const { return std::span(out_).subspan(output_begin_, output_bytes_); }

  // What lies apart has not changed.
  bool is_input_intact(const JobPlan& job, std::size_t tensor, std::uint64_t round, const RoundCall& how,
                       std::uint64_t count, Rank rank) const;

 private:
  std::vector<std::byte> in_, out_;
  bool is_one_ = false;  // only out_
  std::size_t input_begin_ = 0, input_bytes_ = 0;
  std::size_t output_begin_ = 0, output_bytes_ = 0;
};

}  // namespace bps::sim
