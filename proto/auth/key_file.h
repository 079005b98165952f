// Key files: one line, in one of two forms.
//
//   4f2a...                            a cluster key: 32 to 128 hexadecimal digits (`openssl rand -hex 32`)
//   bps-job-key-1 9c01... resnet50     the key of one job: 64 digits, then the job's name
//
// Daemons need the first; a worker takes either, and the second lets it into that job only. A file that
// others could read or change is refused: nobody but its owner, who is this user or root, has any right to
// it.
//
// Failure: every error names the file and what to do; none shows what is in it. What was read is wiped.
#pragma once

#include <string>
#include <string_view>

#include "proto/auth/key.h"

namespace bps {

// For scheduler and servers.
Result<SharedKey> read_cluster_key(const std::string& path);

// For a worker of `job`: its job key.
Result<SharedKey> read_job_key(const std::string& path, std::string_view job);

// The line of a job's key file, with its end. Secret.
std::string job_key_line(const Key& job_key, std::string_view job);

// A new file with a fresh cluster key, mode 0600. It is an error if there is one already.
Status create_key_file(const std::string& path);

}  // namespace bps
