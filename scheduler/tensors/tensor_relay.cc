#include "scheduler/tensors/tensor_relay.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

namespace bps {

void TensorRelay::open(std::uint64_t partition_bytes, std::vector<TensorCatalog::Lane> lanes) {
  TensorTable::Config config;
  config.run = run_.id;
  config.job = run_.name();
  config.partition_bytes = partition_bytes;
  config.lanes = std::move(lanes);
  config.name_of_rank = [this](Rank rank) { return run_.membership.name_of(rank); };
  config.world_size = run_.membership.world_size();
  for (const auto& [rank, worker] : run_.membership.workers())
    config.sums_on_hosts = config.sums_on_hosts || worker.group_size > 1;
  table_ = std::make_unique<TensorTable>(std::move(config));
  drops_ = std::make_unique<TensorDrops>(run_, table_->catalog());
}

void TensorRelay::close() {
  drops_.reset();
  table_.reset();
}

void TensorRelay::send(Epoch epoch, bool hold) {
  for (TensorTable::Output& output : table_->take_output()) {
    if (auto* slices = std::get_if<TensorTable::Slices>(&output)) {
      slices->message.epoch = epoch;
      const std::uint64_t request = run_.servers.ask(slices->server, std::move(slices->message));
      requests_.emplace(request, Request{slices->server, slices->batch});
    } else if (auto* dropped = std::get_if<TensorTable::Drop>(&output)) {
      run_.servers.send(dropped->server, std::move(dropped->message));
    } else if (auto* answer = std::get_if<TensorTable::Answer>(&output)) {
      if (hold) {
        held_.push_back(std::move(*answer));
      } else if (const Worker* worker = run_.membership.find(answer->rank)) {
        run_.outbox.send(worker->peer, std::move(answer->message));
      }
    } else if (auto* failure = std::get_if<TensorTable::Failure>(&output)) {
      // A group fails with all its slots and channels.
      const std::string& text = failure->message.error.message;
      run_.outbox.log(text == last_failure_ ? LogLevel::debug : LogLevel::warn, text);
      last_failure_ = text;
      const TensorId id = failure->message.tensor;
      if (catalog().has(id)) run_.broadcast(std::move(failure->message), catalog()[id].ranks);
    } else if (const auto* given_up = std::get_if<TensorTable::GivenUp>(&output)) {
      (void)drops_->note(given_up->rank, {given_up->tensor});  // it is there
    }
  }
  if (!hold) drops_->go_on();
}

void TensorRelay::send_held() {
  for (TensorTable::Answer& answer : std::exchange(held_, {})) {
    table_->refresh(answer);
    if (const Worker* worker = run_.membership.find(answer.rank))
      run_.outbox.send(worker->peer, std::move(answer.message));
  }
}

bool TensorRelay::acked(ServerId server, std::uint64_t request, const Error& error) {
  if (drops_ != nullptr && drops_->acked(request)) return true;
  const auto known = requests_.find(request);
  if (known == requests_.end()) return false;
  const std::uint64_t batch = known->second.batch;
  requests_.erase(known);
  table_->acked(batch, server, error);
  return true;
}

void TensorRelay::forget(ServerId server) {
  if (drops_ != nullptr) drops_->forget(server);
  std::erase_if(requests_, [&](const auto& entry) { return entry.second.server == server; });
}

void TensorRelay::forget(Rank rank) {
  table_->leave(rank);
  std::erase_if(held_, [&](const TensorTable::Answer& answer) { return answer.rank == rank; });
}

void TensorRelay::let_go(Rank rank) {
  forget(rank);
  drops_->note_absence(rank);
}

void TensorRelay::drop(ServerId server, DropTensors unwanted) const {
  const auto piece = [](auto& from, std::size_t limit) {
    const auto begin = from.end() - static_cast<std::ptrdiff_t>(std::min(from.size(), limit));
    std::remove_reference_t<decltype(from)> out(begin, from.end());
    from.erase(begin, from.end());
    return out;
  };
  while (!unwanted.tensors.empty() || !unwanted.partitions.empty()) {
    auto tensors = piece(unwanted.tensors, kMaxTensorsPerDeclare);
    auto partitions = piece(unwanted.partitions, kMaxPartitionsPerDeclare);
    run_.servers.send(server, DropTensors{0, run_.id, std::move(tensors), std::move(partitions)});
  }
}

}  // namespace bps
