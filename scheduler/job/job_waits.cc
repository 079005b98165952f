// What a job waits for, and how it stands: for questions.
#include <algorithm>

#include "proto/wire/limits.h"
#include "proto/wire/timing.h"
#include "scheduler/job/job.h"
#include "scheduler/text.h"

namespace bps {
namespace {

void limit(std::vector<Party>& parties) {
  if (parties.size() > kMaxMissingNamed) parties.resize(kMaxMissingNamed);
}

bool asks_for(const AskWaits& question, Subject subject) {
  return question.subject == Subject::everything || question.subject == subject;
}

}  // namespace

Party Job::party(Rank rank, const Silence& silence) const {
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

void Job::note_waits(TimePoint now) {
  noted_at_ = now;
  if (std::exchange(has_new_loss_, false)) {
    for (auto& [rank, worker] : run_.membership.workers()) {
      if (!worker.loss.empty() && !worker.lost_at) worker.lost_at = now;
    }
  }
  using What = std::optional<std::uint64_t>;
  barrier_since_.note(barriers_.open() ? What(barriers_.done()) : std::nullopt, now);
  move_since_.note(handoff_.is_moving() ? What(lanes_.epoch().value) : std::nullopt, now);
  opening_since_.note(phase_ == Phase::opening ? What(0) : std::nullopt, now);
  const bool pending = tensors_.is_open() && tensors_.table().first_unconfirmed() != 0;
  unconfirmed_since_.note(pending ? What(tensors_.table().first_unconfirmed()) : std::nullopt, now);
}

std::uint64_t Job::age_ms(const Since& since, TimePoint now) const {
  return since.what ? milliseconds_of(now - since.since) : 0;
}

Wait Job::wait(WaitKind kind, std::vector<Party> missing, std::size_t expected) const {
  Wait wait;
  wait.job = name();
  wait.kind = kind;
  wait.expected = static_cast<std::uint32_t>(expected);
  wait.absent = static_cast<std::uint32_t>(std::min(missing.size(), expected));
  limit(missing);
  wait.missing = std::move(missing);
  return wait;
}

std::vector<Wait> Job::waits(TimePoint now, const AskWaits& question, const Silence& silence) const {
  std::vector<Wait> out;
  if (ended()) return out;
  if (phase_ == Phase::gathering) {
    std::vector<Party> missing;
    for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
      Party who = party(rank, silence);
      if (who.state != PartyState::alive) missing.push_back(std::move(who));
    }
    out.push_back(wait(WaitKind::join, std::move(missing), run_.membership.world_size()));
    out.back().age_ms = milliseconds_of(now - run_.membership.created_at());
  }
  if (phase_ == Phase::opening) {
    std::vector<Party> missing;
    for (const auto& [request, server] : opening_)
      missing.push_back(run_.servers.party(server, silence));
    out.push_back(wait(WaitKind::start, std::move(missing), servers_.used().size()));
    out.back().age_ms = age_ms(opening_since_, now);
  }
  if (barriers_.open() && asks_for(question, Subject::barrier)) {
    std::vector<Party> missing;
    for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
      if (barriers_.arrived(rank) <= barriers_.done()) missing.push_back(party(rank, silence));
    }
    out.push_back(wait(WaitKind::barrier, std::move(missing), barriers_.there()));
    out.back().number = barriers_.done();
    out.back().age_ms = age_ms(barrier_since_, now);
  }
  if (question.subject == Subject::barrier) return out;
  for (const CutLink& link : links_.list(now))
    out.push_back(wait_of(link, silence));
  for (Wait& more : unconfirmed(now, question, silence))
    out.push_back(std::move(more));
  return out;
}

// What servers have to confirm.
std::vector<Wait> Job::unconfirmed(TimePoint now, const AskWaits& question, const Silence& silence) const {
  std::vector<Wait> out;
  if (handoff_.is_moving()) {
    std::vector<Party> missing;
    for (const ServerId id : servers_.used()) {
      const ServerRecord* const server = run_.servers.find(id);
      if (server == nullptr) continue;
      if (handoff_.waits_for(*server)) missing.push_back(run_.servers.party(id, silence));
    }
    out.push_back(wait(WaitKind::move, std::move(missing), servers_.used().size()));
    out.back().age_ms = age_ms(move_since_, now);
  }
  if (!tensors_.is_open()) return out;
  const std::optional<TensorId> asked =
      question.tensor.empty() ? std::nullopt : tensors_.table().find(question.tensor);
  for (const TensorTable::Unconfirmed& batch : tensors_.table().unconfirmed()) {
    if (out.size() == kMaxWaitsNamed) break;
    const bool meant = std::find(batch.tensors.begin(), batch.tensors.end(), asked) != batch.tensors.end();
    if (!meant && !question.tensor.empty()) continue;
    std::vector<Party> missing;
    for (const ServerId server : batch.waiting)
      missing.push_back(run_.servers.party(server, silence));
    out.push_back(wait(WaitKind::declaration, std::move(missing), batch.servers));
    if (const auto* tensor = tensors_.table().declaration_of(meant ? *asked : batch.tensors.front()))
      out.back().tensor = tensor->name;
    if (unconfirmed_since_.what == batch.number) out.back().age_ms = age_ms(unconfirmed_since_, now);
  }
  return out;
}

Wait Job::wait_of(const OpenRound& open, const Silence& silence) const {
  std::vector<Party> missing;
  for (const Rank rank : open.missing)
    missing.push_back(party(rank, silence));
  Wait out = wait(open.resuming ? WaitKind::resume : WaitKind::round, std::move(missing), open.expected);
  out.absent = open.absent;
  out.number = open.resuming ? 0 : open.round.value;
  out.age_ms = open.age_ms;
  out.partitions = open.partitions;
  if (const auto* tensor = tensors_.is_open() ? tensors_.table().declaration_of(open.tensor) : nullptr)
    out.tensor = tensor->name;
  return out;
}

std::optional<Wait> Job::wait_of(ServerId silent, const Silence& silence) const {
  const std::uint32_t partitions = !tensors_.is_open() ? 0 : tensors_.table().partitions_at(silent);
  if (partitions == 0 || ended()) return std::nullopt;
  const Party server = run_.servers.party(silent, silence);
  const bool is_heard = server.silent_ms < milliseconds_of(kMaxQuestionPatience);
  if (is_heard && server.state == PartyState::alive) return std::nullopt;  // it is only slow
  Wait out = wait(WaitKind::server, {server}, 1);
  out.partitions = partitions;
  out.age_ms = server.silent_ms;
  return out;
}

JobState Job::state(TimePoint now, const Silence& silence) const {
  JobState out;
  out.job = name();
  out.job_run = run_.id;
  switch (phase_) {
    case Phase::gathering: out.phase = "gathering"; break;
    case Phase::opening: out.phase = "opening"; break;
    case Phase::running: out.phase = handoff_.is_moving() ? "moving partitions" : "running"; break;
    case Phase::recovering: out.phase = "recovering"; break;
    case Phase::ended: out.phase = "ended"; break;
  }
  out.epoch = lanes_.epoch();
  out.generation = losses_.generation();
  out.age_ms = milliseconds_of(now - run_.membership.created_at());
  out.world_size = run_.membership.world_size();
  out.servers = static_cast<std::uint32_t>(servers_.used().size());
  for (Rank rank{0}; rank.value < run_.membership.world_size(); rank = rank.next()) {
    Party who = party(rank, silence);
    if (who.state != PartyState::absent && who.state != PartyState::gone) ++out.joined;
    if (who.state == PartyState::suspected) ++out.suspected;
    if (who.state == PartyState::left) ++out.left;
    if (who.state != PartyState::alive) out.absentees.push_back(std::move(who));
  }
  limit(out.absentees);
  out.cut_links = links_.list(now);
  if (!tensors_.is_open()) return out;
  out.tensors = static_cast<std::uint32_t>(tensors_.table().size());
  out.bytes = tensors_.table().bytes();
  return out;
}

}  // namespace bps
