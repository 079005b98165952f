// The name of every setting of every bps program: --some-flag, BPS_SOME_FLAG and some-flag in a file are one
// name. One list, so that a program can tell another program's variable or file key (fine) from a
// misspelt one (warn or refuse, with the nearest known name). Config::add insists on it: add yours here, when
// a program has it: a name that stands here is never warned about.
#pragma once

#include <string_view>

namespace bps {

inline constexpr std::string_view kSettingNames[] = {
    "advertise",
    "also",
    "bandwidth",
    "bin-dir",
    "bytes",
    "clients",
    "colocated",
    "compute",
    "config",
    "congestion-control",
    "credit-bytes",
    "dtype",
    "every",
    "floor",
    "goodput",
    "grace",
    "heartbeat-deadline",
    "host",
    "in-place",
    "insecure",
    "iters",
    "job",
    "join-timeout",
    "json",
    "late",
    "link",
    "listen",
    "local-rank",
    "local-size",
    "log-level",
    "memory-max",
    "mode",
    "model",
    "netlab",
    "operation-timeout",
    "partition-bytes",
    "ports-file",
    "priority",
    "processes",
    "rank",
    "reconnect-grace",
    "reorder-budget",
    "retain",
    "scale",
    "scheduler",
    "servers",
    "shards",
    "slow-server",
    "staleness",
    "start-timeout",
    "strict",
    "tensors",
    "timeout",
    "turns",
    "urgent-bytes",
    "verbose",
    "warmup",
    "workers",
    "world-size",
};

}  // namespace bps
