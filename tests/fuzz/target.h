// What every fuzz target defines, and every program around it uses: libFuzzer's, or replay_main.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace bps::fuzz {

using Bytes = std::vector<std::uint8_t>;

// Inputs from which mutation begins. Made anew each time, and the same each time.
std::vector<Bytes> seeds();

}  // namespace bps::fuzz
