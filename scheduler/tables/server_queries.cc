#include "scheduler/tables/server_queries.h"

#include <algorithm>

#include "proto/wire/timing.h"

namespace bps {
namespace {

Duration patience_of(const AskWaits& query) {
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(kMaxQueryPatience);
  const auto most_ms = static_cast<std::uint64_t>(most.count());
  if (query.patience_ms == 0) return most;
  return std::chrono::milliseconds(std::min(query.patience_ms, most_ms));
}

}  // namespace

bool ServerQueries::may_ask(PeerId peer) const {
  const auto open = open_.find(peer);
  return queries_.size() < kMaxQueries && (open == open_.end() || open->second < kMaxQueriesOfPeer);
}

void ServerQueries::ask(TimePoint now, PeerId peer, AskWaits query, const std::vector<Target>& targets) {
  const std::uint64_t number = ++last_query_;
  ++open_[peer];
  Query& entry = queries_[number];
  entry.peer = peer;
  entry.deadline = now + patience_of(query);
  entry.query = std::move(query);
  std::vector<Key> unasked;  // finish() may be the end of the query
  for (const Target& target : targets) {
    const Key key{target.run, target.tensor};
    const auto [place, is_new] = server_queries_.try_emplace(key);
    ServerQuery& server_query = place->second;
    if (target.is_context) {
      entry.listening.insert(key);
      server_query.listeners.insert(number);
    } else {
      entry.waiting.insert(key);
      server_query.queries.insert(number);
    }
    if (!is_new) continue;
    server_query.deadline = now + kMaxQueryPatience;
    for (const ServerId server : target.servers) {
      const std::uint64_t request = ++last_request_;
      server_query.outstanding.emplace(request, server);
      of_request_.emplace(request, key);
      asks_.push_back({server, AskOpenRounds{request, target.run, target.tensor, 0}});
    }
    if (server_query.outstanding.empty()) unasked.push_back(key);
  }
  for (const Key& key : unasked)
    finish(key);
  // Also where nobody has to be asked.
  if (const auto it = queries_.find(number); it != queries_.end() && is_over(it->second)) conclude(number);
}

void ServerQueries::answered(ServerId server, const OpenRounds& open) {
  const auto found = of_request_.find(open.request);
  if (found == of_request_.end()) return;
  const Key key = found->second;
  ServerQuery& server_query = server_queries_.at(key);
  if (server_query.outstanding.at(open.request) != server) return;
  server_query.outstanding.erase(open.request);
  of_request_.erase(found);
  for (const OpenRound& round : open.rounds)
    server_query.open.add(round);
  server_query.open.add_more(open.more);
  server_query.context = nullptr;
  if (server_query.outstanding.empty()) finish(key);
}

void ServerQueries::server_gone(ServerId server) {
  std::vector<Key> over;
  for (auto& [key, server_query] : server_queries_) {
    const auto known = std::find_if(server_query.outstanding.begin(), server_query.outstanding.end(),
                                    [&](const auto& entry) { return entry.second == server; });
    if (known == server_query.outstanding.end()) continue;
    of_request_.erase(known->first);
    server_query.outstanding.erase(known);
    server_query.lost.push_back(server);
    server_query.context = nullptr;
    if (server_query.outstanding.empty()) over.push_back(key);
  }
  for (const Key& key : over)
    finish(key);
}

void ServerQueries::peer_gone(PeerId peer) {
  std::erase_if(answered_, [&](const Answered& answered) { return answered.peer == peer; });
  if (open_.erase(peer) == 0) return;
  for (auto& [key, server_query] : server_queries_) {
    for (auto* const numbers : {&server_query.queries, &server_query.listeners})
      std::erase_if(*numbers, [&](std::uint64_t number) { return queries_.at(number).peer == peer; });
  }
  std::erase_if(queries_, [&](const auto& entry) { return entry.second.peer == peer; });
}

void ServerQueries::tick(TimePoint now) {
  std::vector<Key> over;
  for (const auto& [key, server_query] : server_queries_) {
    if (now >= server_query.deadline) over.push_back(key);
  }
  for (const Key& key : over)
    finish(key);
  std::vector<std::uint64_t> impatient;
  for (const auto& [number, query] : queries_) {
    if (now >= query.deadline) impatient.push_back(number);
  }
  for (const std::uint64_t number : impatient)
    conclude(number);
}

ServerQueries::Part ServerQueries::part_of(const Key& key, const Query& query) const {
  const ServerQuery& server_query = server_queries_.at(key);
  Part part{key.first, {}, server_query.lost};
  OpenRoundList open = server_query.open;
  part.open = open.take(0, query.query.older_than_ms);
  for (const auto& [request, server] : server_query.outstanding)
    part.silent.push_back(server);
  return part;
}

std::shared_ptr<const OpenRounds> ServerQueries::context_of(const Key& key) {
  ServerQuery& server_query = server_queries_.at(key);
  if (server_query.context != nullptr) return server_query.context;
  OpenRoundList open = server_query.open;
  // What the others have is left out.
  open.add_more(static_cast<std::uint32_t>(server_query.outstanding.size() + server_query.lost.size()));
  server_query.context = std::make_shared<const OpenRounds>(open.take(0));
  return server_query.context;
}

// All have answered, or have had their time.
void ServerQueries::finish(const Key& key) {
  const auto it = server_queries_.find(key);
  std::set<std::uint64_t> over;
  const auto context = it->second.listeners.empty() ? nullptr : context_of(key);
  for (const std::uint64_t number : it->second.listeners) {
    Query& query = queries_.at(number);
    query.listening.erase(key);
    query.context[key.first] = context;
    if (is_over(query)) over.insert(number);
  }
  for (const std::uint64_t number : it->second.queries) {
    Query& query = queries_.at(number);
    query.parts.push_back(part_of(key, query));
    query.waiting.erase(key);
    if (is_over(query)) over.insert(number);
  }
  for (const auto& [request, server] : it->second.outstanding)
    of_request_.erase(request);
  server_queries_.erase(it);
  for (const std::uint64_t number : over)
    conclude(number);
}

// With what is known by now.
void ServerQueries::conclude(std::uint64_t number) {
  const auto it = queries_.find(number);
  Query& query = it->second;
  for (const Key& key : query.waiting) {
    query.parts.push_back(part_of(key, query));
    server_queries_.at(key).queries.erase(number);
  }
  for (const Key& key : query.listening) {
    query.context[key.first] = context_of(key);
    server_queries_.at(key).listeners.erase(number);
  }
  if (--open_.at(query.peer) == 0) open_.erase(query.peer);
  answered_.push_back({query.peer, std::move(query.query), std::move(query.parts), std::move(query.context)});
  queries_.erase(it);
}

}  // namespace bps
