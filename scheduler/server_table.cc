#include "scheduler/server_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace bps {

std::string to_string(const ServerRecord& server) {
  return fmt::format("server {} (host {}, {})", server.id.value, server.host, to_string(server.endpoint));
}

ServerRecord* ServerTable::find(ServerId id) {
  const auto it = servers_.find(id);
  return it == servers_.end() ? nullptr : &it->second;
}

std::uint32_t ServerTable::usable_count() const {
  return static_cast<std::uint32_t>(std::count_if(servers_.begin(), servers_.end(),
                                                  [](const auto& entry) { return entry.second.usable(); }));
}

void ServerTable::send(ServerId id, Message message) {
  if (const ServerRecord* server = find(id)) outbox_.send(server->peer, std::move(message));
}

std::uint64_t ServerTable::expect_ack(ServerId id, JobRun run) {
  const std::uint64_t request = ++last_request_;
  if (ServerRecord* server = find(id)) server->unacknowledged.emplace(request, run);
  return request;
}

void ServerTable::use(ServerId id, JobRun run) {
  if (ServerRecord* server = find(id)) server->jobs.insert(run);
}

void ServerTable::release(ServerId id, JobRun run) {
  ServerRecord* server = find(id);
  if (server == nullptr || server->jobs.erase(run) == 0) return;
  tell_if_drained(*server);
}

void ServerTable::drain(ServerId id) {
  ServerRecord* server = find(id);
  if (server == nullptr || server->draining) return;
  server->draining = true;
  tell_if_drained(*server);
}

void ServerTable::tell_if_drained(ServerRecord& server) {
  if (server.draining && server.jobs.empty()) outbox_.send(server.peer, Left{});
}

}  // namespace bps
