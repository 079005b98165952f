#include "scheduler/tensors/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace bps {
namespace {

std::string text_of(const TensorDeclaration& declaration) {
  std::string text = fmt::format("{} x {}", name_of(declaration.dtype), declaration.elements);
  if (declaration.mode == Mode::sync) return text;
  text += " async, staleness ";
  return text +
         (declaration.staleness == kUnboundedStaleness ? "unbounded" : std::to_string(declaration.staleness));
}

Error too_large(const TensorDeclaration& declaration, std::string what, std::string advice) {
  return make_error(ErrorCode::invalid_argument, fmt::format("tensor '{}' {}", declaration.name, what),
                    std::move(advice));
}

}  // namespace

bool TensorTable::alike(const TensorDeclaration& a, const TensorDeclaration& b) {
  return a.dtype == b.dtype && a.elements == b.elements && a.mode == b.mode &&
         (a.mode == Mode::sync || a.staleness == b.staleness);
}

TensorTable::TensorTable(Config config)
    : config_(std::move(config)), assigner_(shares_of(config_.lanes), config_.partition_bytes) {}

std::uint64_t TensorTable::partitions_of(const TensorDeclaration& declaration) const {
  return (bytes_of(declaration) + config_.partition_bytes - 1) / config_.partition_bytes;
}

const TensorDeclaration* TensorTable::held_by(ServerId server) const {
  const TensorDeclaration* held = nullptr;
  for (const Tensor& tensor : tensors_) {
    if (tensor.state != State::ready || servers_of(tensor).count(server) == 0) continue;
    if (tensor.declaration.mode == Mode::async) return &tensor.declaration;
    if (held == nullptr) held = &tensor.declaration;
  }
  return held;
}

void TensorTable::refresh(Declared& declared) const {
  for (DeclaredTensor& result : declared.tensors) {
    if (result.error.code != ErrorCode::ok) continue;
    const Tensor& tensor = tensors_[result.tensor.value];
    result.error = tensor.error;
    result.owners = tensor.state == State::ready ? tensor.owners : std::vector<LaneIndex>{};
  }
}

bool TensorTable::has_new(const Declare& declare) const {
  return std::any_of(declare.tensors.begin(), declare.tensors.end(),
                     [this](const auto& tensor) { return !by_name_.contains(tensor.name); });
}

Status TensorTable::declare(Rank rank, const Declare& declare) {
  std::size_t& pending = pending_by_rank_[rank];
  if (pending >= kMaxPendingDeclares) {
    return make_error(ErrorCode::protocol,
                      fmt::format("more than {} declares under way", kMaxPendingDeclares));
  }
  ++pending;
  const std::uint64_t key = ++last_number_;
  const std::uint64_t batch_number = ++last_number_;
  Request request{rank, declare.request, {}};
  Batch batch;
  std::uint64_t partitions = 0;
  for (const TensorDeclaration& declaration : declare.tensors) {
    request.items.push_back(resolve(rank, declaration, partitions, batch));
  }
  for (const TensorId id : batch.tensors)
    tensors_[id.value].batch = batch_number;
  requests_.emplace(key, std::move(request));
  if (!batch.tensors.empty()) start(batch_number, std::move(batch));
  answer_or_wait(key);
  return {};
}

TensorTable::Item TensorTable::resolve(Rank rank, const TensorDeclaration& declaration,
                                       std::uint64_t& partitions, Batch& batch) {
  const std::uint64_t count = partitions_of(declaration);
  if (partitions + count > kMaxPartitionsPerDeclare) {
    return {std::nullopt,
            too_large(declaration,
                      fmt::format("brings the declaration to more than {} partitions of {} bytes",
                                  kMaxPartitionsPerDeclare, config_.partition_bytes),
                      "declare fewer tensors at once, split the tensor, or raise partition_bytes")};
  }
  partitions += count;
  const auto known = by_name_.find(declaration.name);
  if (known != by_name_.end()) {
    const TensorId id = known->second;
    Tensor& tensor = tensors_[id.value];
    if (tensor.state != State::failed && !alike(tensor.declaration, declaration)) {
      fail(id, rank, declaration);
    } else if (tensor.state == State::refused) {
      tensor.state = State::declaring;
      batch.tensors.push_back(id);
    }
    return {id, {}};
  }
  if (tensors_.size() >= config_.max_tensors) {
    return {std::nullopt,
            too_large(declaration, fmt::format("is one too many: a job has at most {}", config_.max_tensors),
                      "declare fewer, larger tensors")};
  }
  if (next_partition_ + count > config_.max_partitions) {
    return {std::nullopt, too_large(declaration,
                                    fmt::format("brings the job to more than {} partitions of {} bytes",
                                                config_.max_partitions, config_.partition_bytes),
                                    "raise partition_bytes")};
  }
  const TensorId id = create(rank, declaration, count);
  batch.tensors.push_back(id);
  return {id, {}};
}

TensorId TensorTable::create(Rank rank, const TensorDeclaration& declaration, std::uint64_t partitions) {
  const TensorId id{static_cast<std::uint32_t>(tensors_.size())};
  Tensor tensor;
  tensor.declaration = declaration;
  tensor.declared_by = rank;
  tensor.first = PartitionId{static_cast<std::uint32_t>(next_partition_)};
  tensor.owners.reserve(partitions);
  std::uint64_t rest = bytes_of(declaration);
  for (std::uint64_t i = 0; i < partitions; ++i) {
    const std::uint64_t bytes = std::min(rest, config_.partition_bytes);
    tensor.owners.push_back(assigner_.assign(bytes));
    rest -= bytes;
  }
  next_partition_ += partitions;
  by_name_.emplace(declaration.name, id);
  tensors_.push_back(std::move(tensor));
  return id;
}

void TensorTable::fail(TensorId id, Rank rank, const TensorDeclaration& other) {
  const Tensor& tensor = tensors_[id.value];
  fail(id, make_error(ErrorCode::configuration,
                      fmt::format("tensor '{}' of job {} is declared differently: {} says {}, {} says {}",
                                  other.name, config_.job, config_.name_of_rank(tensor.declared_by),
                                  text_of(tensor.declaration), config_.name_of_rank(rank), text_of(other)),
                      "declare it alike on all ranks and start the job again"));
}

Status TensorTable::failed_at(Rank rank, TensorId id, const Error& error) {
  if (id.value >= tensors_.size() || tensors_[id.value].state == State::declaring) {
    return make_error(ErrorCode::protocol,
                      fmt::format("TensorFailed for tensor {}, which nobody has declared", id.value));
  }
  const Tensor& tensor = tensors_[id.value];
  if (tensor.state != State::ready) return {};
  fail(id, make_error(error.code,
                      fmt::format("tensor '{}' of job {} cannot be held by {}: {}", tensor.declaration.name,
                                  config_.job, config_.name_of_rank(rank), error.message),
                      error.advice));
  return {};
}

void TensorTable::fail(TensorId id, const Error& error) {
  Tensor& tensor = tensors_[id.value];
  const bool known_to_workers = tensor.state == State::ready;
  tensor.state = State::failed;
  tensor.error = error;
  // While it is being declared nobody has been told; finish() drops it.
  if (!known_to_workers) return;
  output_.emplace_back(Failure{{config_.run, id, tensor.error}});
  std::map<ServerId, std::vector<TensorId>> dropped;
  for (const ServerId server : servers_of(tensor))
    dropped[server].push_back(id);
  drop(dropped);
}

PartitionSlice TensorTable::slice_of(const Tensor& tensor, std::uint32_t index) const {
  const std::uint64_t per_partition = config_.partition_bytes / size_of(tensor.declaration.dtype);
  const std::uint64_t before = index * per_partition;
  return {PartitionId{tensor.first.value + index}, config_.lanes[tensor.owners[index].value].shard,
          std::min(tensor.declaration.elements - before, per_partition)};
}

TensorSlices TensorTable::slices_of(TensorId id) const {
  const TensorDeclaration& declaration = tensors_[id.value].declaration;
  return {
      id, declaration.name, declaration.dtype, declaration.mode, declaration.staleness, declaration.priority,
      {}};
}

void TensorTable::start(std::uint64_t number, Batch batch) {
  std::map<ServerId, DeclareSlices> slices;
  for (const TensorId id : batch.tensors) {
    const Tensor& tensor = tensors_[id.value];
    std::map<ServerId, TensorSlices*> of_tensor;
    for (std::uint32_t i = 0; i < tensor.owners.size(); ++i) {
      const ServerId server = config_.lanes[tensor.owners[i].value].server;
      TensorSlices*& out = of_tensor[server];
      if (out == nullptr) out = &slices[server].tensors.emplace_back(slices_of(id));
      out->partitions.push_back(slice_of(tensor, i));
    }
  }
  for (auto& [server, message] : slices) {
    message.job_run = config_.run;
    ++batch.waiting[server];
    output_.emplace_back(Slices{server, number, std::move(message)});
  }
  const bool done = batch.waiting.empty();
  batches_.emplace(number, std::move(batch));
  if (done) finish(number);
}

void TensorTable::acked(std::uint64_t number, ServerId server, const Error& error) {
  const auto it = batches_.find(number);
  if (it == batches_.end()) return;
  const auto waiting = it->second.waiting.find(server);
  if (waiting == it->second.waiting.end()) return;
  if (--waiting->second == 0) it->second.waiting.erase(waiting);
  if (error.code == ErrorCode::ok) {
    it->second.accepted.insert(server);
  } else if (it->second.error.code == ErrorCode::ok) {
    it->second.error = error;
  }
  if (it->second.waiting.empty()) finish(number);
}

void TensorTable::finish(std::uint64_t number) {
  const auto it = batches_.find(number);
  const Batch batch = std::move(it->second);
  batches_.erase(it);
  std::map<ServerId, std::vector<TensorId>> dropped;
  for (const TensorId id : batch.tensors) {
    Tensor& tensor = tensors_[id.value];
    if (tensor.state == State::declaring) {
      tensor.state = batch.error.code == ErrorCode::ok ? State::ready : State::refused;
      tensor.error = batch.error;
    }
    if (tensor.state == State::ready) continue;
    for (const ServerId server : servers_of(tensor)) {
      if (batch.accepted.count(server) != 0) dropped[server].push_back(id);
    }
  }
  drop(dropped);
  for (const std::uint64_t key : batch.requests)
    answer_or_wait(key);
}

void TensorTable::answer_or_wait(std::uint64_t key) {
  const auto it = requests_.find(key);
  if (it == requests_.end()) return;  // its worker has left
  const Request& request = it->second;
  for (const Item& item : request.items) {
    if (!item.tensor || tensors_[item.tensor->value].state != State::declaring) continue;
    batches_.at(tensors_[item.tensor->value].batch).requests.push_back(key);
    return;
  }
  Declared declared{request.number, {}};
  for (const Item& item : request.items) {
    DeclaredTensor result;
    if (!item.tensor) {
      result.error = item.error;
    } else {
      const Tensor& tensor = tensors_[item.tensor->value];
      result.error = tensor.error;
      result.tensor = *item.tensor;
      result.priority = tensor.declaration.priority;
      result.first_partition = tensor.first;
      if (tensor.state == State::ready) result.owners = tensor.owners;
    }
    declared.tensors.push_back(std::move(result));
  }
  output_.emplace_back(Answer{request.rank, std::move(declared)});
  --pending_by_rank_[request.rank];
  requests_.erase(it);
}

void TensorTable::leave(Rank rank) {
  std::erase_if(requests_, [&](const auto& entry) { return entry.second.rank == rank; });
  pending_by_rank_.erase(rank);
}

std::set<ServerId> TensorTable::servers_of(const Tensor& tensor) const {
  std::set<ServerId> servers;
  for (const LaneIndex lane : tensor.owners)
    servers.insert(config_.lanes[lane.value].server);
  return servers;
}

void TensorTable::drop(const std::map<ServerId, std::vector<TensorId>>& tensors) {
  for (const auto& [server, ids] : tensors)
    output_.emplace_back(Drop{server, {config_.run, ids}});
}

}  // namespace bps
