#include "scheduler/handoff/handoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/wire/limits.h"
#include "scheduler/text.h"

namespace bps {

// Servers that have come since take their part of new tensors.
Status Handoff::welcome_servers() {
  for (const auto& [id, server] : run_.servers.all()) {
    if (servers_.can_come(server)) return move(std::nullopt, fmt::format("{} has come", to_string(server)));
  }
  return {};
}

Status Handoff::server_drains(const ServerRecord& server) {
  if (!servers_.uses(server.id) || is_leaving(server.id)) return {};
  // What is lost finds its place first.
  if (refusal(server.id) != nullptr || (move_ && !is_drain_only()) || links_.any_cut()) return {};
  if (const auto why = obstacle(server.id)) {
    run_.outbox.log(LogLevel::info, fmt::format("{} of job {} drains when the job ends: {}",
                                                to_string(server), run_.name(), why->message));
    tensors_.catalog().set_lanes(place());
    return {};
  }
  return move(std::nullopt, fmt::format("{} of job {} drains", to_string(server), run_.name()));
}

// Why what the server has cannot go to another one, if so.
std::optional<Error> Handoff::obstacle(ServerId server) const {
  const TensorDeclaration* held = tensors_.catalog().held_by(server);
  if (held == nullptr) return std::nullopt;
  if (held->mode == Mode::async && departures_.any_unsettled()) return unsettled_error(*held);
  const Worker* careless = run_.membership.without_retain();
  if (careless == nullptr) return std::nullopt;
  return make_error(ErrorCode::peer_lost,
                    fmt::format("{} runs without retain, so nobody can take its place", to_string(*careless)),
                    "leave retain on (BPS_RETAIN=1) to survive the loss of a server; start the job again");
}

Error Handoff::unsettled_error(const TensorDeclaration& tensor) const {
  return make_error(
      ErrorCode::peer_lost,
      fmt::format("rank {} had closed before the others had what only it may have had of the "
                  "asynchronous tensor '{}'",
                  departures_.unsettled().value, tensor.name),
      "let all ranks close at about the same time, or with a longer timeout; start the job again");
}

Status Handoff::drain_again(const ServerRecord& server) {
  return refusals_.erase(server.id) != 0 ? server_drains(server) : Status{};
}

// It stands until somebody comes who was not asked.
const Handoff::Refusal* Handoff::refusal(ServerId server) const {
  const auto found = refusals_.find(server);
  if (found == refusals_.end()) return nullptr;
  const auto& all = run_.servers.all();
  const bool is_over = std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    const bool is_new = found->second.asked.count(entry.first) == 0 && !servers_.is_unwilling(entry.first);
    return is_new && entry.second.usable();
  });
  return is_over ? nullptr : &found->second;
}

// Servers whose partitions can go to others while they live: because they are given up, or by their own wish.
// Not by their own wish while something is lost, or while it is not decided which end of a cut link is.
std::set<ServerId> Handoff::leaving(bool is_loss) const {
  std::set<ServerId> out;
  for (const ServerId id : servers_.used()) {
    const ServerRecord* server = run_.servers.find(id);
    if (server == nullptr) continue;
    const bool drains = server->draining && !is_loss && refusal(id) == nullptr && !links_.any_cut();
    if ((drains || servers_.is_unwilling(id)) && !obstacle(id)) out.insert(id);
  }
  return out;
}

// Somebody stays, or may come, to whom partitions can go. What is lost may go to one that drains.
bool Handoff::has_target(std::optional<ServerId> gone, const std::set<ServerId>& leaving,
                         bool is_loss) const {
  // One whose connection is lost stays until it is dead; then it is its turn.
  const auto& all = run_.servers.all();
  return std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    const auto& [id, server] = entry;
    if (id == gone) return false;
    if (!servers_.uses(id)) {
      const bool has_room = lanes_.size() + server.shards <= kMaxLanesPerJob;
      return server.usable() && !servers_.is_unwilling(id) && has_room;
    }
    const bool gives_away = leaving.count(id) != 0 || (move_ && move_->drained.count(id) != 0);
    return !gives_away && !is_full(id) && (is_loss || !server.draining);
  });
}

Error Handoff::nobody_takes(const std::string& reason) const {
  const std::string before = move_ ? move_->reason + "; " : "";
  if (move_ && !move_->full.empty()) {
    return make_error(ErrorCode::out_of_memory, before + reason + "; no other server has room for it",
                      "run more servers, or give them more memory (--memory-max); start the job again");
  }
  return make_error(ErrorCode::peer_lost, before + reason + "; no other server is there to take its place",
                    "run a second server, or start one and the job again; exit code 75 asks an "
                    "orchestrator to do that");
}

// Partitions of servers that are gone or drain go to the others; servers that have come meanwhile take part
// from now on.
Status Handoff::move(std::optional<ServerId> gone, const std::string& reason) {
  const bool is_lost = gone && has_what_is_nowhere_else(*gone);
  if (is_lost) put_drains_off();  // first: what it was only to get is not lost with it
  if (const auto why = is_lost ? obstacle(*gone) : std::nullopt)
    return make_error(why->code, reason + "; " + why->message, why->advice);
  const bool is_loss = is_lost || (move_ && !is_drain_only());
  const std::set<ServerId> leave = leaving(is_loss);
  if (has_target(gone, leave, is_loss)) return begin_move(gone, reason, leave, lanes_.size());
  if (is_loss) return nobody_takes(reason);
  if (!gone) {
    std::set<ServerId> asked;
    for (const auto& [id, server] : run_.servers.all()) {
      if (server.usable()) asked.insert(id);
    }
    keep(leave, "no other server is there to take what it has", asked);
    return {};
  }
  call_off(make_error(ErrorCode::peer_lost, reason));
  return begin_move(gone, reason, {}, lanes_.size());  // what was being declared at it
}

// A newcomer has only what it is to get from others, and tensors that were declared since it came.
bool Handoff::has_what_is_nowhere_else(ServerId server) const {
  return !move_ || !is_newcomer(server) || tensors_.catalog().has_ready_beside(server, move_->before);
}

// It dies unsettled: what only it may have of asynchronous tensors their next owners do not get.
Status Handoff::source_died() {
  if (!move_) return {};
  put_drains_off();
  const TensorDeclaration* lost = is_drain_only() ? nullptr : tensors_.catalog().async_among(move_->touched);
  if (lost == nullptr) return {};
  const Error why = unsettled_error(*lost);
  return make_error(why.code, move_->reason + "; " + why.message, why.advice);
}

// What servers own that are `gone` or `leaving`, or what they have `refused`, goes to others. `known_lanes`:
// workers know the first ones.
Status Handoff::begin_move(std::optional<ServerId> gone, const std::string& reason,
                           const std::set<ServerId>& leaving, std::size_t known_lanes,
                           const std::set<PartitionId>& refused) {
  const auto stays = [&](ServerId id) { return id != gone && leaving.count(id) == 0 && servers_.uses(id); };
  lanes_.begin_epoch();
  if (!move_) {
    move_ = Move();
    move_->known_lanes = known_lanes;
  }
  move_->is_loss = move_->is_loss || (gone && has_what_is_nowhere_else(*gone));
  move_->reason = move_->reason.empty() ? reason : move_->reason + "; " + reason;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (i >= move_->known_lanes && !servers_.uses(lanes_[i].server) && lanes_[i].server != gone) continue;
    if (lanes_.is_retired(i) || stays(lanes_[i].server)) continue;
    lanes_.retire(i);
    move_->closed.push_back(LaneIndex{static_cast<std::uint32_t>(i)});
    if (lanes_[i].server != gone) move_->drained.insert(lanes_[i].server);
  }
  lanes_.add(servers_.used(), servers_.unwilling(), true);
  if (lanes_.size() > kMaxLanesPerJob) {
    return make_error(ErrorCode::peer_lost, reason + "; the job has had too many lanes for another move",
                      kRestartAdvice);
  }
  for (const ServerId left : leaving) {
    refusals_.erase(left);
    move_->is_loss = move_->is_loss || servers_.is_unwilling(left);
    if (ServerRecord* server = run_.servers.find(left); server != nullptr && server->draining)
      server->moved_partitions += tensors_.catalog().partitions_at(left);
  }
  TensorCatalog::Relocation relocation = tensors_.table().relocate(place(), gone, refused);
  for (std::size_t i = move_->known_lanes; i < lanes_.size(); ++i) {
    if (!lanes_.is_retired(i) && !servers_.uses(lanes_[i].server))
      move_->waiting.insert(servers_.open_at(lanes_[i].server, lanes_.epoch()));
  }
  for (const PartitionMove& moved : relocation.moves)
    move_->partitions[moved.partition] = moved.owner;
  move_->before.merge(relocation.before);
  move_->touched.insert(relocation.touched.begin(), relocation.touched.end());
  std::set<ServerId> told = leaving;
  for (TensorCatalog::Slices& slices : relocation.slices) {
    told.insert(slices.server);
    ask(slices.server, std::move(slices.message));
  }
  // Nobody may hear from a worker of an epoch that it does not know.
  for (const ServerId server : servers_.used()) {
    if (told.count(server) == 0) ask(server, DeclareSlices{0, run_.id, {}, false, {}});
  }
  run_.outbox.log(
      gone || move_->is_loss ? LogLevel::warn : LogLevel::info,
      fmt::format("{}; {} partitions move, epoch {}", reason, relocation.moves.size(), lanes_.epoch().value));
  send_tensors();
  return {};
}

void Handoff::ask(ServerId server, DeclareSlices slices) {
  slices.epoch = lanes_.epoch();
  std::set<PartitionId> partitions;
  for (const TensorSlices& tensor : slices.tensors) {
    for (const PartitionSlice& slice : tensor.partitions)
      partitions.insert(slice.partition);
  }
  const std::uint64_t request = run_.servers.ask(server, std::move(slices));
  move_->waiting.insert(request);
  if (!partitions.empty()) move_->asked.emplace(request, std::move(partitions));
}

// It has no room for its part of what is lost: that goes to others, to those that drain, too.
Status Handoff::has_no_room(ServerId full, std::uint64_t request, const Error& why) {
  move_->full.insert(full);
  if (!has_target({}, {}, true)) return nobody_takes(why.message);
  std::set<PartitionId> refused;
  for (const PartitionId partition : move_->asked[request]) {
    const auto tensor = move_->touched.find(partition);
    if (tensor == move_->touched.end()) return why;
    // It may have gone to another one meanwhile.
    const LaneIndex owner = tensors_.catalog().owner_of(tensor->second, partition);
    if (lanes_[owner.value].server == full) refused.insert(partition);
  }
  return begin_move({}, why.message, {}, lanes_.size(), refused);
}

// Workers do not know it yet, or no more: since this move began they have no lane to it.
bool Handoff::is_newcomer(ServerId server) const {
  const std::vector<LaneIndex>& closed = move_->closed;
  for (std::size_t i = 0; i < move_->known_lanes; ++i) {
    if (lanes_[i].server != server) continue;
    const LaneIndex lane{static_cast<std::uint32_t>(i)};
    if (!lanes_.is_retired(i) || std::find(closed.begin(), closed.end(), lane) != closed.end()) return false;
  }
  return true;
}

// It has come and cannot take part: what would have been its share goes elsewhere, as if it had gone again.
Status Handoff::go_on_without(const ServerRecord& server, const Error& why) {
  const ServerId id = server.id;
  const std::string text =
      fmt::format("{} takes no part in job {}: {}", to_string(server), run_.name(), why.message);
  servers_.refuse(id);
  let_go(server);
  return move(id, text);
}

// A server has no room for its part of what others drain, and nobody is to lose anything for a drain.
void Handoff::call_off(const Error& why) {
  move_->reason += "; called off: " + why.message;
  std::set<ServerId> asked;
  for (const auto& [id, server] : run_.servers.all())
    asked.insert(id);
  keep(move_->drained, why.message, asked);
  put_back();
}

// They drain, and nobody takes what they have, until somebody comes who was not `asked`.
void Handoff::keep(const std::set<ServerId>& drained, const std::string& why,
                   const std::set<ServerId>& asked) {
  for (const ServerId id : drained) {
    refusals_[id] = Refusal{why, asked};
    run_.outbox.log(LogLevel::warn,
                    fmt::format("{} stays in job {} until another server comes or the job ends: {}",
                                to_string(*run_.servers.find(id)), run_.name(), why));
    run_.outbox.drain_refused(id);
  }
}

// Something is lost: whoever drains may be needed, and is asked again when that has found its place.
void Handoff::put_drains_off() {
  if (!move_ || !is_drain_only() || move_->drained.empty()) return;
  for (const ServerId id : move_->drained)
    run_.outbox.drain_refused(id);
  put_back();
}

// What servers that drain were to give away stays with them, before workers know of it.
void Handoff::put_back() {
  lanes_.begin_epoch();
  const std::set<ServerId> stay = std::exchange(move_->drained, {});
  // Those of newcomers that have taken no part are closed, or stay so.
  for (std::size_t i = move_->known_lanes; i < lanes_.size(); ++i) {
    if (lanes_.is_retired(i) || servers_.uses(lanes_[i].server)) continue;
    lanes_.retire(i);
    move_->closed.push_back(LaneIndex{static_cast<std::uint32_t>(i)});
  }
  std::erase_if(move_->closed, [&](LaneIndex lane) {
    const bool reopens = servers_.uses(lanes_[lane.value].server);
    if (reopens) lanes_.reopen(lane.value);
    return reopens;
  });
  const auto touched = std::exchange(move_->touched, {});
  const std::vector<TensorId> failed = tensors_.catalog().call_off(std::exchange(move_->before, {}), place());
  for (const ServerId id : stay) {
    ServerRecord& server = *run_.servers.find(id);
    server.moved_partitions -=
        std::min<std::uint64_t>(server.moved_partitions, tensors_.catalog().partitions_at(id));
  }
  move_->partitions.clear();
  for (const ServerId id : servers_.used()) {
    forget_slices(*run_.servers.find(id));
    DropTensors unwanted{0, run_.id, failed, {}};
    for (const auto& [partition, tensor] : touched) {
      if (lanes_[tensors_.catalog().owner_of(tensor, partition).value].server != id)
        unwanted.partitions.push_back(partition);
    }
    tensors_.drop(id, std::move(unwanted));
    ask(id, DeclareSlices{0, run_.id, {}, false, {}});
  }
}

// What it was asked to take it need not take: should it have to be asked again, then for nothing.
void Handoff::forget_slices(ServerRecord& server) {
  for (auto& [number, asked] : server.unacknowledged) {
    const auto* slices = std::get_if<DeclareSlices>(asked.message.get());
    if (slices == nullptr || move_->waiting.count(number) == 0) continue;
    move_->called_off.insert(number);
    asked.message = std::make_shared<const Message>(DeclareSlices{number, run_.id, slices->epoch, false, {}});
  }
}

// It lives, but the run does not use it any more and waits for nothing that it was asked.
void Handoff::let_go(const ServerRecord& server) {
  forget_requests(server);
  servers_.let_go(server);
}

void Handoff::forget_requests(const ServerRecord& server) {
  tensors_.forget(server.id);
  if (!move_) return;
  move_->drained.erase(server.id);
  for (const auto& [request, asked] : server.unacknowledged)
    move_->waiting.erase(request);
}

Status Handoff::server_died(const ServerRecord& server, const std::string& text) {
  forget_requests(server);
  return move(server.id, text);
}

Status Handoff::retry_drains() {
  for (const ServerId id : servers_.used()) {
    const ServerRecord* server = run_.servers.find(id);
    if (server == nullptr || !server->draining || server->peer.value == 0) continue;
    if (obstacle(id) || refusal(id) != nullptr) continue;
    return server_drains(*server);
  }
  return {};
}

// Nobody knows any more who had what before: it is a loss.
Status Handoff::resume(std::size_t known_lanes, const std::string& reason) {
  if (Status status = begin_move(std::nullopt, reason, {}, known_lanes); !status) return status;
  move_->is_loss = true;
  return {};
}

Status Handoff::acked(ServerId server, std::uint64_t request, const Error& error, Error named) {
  move_->waiting.erase(request);
  if (named.code == ErrorCode::ok || move_->called_off.count(request) != 0) {
    finish_move();
    return {};
  }
  const ServerRecord* record = run_.servers.find(server);
  if (record != nullptr && is_newcomer(server)) return go_on_without(*record, error);
  if (named.code == ErrorCode::out_of_memory && is_drain_only() && !move_->drained.empty()) {
    call_off(named);
    return {};
  }
  if (named.code == ErrorCode::out_of_memory && !is_drain_only()) return has_no_room(server, request, named);
  named.message = fmt::format("{}, and {}", move_->reason, named.message);
  return named;
}

bool Handoff::waits_for(const ServerRecord& server) const {
  return std::any_of(server.unacknowledged.begin(), server.unacknowledged.end(),
                     [&](const auto& entry) { return waits_for(entry.first); });
}

void Handoff::also_wait_for(const std::vector<std::uint64_t>& requests) {
  if (move_) move_->waiting.insert(requests.begin(), requests.end());
}

std::vector<TensorCatalog::Lane> Handoff::place() const {
  return lanes_.place(move_ ? move_->full : std::set<ServerId>());
}

void Handoff::finish_move() {
  if (!move_->waiting.empty()) return;
  Move done = std::move(*move_);
  move_.reset();
  Moved moved{run_.id, lanes_.epoch(), done.reason, {}, std::move(done.closed), {}};
  moved.lanes = lanes_.from(done.known_lanes);
  std::vector<PartitionMove> moves;
  for (const auto& [partition, owner] : done.partitions)
    moves.push_back({partition, owner});
  catch_up_.tell_moved(moved, moves);
  for (const ServerId server : done.drained) {
    tensors_.table().release(server);
    if (const ServerRecord* record = run_.servers.find(server)) let_go(*record);
  }
  tensors_.send_held();
  tensors_.drops().tell_again();
  send_tensors();
}

Status Handoff::give_up(const std::vector<ServerId>& servers, const std::string& reason) {
  put_drains_off();
  for (const ServerId id : servers) {
    if (const auto why = obstacle(id))
      return make_error(why->code, reason + "; " + why->message, why->advice);
    refusals_.erase(id);  // now it has to go
  }
  for (const ServerId id : servers)
    servers_.refuse(id);
  const std::set<ServerId> leave = leaving(true);
  if (!has_target({}, leave, true)) return nobody_takes(reason);
  return begin_move(std::nullopt, reason, leave, lanes_.size());
}

bool Handoff::has_lane_to(ServerId server, Incarnation incarnation) const {
  const bool drains = is_leaving(server) && !servers_.is_unwilling(server);
  return lanes_.has_lane_to(server, incarnation, drains);
}

std::optional<std::string> Handoff::keeps(ServerId server) const {
  if (const Refusal* refused = refusal(server)) return refused->reason;
  if (const auto why = obstacle(server)) return why->message;
  if (links_.any_cut()) return "a link is cut, and it is not clear yet which end is lost";
  if (move_ && !is_drain_only()) return "what was lost with another server finds its place first";
  return std::nullopt;
}

}  // namespace bps
