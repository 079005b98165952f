// How many descriptors this process may have open, and what follows for those who take connections.
#pragma once

#include <cstddef>

namespace bps {

// Raises the limit as far as the operating system allows; returns the one that is in force now.
std::size_t raise_descriptor_limit();

// How many connections that have not said who they are may be open at a time: a share of all descriptors, so
// that strangers cannot take those that workers and servers need.
std::size_t max_unknown_connections(std::size_t descriptors);

}  // namespace bps
