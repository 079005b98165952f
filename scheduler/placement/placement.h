// How many of a job's bytes each server should carry so that the slowest link finishes first.
//
// Every worker pushes M bytes and pulls M. A worker and a server on one host talk without its link. Let n be
// the number of workers, w_h those on host h, X_h the part of the bytes that the servers on h own: the link
// of h moves
//
//   M * (w_h + X_h * (n - 2 * w_h))
//
// each way, in that over its bandwidth B_h seconds. The slowest link is fastest when, for the smallest time t
// that allows it, every X_h keeps its link within t and the X_h add up to 1. For a given t each host gives an
// interval for X_h, so t is found by bisection. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bps {

struct HostLoad {
  std::uint32_t workers = 0;
  double bandwidth = 0;  // bytes/s, > 0
  bool has_servers = false;
};

struct HostShares {
  std::vector<double> share;    // per host, sum 1; 0 where there is no server
  double seconds_per_byte = 0;  // t / M
};

// At least one host has a server. Where several answers take the same time, hosts that have slack carry in
// proportion to it, and hosts whose link does not care (n = 2 * w_h) carry what the others leave.
HostShares solve_host_shares(std::span<const HostLoad> hosts);

struct PlacementNode {
  std::string host;                 // identity of the machine
  std::uint64_t bandwidth_bps = 0;  // of its host's link; 0 = unknown
};

// The part of the bytes that each server should own, sum 1. A host's bandwidth is the largest that its nodes
// name; hosts that name none count as the fastest that is named. Within a host the bytes are spread by the
// servers' own bandwidths, by the same rule.
std::vector<double> server_shares(std::span<const PlacementNode> workers,
                                  std::span<const PlacementNode> servers);

}  // namespace bps
