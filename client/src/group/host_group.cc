#include "client/src/group/host_group.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "proto/base/assert.h"
#include "proto/base/dtype.h"
#include "proto/reduce/reduce.h"
#include "proto/wire/limits.h"

namespace bps {

namespace {

std::size_t bytes_of(const LocalPiece& piece) { return std::size_t{piece.elements} * size_of(piece.dtype); }

bool is_broadcast(const Collective& collective) { return collective.kind == RoundKind::broadcast; }

}  // namespace

HostGroup::HostGroup(EventLoop& loop, Transport& memory, Options options, Owner& owner)
    : loop_(loop),
      memory_(memory),
      options_(std::move(options)),
      owner_(owner),
      links_(options_.ranks.size()) {
  BPS_ASSERT(options_.member < size());
  turn_->group = this;
}

HostGroup::~HostGroup() {
  turn_->group = nullptr;
  // Tasks run in the order in which they were posted: the one that is posted finds its turn there.
  if (turn_->is_posted) loop_.post([turn = std::move(turn_)] { (void)turn; });
}

void HostGroup::begin(std::span<const std::byte>, std::function<void(Status)> done) {
  tell({.then = std::move(done)});
}

void HostGroup::when_readable(const OperationBuffer&, std::function<void(Status)> then) {
  tell({.then = std::move(then)});
}

void HostGroup::stage(const LocalPiece&, std::function<void(Status)> then) {
  tell({.then = std::move(then)});
}

void HostGroup::reduce(const Collective& collective, std::span<const LocalPiece> pieces) {
  if (broken_) return tell({.kind = Event::Kind::ended, .is_ok = false, .number = collective.number});
  const std::uint32_t slot = open(false, collective, pieces);
  for (std::uint32_t i = 0; i < pieces.size(); ++i)
    reduce_piece(slot, i);
  begun(slot);
}

void HostGroup::spread(const Collective& collective, std::span<const LocalPiece> pieces) {
  if (broken_) return tell({.kind = Event::Kind::ended, .is_ok = false, .number = collective.number});
  const std::uint32_t slot = open(true, collective, pieces);
  for (std::uint32_t i = 0; i < pieces.size(); ++i)
    spread_piece(slot, i);
  begun(slot);
}

std::uint32_t HostGroup::open(bool is_spread, const Collective& collective,
                              std::span<const LocalPiece> pieces) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.push_back(std::make_unique<Open>());
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  Open& open = *slots_[slot];
  open.is_open = true;
  open.is_spread = is_spread;
  open.collective = collective;
  open.pieces.assign(pieces.begin(), pieces.end());
  open.missing.assign(pieces.size(), 0);
  const std::size_t parts = pieces.size() * (is_spread ? 1 : size());
  if (open.parts.size() < parts) open.parts.resize(parts);
  open.kept = 0;
  // Until all of it has begun.
  open.waits_for = 1;
  open.sending = 0;
  return slot;
}

void HostGroup::begun(std::uint32_t slot) {
  catch_up();
  --slots_[slot]->waits_for;
  settle(slot);
}

void HostGroup::reduce_piece(std::uint32_t slot, std::uint32_t index) {
  Open& open = *slots_[slot];
  const LocalPiece& piece = open.pieces[index];
  const std::optional<std::uint32_t> root = open.collective.root;
  const bool has_input = !is_broadcast(open.collective) || root == options_.member;
  if (piece.owner != options_.member) {
    if (has_input) send(slot, index, piece.owner);
    return;
  }
  for (std::uint32_t from = 0; from < size(); ++from) {
    if (from == options_.member || (is_broadcast(open.collective) && from != root)) continue;
    expect(slot, index, from);
    ++open.missing[index];
  }
  ++open.waits_for;
  if (open.missing[index] == 0) sum(slot, index);
}

void HostGroup::spread_piece(std::uint32_t slot, std::uint32_t index) {
  Open& open = *slots_[slot];
  const LocalPiece& piece = open.pieces[index];
  const auto is_wanted = [&](std::uint32_t member) { return open.collective.root != member; };
  if (piece.owner != options_.member) {
    if (!is_wanted(options_.member)) return;
    expect(slot, index, piece.owner);
    ++open.waits_for;
    return;
  }
  for (std::uint32_t to = 0; to < size(); ++to) {
    if (to != options_.member && is_wanted(to)) send(slot, index, to);
  }
  if (piece.out != nullptr) std::memcpy(piece.out, piece.answer, bytes_of(piece));
}

void HostGroup::send(std::uint32_t slot, std::uint32_t index, std::uint32_t to) {
  Open& open = *slots_[slot];
  const LocalPiece& piece = open.pieces[index];
  const std::byte* const begin = open.is_spread ? piece.answer : piece.in;
  ++open.sending;
  owner_.send(to, message_of(frame_of(open, piece)),
              {std::span(begin, bytes_of(piece)), open.is_spread ? piece.home : piece.in_home}, slot + 1);
}

void HostGroup::expect(std::uint32_t slot, std::uint32_t index, std::uint32_t from) {
  links_[from].expected.push({slot, index});
}

// What came before its turn, and has it now.
void HostGroup::catch_up() {
  for (std::uint32_t from = 0; from < size() && !broken_; ++from) {
    Link& link = links_[from];
    while (!link.early.empty() && !link.expected.empty()) {
      Early early = std::move(link.early.front());
      link.early.pop();
      link.early_bytes -= early.part.buffer.size();
      const Status status = match(from, early.frame, std::move(early.part));
      if (!status.ok()) return break_off(status.error());
    }
  }
}

// ---- what comes from other members

Message HostGroup::message_of(const Frame& frame) const {
  if (frame.is_spread) {
    Aggregate message;
    message.partition = frame.partition;
    message.round = frame.round;
    return message;
  }
  PushPull message;
  message.job_run = options_.job_run;
  message.partition = frame.partition;
  message.round = frame.round;
  message.call = frame.call;
  return message;
}

HostGroup::Frame HostGroup::frame_of(const Open& open, const LocalPiece& piece) const {
  Frame frame{open.is_spread, piece.partition, open.collective.round, {}};
  if (open.is_spread) return frame;
  frame.call = open.collective.operation;
  if (is_broadcast(open.collective)) frame.call = RoundCall::broadcast(options_.ranks[*open.collective.root]);
  return frame;
}

Result<HostGroup::Frame> HostGroup::read(std::uint32_t from, const Message& message) const {
  Frame frame;
  if (const auto* part = std::get_if<PushPull>(&message)) {
    frame = {false, part->partition, part->round, part->call};
  } else if (const auto* answer = std::get_if<Aggregate>(&message)) {
    frame = {true, answer->partition, answer->round, {}};
  } else {
    return violation(from, std::string("has sent ") + name_of(message) + " among the data");
  }
  if (message != message_of(frame))
    return violation(from,
                     std::string("has sent ") + name_of(message) + " with fields that members do not use");
  return frame;
}

Status HostGroup::admit(std::uint32_t from, std::uint64_t bytes, bool is_lent) const {
  const Link& link = links_[from];
  if (from == options_.member) return violation(from, "has sent to itself");
  if (bytes == 0 || bytes > kMaxPartitionBytes)
    return violation(from, "has sent " + std::to_string(bytes) + " bytes as a partition");
  if (!link.expected.empty()) return {};
  if (link.early.size() >= options_.max_early_frames ||
      (!is_lent && link.early_bytes + bytes > options_.max_early_bytes))
    return violation(
        from, "has sent more than was asked for: " + std::to_string(link.early.size()) + " partitions");
  return {};
}

std::byte* HostGroup::payload(std::uint32_t from, const Message& message, std::uint64_t bytes) {
  if (broken_) return nullptr;
  Link& link = links_[from];
  const auto frame = read(from, message);
  const Status admitted = frame.ok() ? admit(from, bytes, false) : Status(frame.error());
  if (!admitted.ok()) {
    link.refused = admitted.error();
    return nullptr;
  }
  link.arriving = take_buffer(bytes);
  return link.arriving.data();
}

Status HostGroup::message(std::uint32_t from, Message& message, std::span<std::byte> payload) {
  if (broken_) return {};
  Link& link = links_[from];
  if (link.refused) return *std::exchange(link.refused, std::nullopt);
  const auto frame = read(from, message);
  if (!frame.ok()) return frame.error();
  if (payload.empty()) return violation(from, "has sent a partition without its bytes");
  Part part;
  part.buffer = std::move(link.arriving);
  link.arriving.clear();
  return arrived(from, *frame, std::move(part));
}

Result<bool> HostGroup::lent(std::uint32_t from, Message& message, LentPayload& payload) {
  if (broken_) {
    payload.reset();
    return true;
  }
  const auto frame = read(from, message);
  if (!frame.ok()) return frame.error();
  if (const Status status = admit(from, payload.bytes().size(), true); !status.ok()) return status.error();
  Part part;
  part.loan = std::move(payload);
  if (const Status status = arrived(from, *frame, std::move(part)); !status.ok()) return status.error();
  return true;
}

Status HostGroup::arrived(std::uint32_t from, const Frame& frame, Part part) {
  Link& link = links_[from];
  if (!link.expected.empty()) return match(from, frame, std::move(part));
  link.early_bytes += part.buffer.size();
  link.early.push({frame, std::move(part)});
  return {};
}

Status HostGroup::match(std::uint32_t from, const Frame& frame, Part part) {
  Link& link = links_[from];
  const auto [slot, index] = link.expected.front();
  Open& open = *slots_[slot];
  const LocalPiece& piece = open.pieces[index];
  const Frame due = frame_of(open, piece);
  if (frame != due || part.bytes().size() != bytes_of(piece)) {
    const auto text = [](const Frame& of, std::size_t bytes) {
      return std::string(of.is_spread ? "the answer" : "the part") + " of partition " +
             std::to_string(of.partition.value) + ", round " + std::to_string(of.round.value) +
             (of.is_spread ? "" : " (" + to_string(of.call) + ")") + ", " + std::to_string(bytes) + " bytes";
    };
    return violation(from, "has sent " + text(frame, part.bytes().size()) + " where " +
                               text(due, bytes_of(piece)) + " was due");
  }
  link.expected.pop();
  if (!open.is_spread) {
    open.parts[index * size() + from] = std::move(part);
    if (--open.missing[index] == 0) sum(slot, index);
  } else {
    open.parts[index] = std::move(part);
    if (is_still_read(piece)) {
      ++open.kept;
    } else {
      copy(slot, index);
    }
  }
  settle(slot);
  return {};
}

// Where `out` is where `in` was: the owner has read it, but the link has not said so yet.
bool HostGroup::is_still_read(const LocalPiece& answer) const {
  if (answer.out == nullptr) return false;
  for (const auto& open : slots_) {
    if (!open->is_open || open->is_spread || open->sending == 0) continue;
    const std::uint32_t first = open->pieces.front().partition.value, index = answer.partition.value - first;
    if (index >= open->pieces.size() || open->pieces[index].owner == options_.member) continue;
    const std::byte* const in = open->pieces[index].in;
    if (in != nullptr && in < answer.out + bytes_of(answer) && answer.out < in + bytes_of(answer))
      return true;
  }
  return false;
}

void HostGroup::copy(std::uint32_t slot, std::uint32_t index) {
  Open& open = *slots_[slot];
  const LocalPiece& piece = open.pieces[index];
  Part& part = open.parts[index];
  if (piece.out != nullptr) std::memcpy(piece.out, part.bytes().data(), bytes_of(piece));
  const bool is_intact = part.intact();
  release(part);
  if (is_intact) --open.waits_for;
}

void HostGroup::copy_kept() {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    Open& open = *slots_[slot];
    for (std::uint32_t i = 0; open.is_open && open.is_spread && open.kept > 0 && i < open.pieces.size();
         ++i) {
      if (open.parts[i].bytes().empty() || is_still_read(open.pieces[i])) continue;
      --open.kept;
      copy(slot, i);
    }
    settle(slot);
  }
}

// All parts are here. The order is that of the ranks, whatever came first.
void HostGroup::sum(std::uint32_t slot, std::uint32_t index) {
  Open& open = *slots_[slot];
  const LocalPiece& piece = open.pieces[index];
  const std::span<Part> parts = std::span(open.parts).subspan(index * size(), size());
  inputs_.clear();
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (i == options_.member && piece.in != nullptr) inputs_.push_back(piece.in);
    if (!parts[i].bytes().empty()) inputs_.push_back(parts[i].bytes().data());
  }
  if (is_broadcast(open.collective)) {
    if (!inputs_.empty()) std::memcpy(piece.sum, inputs_[0], bytes_of(piece));
  } else {
    reduce::combine(piece.dtype, open.collective.operation, piece.sum, inputs_, piece.elements);
  }
  const bool is_intact =
      std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.intact(); });
  for (Part& part : parts)
    release(part);
  if (!is_intact) return;
  --open.waits_for;
  tell({.kind = Event::Kind::summed, .number = open.collective.number, .index = index});
}

void HostGroup::release(Part& part) {
  part.loan.reset();
  if (part.buffer.capacity() > 0) free_buffers_.push_back(std::move(part.buffer));
  part.buffer.clear();
}

HostGroup::Bytes HostGroup::take_buffer(std::size_t bytes) {
  Bytes buffer;
  if (!free_buffers_.empty()) {
    buffer = std::move(free_buffers_.back());
    free_buffers_.pop_back();
  }
  buffer.resize(bytes);
  return buffer;
}

// ---- ends

void HostGroup::sent(std::uint32_t, std::uint64_t cookie) {
  if (is_aborted_) return;
  const auto slot = static_cast<std::uint32_t>(cookie - 1);
  BPS_ASSERT(cookie > 0 && slot < slots_.size() && slots_[slot]->sending > 0);
  Open& open = *slots_[slot];
  if (--open.sending > 0) return;
  settle(slot);
  if (!open.is_spread && !broken_) copy_kept();
}

void HostGroup::settle(std::uint32_t slot) {
  const Open& open = *slots_[slot];
  if (open.is_open && open.sending == 0 && (broken_ || open.waits_for == 0)) end(slot, !broken_);
}

void HostGroup::end(std::uint32_t slot, bool is_ok) {
  Open& open = *slots_[slot];
  open.is_open = false;
  free_slots_.push_back(slot);
  tell({.kind = Event::Kind::ended, .is_ok = is_ok, .number = open.collective.number});
}

// What links may still read ends when they do not any more.
void HostGroup::break_off(const Error& error) {
  broken_ = error;
  drop_everything();
  tell({.kind = Event::Kind::broken});
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    settle(slot);
}

void HostGroup::abort(const Error& error) {
  if (is_aborted_) return;
  is_aborted_ = true;
  if (!broken_) broken_ = error;
  drop_everything();
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot]->is_open) end(slot, false);
  }
}

std::vector<std::uint32_t> HostGroup::missing(PartitionId partition) const {
  std::vector<std::uint32_t> members;
  for (const auto& open : slots_) {
    if (!open->is_open || open->is_spread) continue;
    const std::uint32_t index = partition.value - open->pieces.front().partition.value;
    if (index >= open->pieces.size() || open->missing[index] == 0) continue;
    for (std::uint32_t from = 0; from < size(); ++from) {
      const bool is_due =
          from != options_.member && (!is_broadcast(open->collective) || open->collective.root == from);
      if (is_due && open->parts[index * size() + from].bytes().empty()) members.push_back(from);
    }
  }
  return members;
}

void HostGroup::drop_everything() {
  for (Link& link : links_) {
    link.expected.clear();
    for (; !link.early.empty(); link.early.pop())
      release(link.early.front().part);
    link.early_bytes = 0;
  }
  for (const auto& open : slots_) {
    for (Part& part : open->parts)
      release(part);
  }
}

void HostGroup::tell(Event event) {
  events_.push_back(std::move(event));
  if (turn_->is_posted) return;
  turn_->is_posted = true;
  loop_.post([turn = turn_.get()] {
    turn->is_posted = false;
    if (turn->group != nullptr) turn->group->deliver();
  });
}

void HostGroup::deliver() {
  const std::shared_ptr<Turn> turn = turn_;
  std::vector<Event> events = std::move(delivering_);
  events.swap(events_);
  for (Event& event : events) {
    const Status status = event.is_ok ? Status() : Status(*broken_);
    switch (event.kind) {
      case Event::Kind::summed: owner_.on_summed(event.number, event.index); break;
      case Event::Kind::ended: owner_.on_ended(event.number, status); break;
      case Event::Kind::broken: owner_.on_broken(*broken_); break;
      case Event::Kind::tell: event.then(broken_ ? Status(*broken_) : Status()); break;
    }
    if (turn->group == nullptr) return;
  }
  events.clear();
  delivering_ = std::move(events);
}

Error HostGroup::violation(std::uint32_t from, const std::string& what) const {
  return make_error(ErrorCode::protocol,
                    "rank " + std::to_string(options_.ranks[from].value) + " of this host " + what,
                    "run the same release of bps on all ranks");
}

}  // namespace bps
