// What a program of ours does when its outputs are missing, or nobody takes them any more.
#pragma once

namespace bps {

// From now on a write to a pipe or socket that nobody reads, and one past `ulimit -f`, is an error of that
// write (EPIPE, EFBIG). By default either would end the process without a word: a log that is piped into a
// program that ends would end the cluster. Call it before other threads begin.
void outlive_lost_outputs();

// Opens /dev/null for each of the descriptors 0, 1 and 2 that the program was started without (`>&-`, cron).
// Else the next descriptor that it opens, say a connection, would be its standard error, and get the log.
// Call it before anything is opened.
void fill_standard_descriptors();

}  // namespace bps
