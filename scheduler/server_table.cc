#include "scheduler/server_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/wire/limits.h"
#include "scheduler/text.h"

namespace bps {

std::string to_string(const ServerRecord& server) {
  return fmt::format("server {} (host {}, {})", server.id.value, server.host, to_string(server.endpoint));
}

void ServerRecord::describe(const HelloServer& hello) {
  host = hello.host;
  endpoint = hello.data;
  shards = hello.shards;
  bandwidth_bps = hello.bandwidth_bps;
  memory_max = hello.memory_max;
  rdma = hello.rdma;
}

ServerRecord* ServerTable::find(ServerId id) {
  const auto it = servers_.find(id);
  return it == servers_.end() ? nullptr : &it->second;
}

std::uint32_t ServerTable::usable_count() const {
  return static_cast<std::uint32_t>(std::count_if(servers_.begin(), servers_.end(),
                                                  [](const auto& entry) { return entry.second.usable(); }));
}

Party ServerTable::party(ServerId id, const Silence& silence) const {
  Party party;
  party.server = true;
  party.number = id.value;
  party.state = PartyState::gone;
  const auto found = servers_.find(id);
  if (found == servers_.end()) return party;
  const ServerRecord& server = found->second;
  party.host = server.host;
  party.state = server.peer.value == 0 ? PartyState::suspected : PartyState::alive;
  if (const auto silent = silence(server.incarnation)) party.silent_ms = milliseconds_of(*silent);
  return party;
}

void ServerTable::send(ServerId id, Message message) {
  if (const ServerRecord* server = find(id)) outbox_.send(server->peer, std::move(message));
}

template <class Request>
std::uint64_t ServerTable::number_and_send(ServerId id, Request request) {
  request.request = ++last_request_;
  ServerRecord* const server = find(id);
  if (server == nullptr) return request.request;
  const std::uint64_t number = request.request;
  const JobRun run = request.job_run;
  const auto message = std::make_shared<const Message>(std::move(request));
  server->unacknowledged.emplace(number, ServerRecord::Request{run, message});
  outbox_.send(server->peer, message);
  return number;
}

std::uint64_t ServerTable::ask(ServerId id, OpenJob request) {
  return number_and_send(id, std::move(request));
}

std::uint64_t ServerTable::ask(ServerId id, DeclareSlices request) {
  return number_and_send(id, std::move(request));
}

std::uint64_t ServerTable::ask(ServerId id, DropTensors request) {
  return number_and_send(id, std::move(request));
}

std::uint64_t ServerTable::ask(ServerId id, Shrunk request) {
  return number_and_send(id, std::move(request));
}

void ServerTable::ask_again(ServerRecord& server) {
  // What it is asked for a run that is over would never end there.
  std::erase_if(server.unacknowledged,
                [&](const auto& entry) { return server.jobs.count(entry.second.run) == 0; });
  for (const auto& [number, request] : server.unacknowledged)
    outbox_.send(server.peer, request.message);
}

void ServerTable::use(ServerId id, JobRun run) {
  if (ServerRecord* server = find(id)) server->jobs.insert(run);
}

std::vector<ServerId> ServerTable::users_of(JobRun run) const {
  std::vector<ServerId> users;
  for (const auto& [id, server] : servers_) {
    if (server.jobs.count(run) != 0) users.push_back(id);
  }
  return users;
}

void ServerTable::release(ServerId id, JobRun run) {
  ServerRecord* server = find(id);
  if (server == nullptr || server->jobs.erase(run) == 0) return;
  tell_if_drained(*server);
}

void ServerTable::drain(ServerId id) {
  ServerRecord* server = find(id);
  if (server == nullptr) return;
  server->draining = true;
  tell_if_drained(*server);
}

void ServerTable::note_failure(ServerId id, const std::string& job, const Error& error) {
  ServerRecord* server = find(id);
  if (server == nullptr || !(server->draining || server->told_to_drain)) return;
  if (server->failed.size() >= kMaxWaitsNamed) return;
  server->failed.push_back(fmt::format("job {} failed: {}", job, error.message));
}

void ServerTable::tell_if_drained(ServerRecord& server) {
  if (server.draining && server.jobs.empty()) outbox_.send(server.peer, Left{});
}

}  // namespace bps
