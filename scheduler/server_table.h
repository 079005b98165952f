// The servers that have registered, and which jobs use them. A server that drains gets no new jobs and is
// told Left when the last job that uses it has ended.
//
// Owner: the core's Tables; jobs hold a reference. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "scheduler/actions.h"

namespace bps {

struct ServerRecord {
  ServerId id;
  Incarnation incarnation;
  PeerId peer;  // 0 = suspected: its connection is lost
  std::string host;
  Endpoint endpoint;
  std::uint32_t shards = 0;
  std::uint64_t bandwidth_bps = 0;
  std::uint64_t memory_max = 0;
  bool rdma = false;                   // takes lanes over RDMA, too
  std::uint64_t moved_partitions = 0;  // away from it, while it drains
  bool draining = false;
  bool told_to_drain = false;       // by an administrator; it drains as soon as it has heard
  std::vector<std::string> failed;  // jobs that used it and failed while it drained: at most kMaxWaitsNamed
  std::set<JobRun> jobs;
  // Requests: asked again when it comes back.
  struct Request {
    JobRun run;
    SharedMessage message;
  };
  std::map<std::uint64_t, Request> unacknowledged;

  bool usable() const { return peer.value != 0 && !draining; }
  // Takes over what the server's hello says of it.
  void describe(const HelloServer& hello);
};

// "server 1 (host cpu-01, 10.0.0.9:4711)"
std::string to_string(const ServerRecord& server);

// How long a node has said nothing, if that is known.
using Silence = std::function<std::optional<Duration>(Incarnation)>;

class ServerTable {
 public:
  explicit ServerTable(Outbox& outbox) : outbox_(outbox) {}
  ServerTable(const ServerTable&) = delete;
  ServerTable& operator=(const ServerTable&) = delete;

  ServerRecord& add(ServerRecord server) { return servers_[server.id] = std::move(server); }
  void remove(ServerId id) { servers_.erase(id); }
  void clear() { servers_.clear(); }
  ServerRecord* find(ServerId id);
  const std::map<ServerId, ServerRecord>& all() const { return servers_; }
  std::uint32_t usable_count() const;
  // Of one that is not there: gone.
  Party party(ServerId id, const Silence& silence) const;

  void send(ServerId id, Message message);
  // Gives the request a number, by which the server acknowledges it.
  std::uint64_t ask(ServerId id, OpenJob request);
  std::uint64_t ask(ServerId id, DeclareSlices request);
  std::uint64_t ask(ServerId id, DropTensors request);
  std::uint64_t ask(ServerId id, Shrunk request);
  // It is back, and has what was sent before it went, or not.
  void ask_again(ServerRecord& server);

  void use(ServerId id, JobRun run);
  std::vector<ServerId> users_of(JobRun run) const;
  void release(ServerId id, JobRun run);
  void drain(ServerId id);
  // A job that uses it has failed.
  void note_failure(ServerId id, const std::string& job, const Error& error);

 private:
  void tell_if_drained(ServerRecord& server);
  template <class Request>
  std::uint64_t number_and_send(ServerId id, Request request);

  Outbox& outbox_;
  std::map<ServerId, ServerRecord> servers_;
  std::uint64_t last_request_ = 0;
};

}  // namespace bps
