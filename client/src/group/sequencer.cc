#include "client/src/group/sequencer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

Error broken(std::string what) {
  return make_error(ErrorCode::protocol, std::move(what), "use the same bps version on all ranks");
}

}  // namespace

Sequencer::Sequencer(std::vector<Rank> ranks, Traits traits) : ranks_(std::move(ranks)), traits_(traits) {
  BPS_ASSERT(!ranks_.empty() && traits_.max_open > 0 && traits_.batch_bytes > 0);
}

Sequencer::Place Sequencer::place_of(const Record& record, std::uint32_t index) const {
  return {-std::int64_t{record.tensor.priority}, record.tensor.id, index};
}

std::uint64_t Sequencer::bytes_of(const Record& record, std::uint32_t index) const {
  return index + 1 == record.tensor.count ? record.tensor.last_bytes : record.tensor.partition_bytes;
}

std::uint32_t Sequencer::owner_of(const Record& record, std::uint32_t index) const {
  return static_cast<std::uint32_t>((record.tensor.first.value + std::uint64_t{index}) % ranks_.size());
}

void Sequencer::queue(TimePoint now, std::uint64_t bytes) {
  is_stuck_ = false;
  if (controls_.empty() && reduces_.empty() && spreads_.empty()) queued_since_ = now;
  queued_bytes_ += bytes;
}

// ---- what members say ----

void Sequencer::add(const Tensor& tensor) {
  BPS_ASSERT(tensor.count > 0 && records_.count(tensor.id) == 0);
  Record record;
  record.tensor = tensor;
  record.said.resize(ranks_.size());
  record.parts.resize(tensor.count, Part::untouched);
  record.weights.resize(tensor.count, 0);
  record.errors.resize(tensor.count);
  records_.emplace(tensor.id, std::move(record));
}

Status Sequencer::ready(TimePoint now, std::uint32_t member, const LocalReady& ready) {
  const auto found = records_.find(ready.tensor);
  if (found == records_.end())
    return broken(fmt::format("ready for tensor {}, which is not known", ready.tensor.value));
  Record& record = found->second;
  // It may not have heard of it yet, and ends by the item that is on its way.
  if (record.failed || left_) return {};
  // A rank alone on its host comes here with some of its rounds only.
  if (ranks_.size() == 1 && !record.said[member] && ready.round > record.round) record.round = ready.round;
  if (ready.round != record.round || record.said[member]) {
    return broken(fmt::format("rank {} is ready for round {} of '{}' when {} is under way",
                              ranks_[member].value, ready.round.value, record.tensor.name,
                              record.round.value));
  }
  if (record.said_count == 0) record.since = now;
  waiting_ -= waits(record) ? 1 : 0;
  ++record.said_count;
  waiting_ += waits(record) ? 1 : 0;
  record.said[member] = ready;
  if (record.lacks && !record.said[*record.lacks]) fail_without(now, record);
  if (!is_sequenced(record) || record.failed) return {};
  const auto other = std::find_if(record.said.begin(), record.said.end(),
                                  [&](const auto& said) { return *said != *record.said.front(); });
  if (other != record.said.end()) {
    refuse(now, record, static_cast<std::uint32_t>(other - record.said.begin()));
    return {};
  }
  queue(now, total_bytes(record));
  reduces_.insert(place_of(record, 0));
  return {};
}

// Nothing of this round is summed; its owners tell the servers, which answer them with an error.
void Sequencer::refuse(TimePoint now, Record& record, std::uint32_t member) {
  const bool is_mixed = record.said.front()->memory != record.said[member]->memory;
  const auto text = [&](std::uint32_t who) {
    const LocalReady& said = *record.said[who];
    const char* const memory = !is_mixed                         ? ""
                               : said.memory == MemoryKind::host ? " in host memory"
                                                                 : " in CUDA memory";
    return fmt::format("rank {} calls {}{}", ranks_[who].value, to_string(said.call), memory);
  };
  queue(now, 0);
  LocalItem item;
  item.kind = LocalItem::Kind::refuse;
  item.tensor = record.tensor.id;
  item.round = record.round;
  item.count = record.tensor.count;
  item.error = make_error(
      ErrorCode::configuration,
      fmt::format("round {} of '{}': {}, {}", record.round.value, record.tensor.name, text(0), text(member)),
      "all ranks must call the same operations on a tensor, in the same order");
  controls_.push_back(std::move(item));
  record.reduced = record.tensor.count;
  std::fill(record.parts.begin(), record.parts.end(), Part::reduced);
}

Status Sequencer::answered(TimePoint now, std::uint32_t member, const LocalAnswer& answer) {
  const auto found = records_.find(answer.tensor);
  if (found == records_.end())
    return broken(fmt::format("an answer for tensor {}, which is not known", answer.tensor.value));
  Record& record = found->second;
  if (record.failed) return {};
  const bool is_due = answer.round == record.round && answer.index < record.tensor.count &&
                      record.parts[answer.index] == Part::reduced && owner_of(record, answer.index) == member;
  if (!is_due) {
    return broken(
        fmt::format("rank {} has an answer for partition {} in round {} of '{}', which is not its to have",
                    ranks_[member].value, answer.index, answer.round.value, record.tensor.name));
  }
  queue(now, answer.error.code == ErrorCode::ok ? bytes_of(record, answer.index) : 0);
  record.parts[answer.index] = Part::answered;
  record.weights[answer.index] = answer.weight;
  record.errors[answer.index] = answer.error;
  spreads_.insert(place_of(record, answer.index));
  return {};
}

void Sequencer::fail(TimePoint now, TensorId tensor, const Error& error) {
  const auto found = records_.find(tensor);
  if (found == records_.end() || found->second.failed) return;
  Record& record = found->second;
  waiting_ -= waits(record) ? 1 : 0;
  record.failed = true;
  if (record.reduced < record.tensor.count && is_sequenced(record)) {
    reduces_.erase(place_of(record, record.reduced));
    for (std::uint32_t i = record.reduced; i < record.tensor.count; ++i)
      queued_bytes_ -= bytes_of(record, i);
  }
  for (std::uint32_t i = 0; i < record.tensor.count; ++i) {
    if (record.parts[i] != Part::answered) continue;
    spreads_.erase(place_of(record, i));
    if (record.errors[i].code == ErrorCode::ok) queued_bytes_ -= bytes_of(record, i);
  }
  // Also if nobody is ready for it yet, as far as it is known here.
  queue(now, 0);
  LocalItem item;
  item.kind = LocalItem::Kind::fail;
  item.tensor = tensor;
  item.round = record.round;
  item.count = record.tensor.count;
  item.error = error;
  controls_.push_back(std::move(item));
}

void Sequencer::dropped(TimePoint now, std::uint32_t member, TensorId tensor) {
  Record& record = records_.at(tensor);
  if (!record.lacks) record.lacks = member;
  if (record.said_count > 0 && !record.said[member]) fail_without(now, record);
}

void Sequencer::fail_without(TimePoint now, const Record& record) {
  fail(now, record.tensor.id,
       make_error(
           ErrorCode::configuration,
           fmt::format("round {} of {} can never complete: rank {}, of this host, has dropped the tensor",
                       record.round.value, record.tensor.name, ranks_[*record.lacks].value),
           "let all ranks push the same number of rounds before one drops it"));
}

void Sequencer::forget(TensorId tensor) {
  const auto found = records_.find(tensor);
  if (found == records_.end()) return;
  waiting_ -= waits(found->second) ? 1 : 0;
  records_.erase(found);
}

Status Sequencer::left(TimePoint now, std::uint32_t member) {
  for (const auto& [id, record] : records_) {
    if (record.failed || !record.said[member]) continue;
    return broken(fmt::format("rank {} leaves while round {} of '{}' is under way", ranks_[member].value,
                              record.round.value, record.tensor.name));
  }
  if (left_) return {};
  left_ = member;
  queue(now, 0);
  LocalItem item;
  item.kind = LocalItem::Kind::left;
  item.member = member;
  controls_.push_back(std::move(item));
  return {};
}

void Sequencer::executed() {
  BPS_ASSERT(open_ > 0);
  --open_;
  is_stuck_ = false;
}

// ---- batches ----

std::optional<TimePoint> Sequencer::due() const {
  const bool is_empty = controls_.empty() && reduces_.empty() && spreads_.empty();
  if (is_empty || is_stuck_ || open_ >= traits_.max_open) return std::nullopt;
  return is_urgent() ? queued_since_ : queued_since_ + traits_.batch_delay;
}

std::optional<LocalBatch> Sequencer::next(TimePoint now) {
  const std::optional<TimePoint> when = due();
  if (!when || now < *when) return std::nullopt;
  LocalBatch batch;
  for (; !controls_.empty() && batch.items.size() < kMaxItemsPerBatch; controls_.pop_front())
    batch.items.push_back(std::move(controls_.front()));
  std::uint64_t room = traits_.batch_bytes;
  auto spread = spreads_.begin();
  while (room > 0 && batch.items.size() < kMaxItemsPerBatch) {
    const bool has_spread = spread != spreads_.end();
    if (!has_spread && reduces_.empty()) break;
    // Of equal priority, what ends something.
    const bool is_spread =
        has_spread && (reduces_.empty() || std::get<0>(*spread) <= std::get<0>(*reduces_.begin()));
    if (!is_spread) {
      batch.items.push_back(cut_reduce(room));
      continue;
    }
    Record& record = records_.at(std::get<1>(*spread));
    const std::uint32_t first = std::get<2>(*spread);
    const std::uint32_t count = spread_run(record, first, room);
    if (count == 0) {  // it waits for the rest of its run
      ++spread;
      continue;
    }
    batch.items.push_back(cut_spread(record, first, count, room));
    spread = spreads_.lower_bound(place_of(record, first + count));
  }
  is_stuck_ = batch.items.empty();
  if (is_stuck_) return std::nullopt;
  batch.number = next_number_++;
  ++open_;
  return batch;
}

// How many from `first` on are one run: up to the next multiple of the group's size, or all.
std::uint32_t Sequencer::run_from(const Record& record, std::uint32_t first) const {
  const std::uint32_t rest = record.tensor.count - first;
  if (!traits_.wants_runs) return rest;
  const auto size = static_cast<std::uint32_t>(ranks_.size());
  return std::min(rest, size - owner_of(record, first));
}

// The next partitions of the most urgent tensor that is being reduced, as many as there is room for; with
// runs, whole ones, and what lies before the first or after the last of them.
LocalItem Sequencer::cut_reduce(std::uint64_t& room) {
  Record& record = records_.at(std::get<1>(*reduces_.begin()));
  reduces_.erase(reduces_.begin());
  LocalItem item;
  item.tensor = record.tensor.id;
  item.round = record.round;
  item.first = record.reduced;
  do {
    const std::uint32_t end =
        traits_.wants_runs ? record.reduced + run_from(record, record.reduced) : record.reduced + 1;
    while (record.reduced < end) {
      const std::uint64_t bytes = bytes_of(record, record.reduced);
      record.parts[record.reduced++] = Part::reduced;
      queued_bytes_ -= bytes;
      room -= std::min(room, bytes);
    }
  } while (room > 0 && record.reduced < record.tensor.count);
  item.count = record.reduced - item.first;
  if (record.reduced < record.tensor.count) reduces_.insert(place_of(record, record.reduced));
  return item;
}

// How many answers from `first` on go together; 0: not yet.
std::uint32_t Sequencer::spread_run(const Record& record, std::uint32_t first, std::uint64_t room) const {
  const std::uint32_t end = first + run_from(record, first);
  std::uint32_t count = 1;
  const auto take_room = [&] {
    const std::uint64_t bytes = bytes_of(record, first + count - 1);
    room -= std::min(room, bytes);
  };
  for (take_room(); first + count < end && goes_with(record, first, first + count); take_room()) {
    if (!traits_.wants_runs && room == 0) break;
    ++count;
  }
  if (!traits_.wants_runs) return count;
  const std::uint32_t begin = first - std::min(first, owner_of(record, first));
  const std::uint32_t whole = run_from(record, begin);
  if (first > begin || count < whole) {
    // Of a whole run, those that are missing may still come: what is under way leaves time for it.
    const bool may_come =
        std::any_of(record.parts.begin() + begin, record.parts.begin() + begin + whole,
                    [](Part part) { return part == Part::untouched || part == Part::reduced; });
    return whole == ranks_.size() && may_come && open_ > 0 ? 0 : count;
  }
  return count + spread_runs(record, first, first + count, room);
}

// How many from `next` on, which follow a whole run, are whole runs that go with `first`.
std::uint32_t Sequencer::spread_runs(const Record& record, std::uint32_t first, std::uint32_t next,
                                     std::uint64_t room) const {
  std::uint32_t count = 0;
  while (room > 0 && next + count < record.tensor.count) {
    const std::uint32_t begin = next + count;
    const std::uint32_t end = begin + run_from(record, begin);
    for (std::uint32_t i = begin; i < end; ++i) {
      if (!goes_with(record, first, i)) return count;
      room -= std::min(room, bytes_of(record, i));
    }
    count = end - next;
  }
  return count;
}

// Both are answered, alike.
bool Sequencer::goes_with(const Record& record, std::uint32_t a, std::uint32_t b) const {
  const bool both = record.parts[a] == Part::answered && record.parts[b] == Part::answered;
  const bool good = record.errors[a].code == ErrorCode::ok && record.errors[b].code == ErrorCode::ok;
  return both && good && record.weights[a] == record.weights[b];
}

LocalItem Sequencer::cut_spread(Record& record, std::uint32_t first, std::uint32_t count,
                                std::uint64_t& room) {
  LocalItem item;
  item.kind = LocalItem::Kind::spread;
  item.tensor = record.tensor.id;
  item.round = record.round;
  item.first = first;
  item.count = count;
  item.weight = record.weights[first];
  item.error = record.errors[first];
  for (std::uint32_t i = first; i < first + count; ++i) {
    spreads_.erase(place_of(record, i));
    record.parts[i] = Part::spread;
    if (item.error.code != ErrorCode::ok) continue;
    const std::uint64_t bytes = bytes_of(record, i);
    queued_bytes_ -= bytes;
    room -= std::min(room, bytes);
  }
  record.ended += count;
  if (record.ended == record.tensor.count) end_round(record);
  return item;
}

void Sequencer::end_round(Record& record) {
  record.round = record.round.next();
  std::fill(record.said.begin(), record.said.end(), std::nullopt);
  record.said_count = record.reduced = record.ended = 0;
  std::fill(record.parts.begin(), record.parts.end(), Part::untouched);
}

std::uint64_t Sequencer::total_bytes(const Record& record) const {
  return (record.tensor.count - 1) * record.tensor.partition_bytes + record.tensor.last_bytes;
}

// ---- for who asks ----

std::vector<LocalWaiting> Sequencer::waiting(TimePoint now, Duration older_than) const {
  std::vector<LocalWaiting> out;
  if (!has_waiting()) return out;
  for (const auto& [id, record] : records_) {
    if (!waits(record) || now - record.since < older_than) continue;
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - record.since);
    LocalWaiting waiting{id, record.round, static_cast<std::uint64_t>(age.count()), {}};
    for (std::size_t member = 0; member < ranks_.size(); ++member) {
      if (!record.said[member]) waiting.missing.push_back(ranks_[member]);
    }
    out.push_back(std::move(waiting));
  }
  return out;
}

}  // namespace bps
