#include "scheduler/job/job_waits.h"

#include <algorithm>

#include "proto/wire/limits.h"
#include "proto/wire/timing.h"
#include "scheduler/text.h"

namespace bps {
namespace {

void limit(std::vector<Party>& parties) {
  if (parties.size() > kMaxMissingNamed) parties.resize(kMaxMissingNamed);
}

bool asks_for(const AskWaits& query, Subject subject) {
  return query.subject == Subject::everything || query.subject == subject;
}

}  // namespace

Party JobWaits::party(Rank rank, const Silence& silence) const {
  Party party;
  party.number = rank.value;
  const auto found = run_.membership.workers().find(rank);
  if (found == run_.membership.workers().end()) {
    party.state = PartyState::absent;
    return party;
  }
  const Worker& worker = found->second;
  party.host = worker.host;
  std::optional<Duration> silent = silence(worker.incarnation);
  if (worker.lost_at) silent = std::max(noted_at_ - *worker.lost_at, Duration::zero());
  party.silent_ms = milliseconds_of(silent.value_or(Duration::zero()));
  party.state = !worker.loss.empty() ? PartyState::gone
                : worker.left        ? PartyState::left
                : worker.suspected() ? PartyState::suspected
                                     : PartyState::alive;
  return party;
}

void JobWaits::tick(TimePoint now) {
  noted_at_ = now;
  if (std::exchange(has_new_loss_, false)) {
    for (auto& [rank, worker] : run_.membership.workers()) {
      if (!worker.loss.empty() && !worker.lost_at) worker.lost_at = now;
    }
  }
  using What = std::optional<std::uint64_t>;
  barrier_since_.note(parts_.barriers.open() ? What(parts_.barriers.done()) : std::nullopt, now);
  arrival_since_.note(parts_.barriers.changes(), now);
  move_since_.note(parts_.handoff.is_moving() ? What(parts_.lanes.epoch().value) : std::nullopt, now);
  opening_since_.note(run_.phase == JobPhase::opening ? What(0) : std::nullopt, now);
  const bool pending = parts_.tensors.is_open() && parts_.tensors.table().first_unconfirmed() != 0;
  unconfirmed_since_.note(pending ? What(parts_.tensors.table().first_unconfirmed()) : std::nullopt, now);
}

std::uint64_t JobWaits::age_ms(const Since& since, TimePoint now) const {
  return since.what ? milliseconds_of(now - since.since) : 0;
}

Wait JobWaits::wait(WaitKind kind, std::vector<Party> missing, std::size_t expected) const {
  Wait wait;
  wait.job = run_.name();
  wait.kind = kind;
  wait.expected = static_cast<std::uint32_t>(expected);
  wait.absent = static_cast<std::uint32_t>(std::min(missing.size(), expected));
  limit(missing);
  wait.missing = std::move(missing);
  return wait;
}

std::vector<Wait> JobWaits::waits(TimePoint now, const AskWaits& query, std::optional<Rank> asker,
                                  const RoundCycles& cycles, const Silence& silence) const {
  std::vector<Wait> out;
  if (run_.phase == JobPhase::ended) return out;
  if (run_.phase == JobPhase::gathering) {
    std::vector<Party> missing;
    for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
      Party who = party(rank, silence);
      if (who.state != PartyState::alive) missing.push_back(std::move(who));
    }
    out.push_back(wait(WaitKind::join, std::move(missing), run_.membership.world_size()));
    out.back().age_ms = milliseconds_of(now - run_.membership.created_at());
  }
  if (run_.phase == JobPhase::opening) {
    std::vector<Party> missing;
    for (const auto& [request, server] : parts_.gathering.unconfirmed())
      missing.push_back(run_.servers.party(server, silence));
    out.push_back(wait(WaitKind::start, std::move(missing), parts_.servers.used().size()));
    out.back().age_ms = age_ms(opening_since_, now);
  }
  // Who waits for a tensor hears of it if ranks are there that the tensor waits for in the end.
  const bool is_asked =
      asks_for(query, Subject::barrier) || (query.subject == Subject::tensor && cycles.barrier_age_ms() > 0);
  if (parts_.barriers.open() && is_asked) out.push_back(wait_of_barrier(now, cycles, silence));
  if (query.subject == Subject::barrier) return out;
  if (query.subject == Subject::drop) return drops(query.tensor, asker, silence);
  for (const CutLink& link : parts_.links.list(now))
    out.push_back(wait_of(link, silence));
  for (Wait& more : unconfirmed(now, query, asker, silence))
    out.push_back(std::move(more));
  return out;
}

// What servers have to confirm.
std::vector<Wait> JobWaits::unconfirmed(TimePoint now, const AskWaits& query, std::optional<Rank> asker,
                                        const Silence& silence) const {
  std::vector<Wait> out;
  if (parts_.handoff.is_moving()) {
    std::vector<Party> missing;
    for (const ServerId id : parts_.servers.used()) {
      const ServerRecord* const server = run_.servers.find(id);
      if (server == nullptr) continue;
      if (parts_.handoff.waits_for(*server)) missing.push_back(run_.servers.party(id, silence));
    }
    out.push_back(wait(WaitKind::move, std::move(missing), parts_.servers.used().size()));
    out.back().age_ms = age_ms(move_since_, now);
  }
  if (!parts_.tensors.is_open()) return out;
  for (const TensorTable::Unconfirmed& batch : parts_.tensors.table().unconfirmed()) {
    if (out.size() == kMaxWaitsNamed) break;
    const auto is_meant = [&](TensorId tensor) {
      return query.tensor.empty() || (name_of(tensor) == query.tensor && is_shared(tensor, asker));
    };
    const auto meant = std::find_if(batch.tensors.begin(), batch.tensors.end(), is_meant);
    if (meant == batch.tensors.end()) continue;
    std::vector<Party> missing;
    for (const ServerId server : batch.waiting)
      missing.push_back(run_.servers.party(server, silence));
    out.push_back(wait(WaitKind::declaration, std::move(missing), batch.servers));
    out.back().tensor = name_of(*meant);
    if (unconfirmed_since_.what == batch.number) out.back().age_ms = age_ms(unconfirmed_since_, now);
  }
  return out;
}

// Of all tensors with this name that somebody has dropped.
std::vector<Wait> JobWaits::drops(const std::string& name, std::optional<Rank> asker,
                                  const Silence& silence) const {
  std::vector<Wait> out;
  if (!parts_.tensors.is_open()) return out;
  const TensorCatalog& catalog = parts_.tensors.catalog();
  std::vector<TensorId> dropped;
  catalog.each_named(name, [&](TensorId id) {
    if (!catalog[id].dropped.empty() && is_shared(id, asker)) dropped.push_back(id);
  });
  std::sort(dropped.begin(), dropped.end());
  for (const TensorId id : dropped) {
    if (out.size() == kMaxWaitsNamed) break;
    const TensorCatalog::Tensor& tensor = catalog[id];
    std::vector<Party> missing;
    std::size_t expected = tensor.ranks.size(static_cast<std::uint32_t>(run_.membership.workers().size()));
    if (tensor.state == TensorCatalog::State::ending) {
      for (const ServerId server : parts_.tensors.drops().freeing(id))
        missing.push_back(run_.servers.party(server, silence));
      expected = catalog.servers_of(tensor).size();
    } else {
      for (const auto& [rank, worker] : run_.membership.workers()) {
        if (!worker.left && !catalog.has_dropped(id, rank)) missing.push_back(party(rank, silence));
      }
    }
    out.push_back(wait(WaitKind::drop, std::move(missing), expected));
    out.back().tensor = name;
  }
  return out;
}

RoundCycles JobWaits::cycles_of(TimePoint now, const OpenRounds& rounds) const {
  const auto find_tensor = [this](TensorId tensor) -> RoundCycles::Tensor {
    if (!parts_.tensors.is_open()) return {};
    const TensorCatalog& catalog = parts_.tensors.catalog();
    const TensorDeclaration* const declaration = catalog.declaration_of(tensor);
    if (declaration == nullptr) return {};
    return {catalog.partitions_of(*declaration), catalog[tensor].ranks};
  };
  return {rounds, find_tensor, open_barrier(now)};
}

// What servers said of rounds is older than the barriers here. So a rank that has just arrived makes it new:
// it may have pushed before.
std::optional<OpenBarrier> JobWaits::open_barrier(TimePoint now) const {
  const Barriers& barriers = parts_.barriers;
  if (!barriers.open()) return std::nullopt;
  OpenBarrier open;
  for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
    if (barriers.arrived(rank) <= barriers.done()) open.missing.push_back(rank);
    if (barriers.is_lost(rank)) open.lost.push_back(rank);
  }
  if (arrival_since_.what == barriers.changes()) open.age_ms = age_ms(arrival_since_, now);
  return open;
}

Wait JobWaits::wait_of_barrier(TimePoint now, const RoundCycles& cycles, const Silence& silence) const {
  std::vector<Party> missing;
  for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
    if (parts_.barriers.arrived(rank) > parts_.barriers.done()) continue;
    Party& party = missing.emplace_back(this->party(rank, silence));
    const bool is_named = missing.size() <= kMaxMissingNamed;
    if (is_named && party.state == PartyState::alive) note_round(party, cycles.where_waits(rank));
  }
  Wait out = wait(WaitKind::barrier, std::move(missing), parts_.barriers.there());
  out.number = parts_.barriers.done();
  out.age_ms = age_ms(barrier_since_, now);
  out.cycle_ms = cycles.barrier_age_ms();
  return out;
}

// Empty: it has none yet.
std::string JobWaits::name_of(TensorId tensor) const {
  const auto* const declaration =
      parts_.tensors.is_open() ? parts_.tensors.catalog().declaration_of(tensor) : nullptr;
  return declaration == nullptr ? "" : declaration->name;
}

void JobWaits::note_cause(Party& party, const OpenRound& open, const RoundCycles& cycles) const {
  const Rank rank{party.number};
  if (party.state != PartyState::alive || name_of(open.tensor).empty()) return;
  party.undeclared = !parts_.tensors.catalog().has_declared(open.tensor, rank);
  note_round(party, cycles.where_waits(rank, open));
}

void JobWaits::note_round(Party& party, const OpenRound* round) const {
  if (round == nullptr) return;
  party.waits_for = name_of(round->tensor);
  party.waits_for_round = round->round.value;
}

Wait JobWaits::wait_of(const OpenRound& open, const RoundCycles& cycles, const Silence& silence) const {
  std::vector<Party> missing;
  for (const Rank rank : open.missing) {
    missing.push_back(party(rank, silence));
    if (open.stage == RoundStage::push) note_cause(missing.back(), open, cycles);
  }
  constexpr WaitKind kKinds[kRoundStageCount] = {WaitKind::round, WaitKind::resume, WaitKind::store};
  Wait out = wait(kKinds[static_cast<std::size_t>(open.stage)], std::move(missing), open.expected);
  out.absent = open.absent;
  out.number = open.stage == RoundStage::resume ? 0 : open.round.value;
  out.age_ms = open.age_ms;
  out.partitions = open.partitions;
  out.tensor = name_of(open.tensor);
  if (open.stage == RoundStage::push) out.cycle_ms = cycles.age_ms(open);
  return out;
}

std::optional<Wait> JobWaits::wait_of(ServerId silent, const Silence& silence) const {
  const std::uint32_t partitions =
      !parts_.tensors.is_open() ? 0 : parts_.tensors.catalog().partitions_at(silent);
  if (partitions == 0 || run_.phase == JobPhase::ended) return std::nullopt;
  const Party server = run_.servers.party(silent, silence);
  const bool is_heard = server.silent_ms < milliseconds_of(kMaxQueryPatience);
  if (is_heard && server.state == PartyState::alive) return std::nullopt;  // it is only slow
  Wait out = wait(WaitKind::server, {server}, 1);
  out.partitions = partitions;
  out.age_ms = server.silent_ms;
  return out;
}

JobState JobWaits::state(TimePoint now, const Silence& silence) const {
  JobState out;
  out.job = run_.name();
  out.job_run = run_.id;
  switch (run_.phase) {
    case JobPhase::gathering: out.phase = "gathering"; break;
    case JobPhase::opening: out.phase = "opening"; break;
    case JobPhase::running: out.phase = parts_.handoff.is_moving() ? "moving partitions" : "running"; break;
    case JobPhase::recovering: out.phase = "recovering"; break;
    case JobPhase::ended: out.phase = "ended"; break;
  }
  out.epoch = parts_.lanes.epoch();
  out.generation = parts_.losses.generation();
  out.age_ms = milliseconds_of(now - run_.membership.created_at());
  out.world_size = run_.membership.world_size();
  out.servers = static_cast<std::uint32_t>(parts_.servers.used().size());
  for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
    Party who = party(rank, silence);
    if (who.state != PartyState::absent && who.state != PartyState::gone) ++out.joined;
    if (who.state == PartyState::suspected) ++out.suspected;
    if (who.state == PartyState::left) ++out.left;
    if (who.state != PartyState::alive) out.absentees.push_back(std::move(who));
  }
  limit(out.absentees);
  out.cut_links = parts_.links.list(now);
  if (!parts_.tensors.is_open()) return out;
  out.tensors = static_cast<std::uint32_t>(parts_.tensors.catalog().all().size());
  out.bytes = parts_.tensors.catalog().bytes();
  return out;
}

Wait JobWaits::wait_of(const CutLink& link, const Silence& silence) const {
  Wait out = wait(WaitKind::link, {party(link.rank, silence), run_.servers.party(link.server, silence)}, 1);
  out.age_ms = link.age_ms;
  return out;
}

}  // namespace bps
