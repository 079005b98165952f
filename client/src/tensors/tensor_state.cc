#include "client/src/tensors/tensor_state.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "proto/base/assert.h"
#include "proto/wire/tensor_shape.h"

namespace bps {

using State = Partition::State;
using Kept = Partition::Kept;
using Role = Partition::Role;

TensorState::TensorState(const TensorDeclaration& declaration, const DeclaredTensor& declared,
                         std::uint64_t partition_bytes, const Rules& rules)
    : id_(declared.tensor),
      bytes_(declaration.elements * size_of(declaration.dtype)),
      partitioner_(partitioner_of(declaration, partition_bytes)),
      partitions_(declared.owners.size()),
      shape_(shape_of(declaration)),
      buffers_(partitioner_, shape_, rules.self, request_),
      first_partition_(declared.first_partition),
      rules_(rules),
      memory_(partitioner_, shape_.bytes(), shape_.is_async),
      kept_(shape_, memory_, rules.retain),
      declaration_(declaration) {
  BPS_ASSERT(partitions_.size() == partitioner_.count());
  declaration_.priority = declared.priority;
  for (std::uint32_t i = 0; i < partitions_.size(); ++i) {
    Partition& partition = partitions_[i];
    partition.priority = declared.priority;
    partition.index = i;
    partition.lane = declared.owners[i];
    partition.id = PartitionId{declared.first_partition.value + i};
    partition.owner = this;
    partition.bytes = static_cast<std::uint32_t>(partitioner_.bytes_of(i));
    const std::size_t width = size_of(shape_.dtype);
    if (shape_.parts)
      partition.only_owner = shape_.parts.only_owner(partitioner_.offset(i) / width, partition.bytes / width);
  }
  set_turns(round_turn(id_));
}

void TensorState::set_turns(std::uint64_t first) {
  for (std::uint32_t i = 0; i < partitions_.size(); ++i)
    partitions_[partitioner_.in_order(i)].turn = first + i;
}

Status TensorState::may_drop() const {
  if (under_way_) {
    return make_error(ErrorCode::invalid_argument,
                      "tensor '" + shape_.name + "' is under way in round " + std::to_string(round_.value),
                      "wait for the operation that is under way before the next one on the same tensor");
  }
  if (view_ != nullptr) {
    return make_error(ErrorCode::invalid_argument,
                      "the answer of tensor '" + shape_.name + "' is still being read in place",
                      "release it before the next operation on the same tensor");
  }
  return {};
}

Status TensorState::begin(Request&& request) {
  if (Status status = may_begin(); !status.ok()) return status;
  const bool is_in_group = share().size > 1 || request.memory() != MemoryKind::host;
  BPS_ASSERT(!is_in_group || has_joined());
  if (is_in_group && request.view && !memory_.make_library()) return no_memory();
  request_ = std::move(request);
  cut(request_.bytes(shape_));
  under_way_ = true;
  tally_.begin(partitions_.size());
  error_.reset();
  refused_.reset();
  if (memory_.is_alone_in_group()) change_roles();
  for (Partition& partition : partitions_) {
    partition.state = State::waiting;
    partition.sent_once = false;
    partition.asked = false;
    partition.receiving = false;
    partition.settled = false;
    partition.in_library = false;
    partition.counted = false;
    partition.summed = partition.said = partition.spreading = partition.spread = false;
    partition.cost =
        contributed(partition) != nullptr ? static_cast<std::uint32_t>(contributed_bytes(partition)) : 0;
  }
  return {};
}

// Partitions behind the end of a call take part in it without payload.
void TensorState::cut(std::uint64_t bytes) {
  if (bytes == bytes_) return;
  bytes_ = bytes;
  for (Partition& partition : partitions_) {
    const std::uint64_t begin = std::min(partitioner_.offset(partition.index), bytes);
    const std::uint64_t end = std::min(partitioner_.offset(partition.index + 1), bytes);
    partition.bytes = static_cast<std::uint32_t>(end - begin);
  }
}

Payload TensorState::contribution(const Partition& partition) const {
  const std::byte* const from = contributed(partition);
  if (from == nullptr || refused_) return {};
  return {std::span(from, contributed_bytes(partition)),
          is_owner(partition) ? share().region.get() : request_.source().home.get()};
}

void TensorState::on_handed_over(Partition& partition, bool payload) {
  partition.state = State::sent;
  partition.sent_once = true;
  if (payload) ++partition.holds;
}

void TensorState::on_rendezvous(Partition& partition) {
  on_handed_over(partition, false);
  partition.state = State::refused;
}

void TensorState::on_released(Partition& partition) {
  if (partition.holds > 0) --partition.holds;
}

TensorState::Verdict TensorState::judge(const Partition& partition, Round round,
                                        std::uint64_t payload_bytes) const {
  if (round > round_) return Verdict::violation;
  if (!under_way_ || round < round_) return round < round_ ? Verdict::duplicate : Verdict::violation;
  if (!partition.sent_once) return Verdict::violation;
  if (partition.state == State::lent || partition.state == State::answered ||
      partition.state == State::failed) {
    return Verdict::duplicate;
  }
  const bool has_bytes = is_async() || takes(partition);
  return payload_bytes == (has_bytes ? partition.bytes : 0) ? Verdict::wanted : Verdict::violation;
}

std::byte* TensorState::receive(Partition& partition) {
  // The server has our contribution: another copy that waits would read what is being overwritten.
  partition.state = State::sent;
  partition.receiving = true;
  const bool to_library = in_library(partition) || is_owner(partition);
  if (to_library && (is_async() || !partition.lending)) {
    partition.in_library = memory_.make_home(partition);
    if (partition.in_library && is_async()) return memory_.next_home(partition);
    if (partition.in_library) {
      if (partition.kept == Kept::library) partition.kept = Kept::nothing;
      return memory_.home(partition);
    }
  } else if (!to_library && buffers_.output(partition) == nullptr) {
    return nullptr;
  } else if (!to_library && may_land(partition)) {
    return buffers_.output(partition);
  } else {
    partition.detour.reset(new (std::nothrow) std::byte[partition.bytes]);
    if (partition.detour != nullptr) return partition.detour.get();
  }
  partition.receiving = false;
  on_failed(partition, round_, no_memory());
  return nullptr;
}

Error TensorState::no_memory() const {
  return make_error(ErrorCode::out_of_memory, "no memory for an answer of tensor '" + shape_.name + "'",
                    "use less memory, or retain=0 (BPS_RETAIN=0), which needs none here");
}

void TensorState::on_answer(Partition& partition, std::uint32_t weight) {
  partition.receiving = false;
  if (partition.state == State::failed) return;
  const bool has_landed =
      partition.state != State::lent && !partition.in_library && partition.detour == nullptr;
  if (has_landed && buffers_.adds_own(partition)) {
    std::byte* const out = buffers_.output(partition);
    buffers_.add_own(partition, out, out, weight);
  }
  if (partition.state != State::lent) partition.spent = std::move(partition.lent);
  if (is_async() && partition.in_library) partition.upper = !partition.upper;
  if (is_async() && request_.is_broadcast()) ++partition.broadcasts;
  if (is_confirmed(partition)) {
    kept_.keep_none(partition);
  } else {
    kept_.keep(partition, round_, weight);
  }
  note_over(partition, false);
  partition.state = State::answered;
  partition.weight = weight;
  // How many ranks were in the round does not matter behind the end of its call.
  const bool is_behind = partition.bytes == 0 && bytes_ > 0;
  const bool is_empty = buffers_.wanted(partition).bytes == 0 && bytes_ > 0;
  if (!is_async() && (is_empty || !takes(partition))) return tally_.on_end(is_behind ? 0 : weight);
  tally_.on_answer(weight);
}

// A taker whose part has failed here is reported, too: its givers wait for it.
void TensorState::note_over(Partition& partition, bool told_failed) {
  using Confirmed = Partition::Confirmed;
  if (partition.role == Role::member) return;  // its owner reports it
  // A round behind the end of its call takes no slot.
  const bool is_reported = is_confirmed(partition) || (is_slot() && partition.bytes > 0);
  partition.confirmed = !is_reported || told_failed ? Confirmed::no
                        : takes(partition)          ? Confirmed::stored
                                                    : Confirmed::ended;
  partition.given_again = is_confirmed(partition) && !told_failed;
}

void TensorState::on_lent(Partition& partition, LentPayload answer, std::uint32_t weight) {
  partition.state = State::lent;
  if (partition.kept == Kept::loan) partition.kept = Kept::nothing;
  partition.spent = std::exchange(partition.lent, std::move(answer));
  partition.weight = weight;
}

bool TensorState::needs_spare(const Partition& partition) const {
  return partition.state == State::lent && !is_owner(partition) && buffers_.in_place(partition) &&
         (rules_.retain || buffers_.adds_own(partition));
}

bool TensorState::fetch(Partition& partition, std::byte* spare) {
  if (partition.state != State::lent) return true;
  partition.in_library = false;
  const bool to_library = is_owner(partition) || (is_async() && in_library(partition));
  if (!to_library && partition.holds > 0 && buffers_.in_place(partition)) return true;
  if (is_owner(partition) && partition.lending) return true;
  if (!partition.lent.intact()) return false;
  if (to_library) {
    if (!memory_.make_home(partition)) return on_failed(partition, round_, no_memory());
    if (is_owner(partition)) partition.kept = Kept::nothing;
    std::memcpy(memory_.next_home(partition), partition.lent.bytes().data(), partition.bytes);
    if (!partition.lent.intact()) return false;
    partition.in_library = true;
    if (is_owner(partition)) partition.lent.reset();
  } else if (std::byte* const out = buffers_.output(partition); out != nullptr) {
    const RoundBuffers::Wanted wanted = buffers_.wanted(partition);
    // In place it would overwrite the contribution, which is needed again if the answer turns out not to be
    // whole.
    std::byte* const first = needs_spare(partition) ? spare : out;
    put(partition, first, partition.lent.bytes().data() + wanted.begin, partition.weight);
    if (!partition.lent.intact()) {
      if (first == out && buffers_.in_place(partition))
        on_failed(partition, round_, overwritten("its server"));
      return false;
    }
    if (first != out) std::memcpy(out, first, wanted.bytes);
  }
  on_answer(partition, partition.weight);
  if (!(request_.view || keeps(partition)) || is_async()) partition.lent.reset();
  return true;
}

bool TensorState::on_not_ready(Partition& partition, Round round) {
  if (!under_way_ || round != round_ || partition.state != State::sent) return false;
  partition.state = State::refused;
  partition.asked = false;
  return true;
}

bool TensorState::on_clear_to_send(Partition& partition, Round round) {
  // In any other state the contribution is on its way already: a recall from before the lane's last
  // reconnect.
  if (!under_way_ || round != round_ || partition.state != State::refused) return false;
  partition.state = State::waiting;
  partition.asked = true;
  if (!is_async()) partition.counted = false;
  return true;
}

bool TensorState::on_failed(Partition& partition, Round round, const Error& error, bool told) {
  if (!under_way_ || round != round_) return false;
  if (partition.state == State::answered || partition.state == State::failed) return false;
  partition.lent.reset();
  partition.spent.reset();
  kept_.fail(partition, round, error, told);
  note_over(partition, told);
  partition.state = State::failed;
  if (!error_) error_ = error;
  return true;
}

bool TensorState::on_lane_broken(Partition& partition, const std::string& lane) {
  const bool was_receiving = partition.receiving;
  partition.lending = false;
  partition.spent.reset();
  if (partition.confirmed == Partition::Confirmed::told) partition.confirmed = Partition::Confirmed::stored;
  partition.resume_said = false;
  partition.holds = 0;
  partition.receiving = false;
  // An answer that is not fetched yet, or is only going to be read when the round has ended: the lender is
  // gone.
  const bool unread = partition.state == State::lent ||
                      (partition.state == State::answered && request_.view && partition.lent);
  if (!under_way_) return false;
  if (unread) {
    partition.lent.reset();
    if (partition.kept == Kept::loan) partition.kept = Kept::nothing;
    if (partition.state == State::answered) tally_.take_back();
    if (partition.settled) tally_.on_unsettled();
    partition.settled = false;
  } else if (partition.state != State::sent && partition.state != State::refused) {
    return false;
  }
  const bool in_the_way = partition.role == Role::alone && was_receiving && !rules_.retain &&
                          partition.detour == nullptr && buffers_.in_place(partition);
  partition.detour.reset();
  if (in_the_way) {
    on_failed(partition, round_, overwritten(lane));
    return false;
  }
  partition.state = State::waiting;
  partition.asked = false;
  partition.in_library = false;
  return true;
}

Error TensorState::overwritten(const std::string& lane) const {
  return make_error(ErrorCode::peer_lost,
                    lane + " broke while the answer to round " + std::to_string(round_.value) + " of '" +
                        shape_.name +
                        "' was arriving in place: the contribution is overwritten and cannot be sent again",
                    "use retain=1 (BPS_RETAIN=1), or separate memory for input and output, to survive this");
}

bool TensorState::settle(Partition& partition) {
  if (!under_way_ || partition.settled || partition.receiving) return false;
  if (partition.holds > 0 || partition.lending) return false;
  if (partition.state != State::answered && partition.state != State::failed) return false;
  if (partition.role != Role::alone) {
    if (!partition.spread || partition.open > 0) return false;
  } else if (partition.state == State::answered) {
    store(partition);
  }
  partition.detour.reset();
  partition.settled = true;
  tally_.on_settled();
  return tally_.is_settled();
}

// To where the answer of this round is to be, and to be kept.
void TensorState::store(Partition& partition) {
  const std::byte* const answer = partition.in_library ? memory_.home(partition) : partition.detour.get();
  if (std::byte* const out = buffers_.output(partition); out != nullptr && answer != nullptr) {
    put(partition, out, answer + buffers_.wanted(partition).begin, partition.weight);
  }
  if (buffers_.has_own(partition)) {
    std::byte* const out = buffers_.own_output(partition);
    const std::byte* const own = buffers_.input(partition);
    if (out != own) std::memcpy(out, own, partition.bytes);
  }
  if (partition.detour == nullptr || !(request_.view || keeps(partition))) return;
  std::memcpy(memory_.home(partition), partition.detour.get(), partition.bytes);
  if (keeps(partition)) partition.kept = Kept::library;
}

// What the program wants, of an answer whose wanted bytes are at `answer`.
void TensorState::put(const Partition& partition, std::byte* to, const std::byte* answer,
                      std::uint32_t weight) const {
  if (buffers_.adds_own(partition)) return buffers_.add_own(partition, to, answer, weight);
  std::memcpy(to, answer, buffers_.wanted(partition).bytes);
}

TensorState::Ended TensorState::end() {
  BPS_ASSERT(under_way_ && tally_.is_settled());
  check_weights();
  Ended ended{std::move(request_.done),
              error_ ? Result<std::uint32_t>(*error_) : Result<std::uint32_t>(tally_.weight())};
  kept_.give_back_loans();
  for (Partition& partition : partitions_)
    partition.spent.reset();
  if (request_.view && !error_) make_view();
  if (!error_) last_number_ = operation_number_;
  under_way_ = false;
  request_ = {};
  round_ = round_.next();
  return ended;
}

// What a server decided for one partition another one may have decided otherwise (decision 0012).
void TensorState::check_weights() {
  const Operation operation = request_.call.operation;
  const bool adds =
      !request_.call.is_copy() &&
      (operation == Operation::sum || operation == Operation::product || operation == Operation::bit_xor);
  if (error_ || !adds || bytes_ == 0 || is_async() || rules_.unequal_sums ||
      tally_.heaviest() <= tally_.lightest())
    return;
  error_ = make_error(ErrorCode::peer_lost,
                      "round " + std::to_string(round_.value) + " of " + shape_.name +
                          ": a worker was lost meanwhile, and partitions of the " +
                          std::string(name_of(operation)) + " hold " + std::to_string(tally_.heaviest()) +
                          " ranks, others " + std::to_string(tally_.lightest()),
                      "push the round once more from the inputs, use average, or allow it with unequal-sums "
                      "(BPS_UNEQUAL_SUMS=1)");
}

void TensorState::make_view() {
  view_ = std::make_shared<AnswerView>(memory_.hold(), partitions_.size());
  for (Partition& partition : partitions_) {
    if (partition.bytes == 0) break;
    const std::uint64_t offset = partitioner_.offset(partition.index);
    if (partition.lent) {
      view_->add(std::move(partition.lent), offset);
    } else {
      view_->add({memory_.home(partition), partition.bytes}, offset);
    }
  }
  kept_.keep_loans(view_);
}

TensorState::Ended TensorState::abort(const Error& error) {
  for (Partition& partition : partitions_) {
    partition.holds = 0;
    partition.receiving = false;
    partition.settled = true;
    partition.open = 0;
    partition.detour.reset();
    partition.lent.reset();
    partition.lending = false;
    partition.kept = Kept::nothing;
  }
  tally_.settle_all();
  error_ = error;
  return end();
}

// ---- partitions that move ----

DeclaredTensor TensorState::declared() const {
  DeclaredTensor declared;
  declared.tensor = id_;
  declared.priority = declaration_.priority;
  declared.first_partition = first_partition_;
  declared.owners.reserve(partitions_.size());
  for (const Partition& partition : partitions_)
    declared.owners.push_back(partition.lane);
  return declared;
}

Round TensorState::next_round(const Partition& partition) const {
  const bool over = partition.state == State::answered || partition.state == State::failed;
  return under_way_ && over ? round_.next() : round_;
}

StoredRounds TensorState::stored(const Partition& partition) const {
  return {partition.id, next_round(partition), KeptAnswers::version(partition), partition.broadcasts,
          !partition.given_again};
}

TensorState::Resumption TensorState::on_resumed(Partition& partition, Round open) {
  const Round next = next_round(partition);
  if (open < next) return Resumption::violation;
  partition.resuming = false;
  const bool wanted = under_way_ && partition.state == State::waiting;
  if (wanted && open == next) return Resumption::send;
  if (is_async() && open > next) {
    // What is not under way cannot be in the value.
    if (!wanted) return Resumption::violation;
    partition.counted = true;
    return Resumption::send;
  }
  // Others have it, so that mostly nobody needs the payload: the server asks for it if a taker does.
  if (wanted && is_confirmed(partition)) {
    partition.counted = true;
    return Resumption::send;
  }
  // Our contribution was in a sum that others have, or the round has failed without it: we are told.
  if (wanted) partition.state = State::sent;
  return Resumption::wait;
}

// ---- in a group of ranks that sum on their host first (decision 0019) ----

void TensorState::join_group(Share share) {
  BPS_ASSERT(!under_way_);
  const bool is_shared = share.size > 1;
  for (Partition& partition : partitions_) {
    if (is_shared)
      partition.role = partition.id.value % share.size == share.rank ? Role::owner : Role::member;
  }
  memory_.join(std::move(share));
}

// Alone in a group, this rank owns what goes by it, and all else is as without.
void TensorState::change_roles() {
  const Role role = is_grouped() ? Role::owner : Role::alone;
  bool is_lending = false;
  for (Partition& partition : partitions_) {
    partition.role = role;
    is_lending = is_lending || partition.lending;
  }
  if (!is_lending) memory_.drop_former();
}

const std::byte* TensorState::contributed(const Partition& partition) const {
  if (is_owner(partition)) {
    return request_.call.gives(has_root()) ? memory_.sum(partition) : nullptr;
  }
  return buffers_.input(partition);
}

LocalPiece TensorState::reduce_piece(const Partition& partition) const {
  LocalPiece piece;
  piece.partition = partition.id;
  piece.owner = partition.id.value % share().size;
  piece.dtype = shape_.dtype;
  piece.elements = static_cast<std::uint32_t>(partition.bytes / size_of(shape_.dtype));
  piece.in = buffers_.input(partition);
  piece.in_home = request_.source().home.get();
  piece.priority = partition.priority;
  if (!is_owner(partition)) return piece;
  piece.sum = memory_.sum(partition);
  piece.home = share().region.get();
  return piece;
}

LocalPiece TensorState::spread_piece(const Partition& partition) const {
  LocalPiece piece = reduce_piece(partition);
  piece.in = nullptr;
  piece.in_home = nullptr;
  piece.sum = nullptr;
  if (is_owner(partition)) piece.answer = memory_.home(partition);
  if (request_.view) {
    piece.out = is_owner(partition) ? nullptr : memory_.in_library(partition);
  } else if (std::byte* const out = buffers_.output(partition); out != nullptr) {
    piece.out = out;
    piece.watch = request_.watch;
  }
  return piece;
}

void TensorState::on_summed(Partition& partition) { partition.summed = true; }

void TensorState::on_refused(const Error& error) {
  refused_ = error;
  for (Partition& partition : partitions_)
    partition.cost = 0;
}

bool TensorState::may_spread(Partition& partition) {
  const bool is_over = partition.state == State::answered || partition.state == State::failed;
  if (!is_owner(partition)) return false;
  if (!under_way_ || !partition.summed || partition.spread || !is_over || partition.receiving) return false;
  if (partition.state == State::failed || partition.in_library) return true;
  // It came without payload, to the host that has it, or when another server was just reading what lies
  // there.
  if (partition.lending) return false;
  const std::byte* const from = partition.detour != nullptr ? partition.detour.get() : contributed(partition);
  BPS_ASSERT(from != nullptr);
  std::memcpy(memory_.home(partition), from, partition.bytes);
  partition.in_library = true;
  if (keeps(partition)) partition.kept = Kept::library;
  return true;
}

void TensorState::on_spread(Partition& partition, std::uint32_t weight) {
  partition.spread = true;
  if (is_owner(partition)) return;
  partition.state = State::answered;
  tally_.on_answer(weight);
}

void TensorState::on_not_spread(Partition& partition, const Error& error, bool told) {
  partition.spread = true;
  on_failed(partition, round_, error, told);
  if (!error_) error_ = error;  // an answer that is here only
}

}  // namespace bps
