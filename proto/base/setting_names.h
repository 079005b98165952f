// The name of every setting of every bps program: --some-flag, BPS_SOME_FLAG and some-flag in a file are one
// name. One list, so that a program can tell another program's variable or file key (fine) from a
// misspelt one (warn or refuse, with the nearest known name). Config::add insists on it: add yours here.
#pragma once

#include <string_view>

namespace bps {

inline constexpr std::string_view kSettingNames[] = {
    "advertise",
    "bandwidth",
    "baseline",
    "bin-dir",
    "bytes",
    "config",
    "congestion-control",
    "credit-bytes",
    "dtype",
    "grace",
    "hash",
    "heartbeat-deadline",
    "heartbeat-interval",
    "heartbeat-timeout",
    "host",
    "http",
    "insecure",
    "interface",
    "iters",
    "job",
    "join-timeout",
    "json",
    "key-file",
    "lane-bytes",
    "link",
    "listen",
    "local-rank",
    "local-size",
    "log-level",
    "memory-max",
    "mode",
    "op",
    "operation-timeout",
    "partition-bytes",
    "ports-file",
    "rank",
    "reconnect-grace",
    "reorder-budget",
    "retain",
    "scheduler",
    "scheduler-grace",
    "seed",
    "servers",
    "shards",
    "staleness",
    "start-timeout",
    "state-dir",
    "steps",
    "strict",
    "tensors",
    "timeout",
    "transport",
    "verbose",
    "warmup",
    "workers",
    "world-size",
};

}  // namespace bps
