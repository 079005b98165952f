#include "scheduler/tensors/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/call_names.h"
#include "proto/base/config/units.h"
#include "proto/wire/tensor_shape.h"
#include "scheduler/text.h"

namespace bps {
namespace {

// "4", of equal ones; "1, 2, 3", "1, 2, 3, ... (70 ranks)"
std::string text_of(const std::vector<std::uint64_t>& parts) {
  constexpr std::size_t kNamed = 8;
  const std::size_t named = std::min(parts.size(), kNamed);
  const auto end = parts.begin() + static_cast<std::ptrdiff_t>(named);
  const std::string text = fmt::format("{}", fmt::join(parts.begin(), end, ", "));
  return named == parts.size() ? text : fmt::format("{}, ... ({} ranks)", text, parts.size());
}

std::string text_of(const TensorDeclaration& declaration) {
  std::string text = fmt::format("{} x {}", name_of(declaration.dtype), declaration.elements);
  if (!declaration.ranks.empty()) text += " of " + ranks_text(declaration.ranks);
  if (!declaration.parts.empty()) text += " in parts of " + text_of(declaration.parts);
  if (declaration.mode == Mode::slot) return text + " slot";
  if (declaration.mode == Mode::sync) return text;
  text += " async, staleness ";
  return text +
         (declaration.staleness == kUnboundedStaleness ? "unbounded" : std::to_string(declaration.staleness));
}

// The rank has dropped it while it declared it again, with others that had to be confirmed.
Error ended_error(TensorId tensor) {
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("tensor {} has been dropped by all ranks meanwhile", tensor.value),
                    "declare it again: that is another tensor");
}

}  // namespace

// ---- declares ----

bool TensorTable::has_new(Rank rank, const Declare& declare) const {
  return std::any_of(declare.tensors.begin(), declare.tensors.end(),
                     [&](const auto& tensor) { return !catalog_.find(tensor, rank); });
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
    catalog_[id].batch = batch_number;
  requests_.emplace(key, std::move(request));
  if (!batch.tensors.empty()) start(batch_number, std::move(batch));
  answer_or_wait(key);
  return {};
}

TensorTable::Item TensorTable::resolve(Rank rank, const TensorDeclaration& declaration,
                                       std::uint64_t& partitions, Batch& batch) {
  if (Status status = check_shape(declaration, rank, catalog_.world_size()); !status)
    return {std::nullopt, status.error()};
  if (!declaration.ranks.empty() && catalog_.sums_on_hosts()) {
    return {std::nullopt,
            make_error(ErrorCode::invalid_argument,
                       fmt::format("tensor '{}' has ranks of its own, and the ranks of a host sum first",
                                   declaration.name),
                       "set local-group off on all ranks")};
  }
  const std::uint64_t count = catalog_.partitions_of(declaration) + listed(declaration);
  if (partitions + count > kMaxPartitionsPerDeclare) {
    return {
        std::nullopt,
        make_error(
            ErrorCode::invalid_argument,
            fmt::format(
                "tensor '{}' brings the declaration to more than {} partitions of {}, parts and ranks",
                declaration.name, kMaxPartitionsPerDeclare, rounded(ByteSize{catalog_.partition_bytes()})),
            "declare fewer tensors at once, split the tensor, or raise partition-bytes")};
  }
  partitions += count;
  const auto meant = catalog_.find(declaration, rank);
  if (const auto other = catalog_.contradicted(declaration, rank)) {
    fail(*other, rank, declaration);
    if (meant) fail(*meant, catalog_[*other].error);
    const bool had_it = catalog_.has_declared(*other, rank);
    catalog_.note_declared(*other, rank);
    return {*other, {}, had_it};
  }
  if (const auto known = meant) {
    Tensor& tensor = catalog_[*known];
    if (tensor.state != State::failed && !TensorCatalog::alike(tensor.declaration, declaration)) {
      fail(*known, rank, declaration);
    } else if (tensor.state == State::refused) {
      tensor.state = State::declaring;
      batch.tensors.push_back(*known);
    }
    const bool had_it = catalog_.has_declared(*known, rank);
    catalog_.note_declared(*known, rank);
    return {*known, {}, had_it};
  }
  const Result<TensorId> added = catalog_.add(rank, declaration);
  if (!added) return {std::nullopt, added.error()};
  batch.tensors.push_back(*added);
  catalog_.note_declared(*added, rank);
  return {*added, {}};
}

void TensorTable::start(std::uint64_t number, Batch batch) {
  for (Slices& slices : catalog_.slices_of(batch.tensors)) {
    slices.batch = number;
    ++batch.waiting[slices.server];
    output_.emplace_back(std::move(slices));
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
    Tensor& tensor = catalog_[id];
    tensor.batch = 0;
    if (tensor.state == State::declaring) {
      tensor.state = batch.error.code == ErrorCode::ok ? State::ready : State::refused;
      tensor.error = batch.error;
    }
    if (tensor.state == State::ready) continue;
    if (tensor.state == State::refused) catalog_.take_back(id);
    for (const ServerId server : catalog_.servers_of(tensor)) {
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
    const bool is_there = item.tensor && catalog_.has(*item.tensor);
    if (!is_there || catalog_[*item.tensor].state != State::declaring) continue;
    batches_.at(catalog_[*item.tensor].batch).requests.push_back(key);
    return;
  }
  Answer answer{request.rank, Declared{request.number, {}}};
  for (const Item& item : request.items) {
    DeclaredTensor result;
    if (!item.tensor) {
      result.error = item.error;
    } else if (!catalog_.has(*item.tensor)) {
      result.error = ended_error(*item.tensor);
    } else {
      const Tensor& tensor = catalog_[*item.tensor];
      result.error = tensor.error;
      result.tensor = *item.tensor;
      result.priority = tensor.declaration.priority;
      result.first_partition = tensor.first;
      if (tensor.state == State::ready) result.owners = tensor.owners;
      if (!item.had_it) answer.first.insert(*item.tensor);
    }
    answer.message.tensors.push_back(std::move(result));
  }
  give_up_what_failed(answer);
  output_.emplace_back(std::move(answer));
  --pending_by_rank_[request.rank];
  requests_.erase(it);
}

void TensorTable::leave(Rank rank) {
  std::erase_if(requests_, [&](const auto& entry) { return entry.second.rank == rank; });
  pending_by_rank_.erase(rank);
}

void TensorTable::note_given(Rank rank, const std::map<TensorId, KnownTensor>& tensors) {
  for (const auto& [id, tensor] : catalog_.all()) {
    if (!tensors.contains(id)) catalog_.take_back(id, rank);
  }
}

void TensorTable::refresh(Answer& answer) {
  std::erase_if(answer.first, [&](TensorId id) { return !catalog_.has(id); });
  for (DeclaredTensor& result : answer.message.tensors) {
    if (result.error.code != ErrorCode::ok) continue;
    if (!catalog_.has(result.tensor)) {
      result = {ended_error(result.tensor)};
      continue;
    }
    const Tensor& tensor = catalog_[result.tensor];
    result.error = tensor.error;
    result.owners = tensor.state == State::ready ? tensor.owners : std::vector<LaneIndex>{};
  }
  give_up_what_failed(answer);
}

void TensorTable::give_up_what_failed(const Answer& answer) {
  for (const TensorId id : answer.first) {
    if (catalog_[id].state == State::failed) output_.emplace_back(GivenUp{answer.rank, id});
  }
}

// ---- tensors that fail ----

void TensorTable::fail(TensorId id, Rank rank, const TensorDeclaration& other) {
  const Tensor& tensor = catalog_[id];
  const std::string calls = describe_parts_slot(other.name);
  const std::string what =
      calls.empty() ? fmt::format("tensor '{}' of job {} is", other.name, catalog_.job()) : calls + " are";
  fail(id, make_error(ErrorCode::configuration,
                      fmt::format("{} declared differently: {} says {}, {} says {}", what,
                                  catalog_.name_of(tensor.declared_by), text_of(tensor.declaration),
                                  catalog_.name_of(rank), text_of(other)),
                      "declare it alike on all its ranks; a rank that has it and goes on drops it first"));
}

Status TensorTable::failed_at(Rank rank, TensorId id, const Error& error) {
  const bool is_declared = catalog_.has(id) && catalog_[id].state != State::declaring;
  if (!is_declared && (catalog_.has(id) || catalog_.is_new(id))) {
    return make_error(ErrorCode::protocol,
                      fmt::format("TensorFailed for tensor {}, which nobody has declared", id.value));
  }
  if (!is_declared) return {};  // all have dropped it
  const Tensor& tensor = catalog_[id];
  if (tensor.state != State::ready) return {};
  if (error.code == ErrorCode::configuration) {
    fail(id, error);
    return {};
  }
  fail(id, make_error(error.code,
                      fmt::format("tensor '{}' of job {} cannot be held by {}: {}", tensor.declaration.name,
                                  catalog_.job(), catalog_.name_of(rank), error.message),
                      error.advice));
  return {};
}

void TensorTable::fail(TensorId id, const Error& error) {
  Tensor& tensor = catalog_[id];
  const bool known_to_workers = tensor.state == State::ready;
  tensor.state = State::failed;
  tensor.error = error;
  // While it is being declared nobody has been told; finish() drops it.
  if (!known_to_workers) return;
  output_.emplace_back(Failure{{catalog_.run(), id, tensor.error}});
  std::map<ServerId, std::vector<TensorId>> dropped;
  for (const ServerId server : catalog_.servers_of(tensor))
    dropped[server].push_back(id);
  drop(dropped);
}

void TensorTable::drop(const std::map<ServerId, std::vector<TensorId>>& tensors) {
  for (const auto& [server, ids] : tensors)
    output_.emplace_back(Drop{server, {0, catalog_.run(), ids}});
}

// ---- owners that change, and go ----

TensorTable::Relocation TensorTable::relocate(std::vector<Lane> lanes, std::optional<ServerId> gone,
                                              const std::set<PartitionId>& refused) {
  Relocation out = catalog_.deal_again(std::move(lanes), refused);
  std::vector<Slices> moved;
  for (Slices& slices : out.slices) {
    if (slices.batch == 0) {
      moved.push_back(std::move(slices));
      continue;
    }
    ++batches_.at(slices.batch).waiting[slices.server];
    output_.emplace_back(std::move(slices));
  }
  out.slices = std::move(moved);
  if (gone) release(*gone);
  return out;
}

void TensorTable::release(ServerId server) {
  std::vector<std::uint64_t> done;
  for (auto& [number, batch] : batches_) {
    batch.accepted.erase(server);
    batch.waiting.erase(server);
    if (batch.waiting.empty()) done.push_back(number);
  }
  for (const std::uint64_t number : done)
    finish(number);
}

// ---- for queries ----

std::vector<TensorTable::Unconfirmed> TensorTable::unconfirmed() const {
  std::vector<Unconfirmed> out;
  for (const auto& [number, batch] : batches_) {
    Unconfirmed& entry = out.emplace_back();
    entry.number = number;
    entry.tensors = batch.tensors;
    for (const auto& [server, acks] : batch.waiting)
      entry.waiting.push_back(server);
    entry.servers = entry.waiting.size();
    for (const ServerId server : batch.accepted)
      entry.servers += batch.waiting.count(server) == 0 ? 1 : 0;
  }
  return out;
}

}  // namespace bps
