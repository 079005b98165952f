// Waits in words: what workers, servers, the scheduler and bpsctl say about them, alike everywhere.
//
//   round 812 of layer1.weight: 6 of 8 pushed, missing rank 3 (host gpu-03, last seen 0.4 s ago) and rank 5
//   (gone for 9.8 s)
#pragma once

#include <string>
#include <vector>

#include "proto/wire/messages.h"

namespace bps {

// "rank 3 (host gpu-03, last seen 0.4 s ago)", "rank 3 (last seen 0.4 s ago; it waits for round 2 of b
// itself)"
std::string to_string(const Party& party);

// "rank 1 (...), rank 3 (...), rank 5 (...) and 2 more"; `more`: how many are not in the list.
std::string list_text(const std::vector<Party>& parties, std::uint32_t more = 0);

// Without job and age.
std::string to_string(const Wait& wait);

// "0.4 s"
std::string milliseconds_text(std::uint64_t milliseconds);

}  // namespace bps
