// What a daemon does when nobody takes its output any more.
#pragma once

namespace bps {

// From now on a write to a pipe or socket that nobody reads, and one past `ulimit -f`, is an error of that
// write (EPIPE, EFBIG). By default either would end the process without a word: a log that is piped into a
// program that ends would end the cluster. Call it before other threads begin.
void outlive_lost_outputs();

}  // namespace bps
