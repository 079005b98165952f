#include "client/src/group/testing/fake_group.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "proto/base/assert.h"
#include "proto/base/dtype.h"
#include "proto/reduce/reduce.h"

namespace bps {

namespace {

constexpr std::byte kRubbish{0xbd};

std::span<std::byte> memory_of(const LocalPiece& piece, std::byte* begin) {
  return {begin, begin == nullptr ? 0 : piece.elements * size_of(piece.dtype)};
}

std::vector<std::byte> copy_of(const LocalPiece& piece, const std::byte* begin) {
  return begin == nullptr ? std::vector<std::byte>()
                          : std::vector<std::byte>(begin, begin + piece.elements * size_of(piece.dtype));
}

bool is_still(std::span<const std::byte> expected, const std::byte* begin) {
  return std::equal(expected.begin(), expected.end(), begin);
}

bool is_rubbish(std::span<const std::byte> memory) {
  return std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == kRubbish; });
}

void make_rubbish(std::span<std::byte> memory) { std::fill(memory.begin(), memory.end(), kRubbish); }

bool is_same(const LocalPiece& a, const LocalPiece& b) {
  return a.partition == b.partition && a.owner == b.owner && a.dtype == b.dtype && a.elements == b.elements;
}

bool is_same(const Collective& a, const Collective& b) {
  return a.number == b.number && a.tensor == b.tensor && a.round == b.round && a.kind == b.kind &&
         a.operation == b.operation && a.root == b.root && a.memory == b.memory;
}

}  // namespace

// What one member has in a collective, and how much has not happened of that which it waits for.
struct FakeHost::Part {
  std::vector<LocalPiece> pieces;
  std::vector<std::vector<std::byte>> was;  // at the call: `in` of a reduce, `answer` of a spread
  std::vector<bool> written;                // `sum`, or `out`
  std::size_t waits_for = 0;
  bool is_taken = false;  // `in` has been read
  bool is_over = false;
};

struct FakeHost::Entry {
  bool is_spread = false;
  Collective collective;
  std::vector<std::unique_ptr<Part>> parts;  // by member
  std::uint32_t taken = 0;
  std::uint32_t over = 0;
};

FakeHost::FakeHost(EventLoop& loop, std::uint32_t size, Options options)
    : loop_(loop), size_(size), options_(std::move(options)), random_(options_.seed), members_(size) {}

FakeHost::~FakeHost() = default;

std::unique_ptr<FakeGroup> FakeHost::join(std::uint32_t member, LocalGroup::Owner& owner) {
  BPS_ASSERT(member < size_ && members_[member] == nullptr);
  std::unique_ptr<FakeGroup> group(new FakeGroup(*this, member, owner));
  members_[member] = group.get();
  return group;
}

void FakeHost::violated(const std::string& what) const {
  if (options_.on_violation) return options_.on_violation(what);
  std::fprintf(stderr, "fake group: %s\n", what.c_str());
  BPS_ASSERT(false && "a user of the fake group broke a rule");
}

Duration FakeHost::delay() {
  return Duration(
      static_cast<Duration::rep>(random_() % (static_cast<std::uint64_t>(options_.max_delay.count()) + 1)));
}

void FakeHost::later(std::function<void()> what) {
  loop_.after(delay(), [alive = std::weak_ptr(alive_), what = std::move(what)] {
    if (!alive.expired()) what();
  });
}

FakeHost::Entry* FakeHost::find(std::uint64_t number) {
  const auto found = entries_.find(number);
  return found == entries_.end() ? nullptr : found->second.get();
}

// Nobody's begin() ends before all have begun.
void FakeHost::begun(FakeGroup& member, std::span<const std::byte> setup) {
  if (!std::equal(setup.begin(), setup.end(), setup_.begin(), setup_.end()))
    violated("member " + std::to_string(member.member_) + " begins with another setup than the leader's");
  if (++begun_ < size_) return;
  for (std::uint32_t i = 0; i < size_; ++i) {
    later([this, i] {
      FakeGroup* const group = members_[i];
      if (group == nullptr || !group->begun_) return;
      group->is_begun_ = true;
      std::exchange(group->begun_, {})({});
    });
  }
}

void FakeHost::join_collective(FakeGroup& member, bool is_spread, const Collective& collective,
                               std::span<const LocalPiece> pieces) {
  auto& place = entries_[collective.number];
  if (!place) {
    place = std::make_unique<Entry>();
    place->is_spread = is_spread;
    place->collective = collective;
    place->parts.resize(size_);
  }
  Entry& entry = *place;
  compare(entry, is_spread, collective, pieces);
  auto part = std::make_unique<Part>();
  part->pieces.assign(pieces.begin(), pieces.end());
  part->written.resize(pieces.size());
  for (const LocalPiece& piece : pieces) {
    const bool is_owner = piece.owner == member.member_;
    part->was.push_back(copy_of(piece, is_spread ? (is_owner ? piece.answer : nullptr) : piece.in));
    part->waits_for += (is_spread ? 1 : 0) + (is_owner ? (is_spread ? size_ - 1 : 1) : 0);
    make_rubbish(memory_of(piece, is_spread ? piece.out : (is_owner ? piece.sum : nullptr)));
  }
  entry.parts[member.member_] = std::move(part);
  if (!is_spread)
    return later([this, number = collective.number, m = member.member_] { take_input(number, m); });
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::uint32_t to = 0; to < size_; ++to) {
      const bool is_mine = pieces[i].owner == member.member_;
      if (!(is_mine ? entry.parts[to] != nullptr : to == member.member_ && entry.parts[pieces[i].owner]))
        continue;
      later([this, number = collective.number, i, to] { copy(number, i, to); });
    }
  }
}

void FakeHost::compare(const Entry& entry, bool is_spread, const Collective& collective,
                       std::span<const LocalPiece> pieces) {
  const std::string name = "collective " + std::to_string(collective.number);
  if (entry.is_spread != is_spread || !is_same(entry.collective, collective))
    violated(name + " is not the same at all members");
  for (const auto& part : entry.parts) {
    if (!part) continue;
    if (!std::equal(part->pieces.begin(), part->pieces.end(), pieces.begin(), pieces.end(),
                    [](const LocalPiece& a, const LocalPiece& b) { return is_same(a, b); }))
      violated(name + " has other pieces at another member");
    return;
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].owner >= size_) violated(name + " has a piece whose owner is no member");
    if (pieces[i].partition.value != pieces[0].partition.value + i)
      violated(name + " has pieces that are not consecutive");
  }
}

// What is read is as it was at the call, and nobody else has written what is to be written.
void FakeHost::check_memory(const Part& part, const LocalPiece& piece, bool is_spread) {
  const auto index = static_cast<std::size_t>(&piece - part.pieces.data());
  const std::string name = " of partition " + std::to_string(piece.partition.value);
  const std::byte* const read = is_spread ? piece.answer : piece.in;
  // What has been taken may be overwritten by the answer to it, which can come before all has been summed.
  if (!part.is_taken && !is_still(part.was[index], read))
    violated((is_spread ? "the answer" : "the input") + name + " was changed while it was being read");
  if (!part.written[index] && !is_rubbish(memory_of(piece, is_spread ? piece.out : piece.sum)))
    violated((is_spread ? "the output" : "the sum") + name + " was written by somebody else");
}

void FakeHost::take_input(std::uint64_t number, std::uint32_t member) {
  Entry* const entry = find(number);
  if (entry == nullptr || entry->parts[member]->is_over) return;
  Part& part = *entry->parts[member];
  for (const LocalPiece& piece : part.pieces)
    check_memory(part, piece, false);
  part.is_taken = true;
  if (++entry->taken == size_) {
    for (std::size_t i = 0; i < part.pieces.size(); ++i)
      later([this, number, i] { sum(number, i); });
  }
  settle(number, member);
}

void FakeHost::sum(std::uint64_t number, std::size_t index) {
  Entry* const entry = find(number);
  if (entry == nullptr) return;
  const std::uint32_t owner = entry->parts[0]->pieces[index].owner;
  Part& part = *entry->parts[owner];
  if (part.is_over || members_[owner]->broken_) return;
  const LocalPiece& piece = part.pieces[index];
  check_memory(part, piece, false);
  std::vector<const std::byte*> inputs;
  for (const auto& from : entry->parts) {
    if (!from->was[index].empty()) inputs.push_back(from->was[index].data());
  }
  if (entry->collective.kind == RoundKind::broadcast) {
    if (!inputs.empty()) std::memcpy(piece.sum, inputs[0], piece.elements * size_of(piece.dtype));
  } else {
    reduce::combine(piece.dtype, entry->collective.operation, piece.sum, inputs, piece.elements);
  }
  part.written[index] = true;
  --part.waits_for;
  members_[owner]->owner_.on_summed(number, index);
  settle(number, owner);
}

void FakeHost::copy(std::uint64_t number, std::size_t index, std::uint32_t to) {
  Entry* const entry = find(number);
  if (entry == nullptr) return;
  Part& part = *entry->parts[to];
  const std::uint32_t owner = part.pieces[index].owner;
  Part& from = *entry->parts[owner];
  if (part.is_over || from.is_over || members_[owner]->broken_ || members_[to]->broken_) return;
  check_memory(from, from.pieces[index], true);
  check_memory(part, part.pieces[index], true);
  if (std::byte* const out = part.pieces[index].out)
    std::memcpy(out, from.was[index].data(), from.was[index].size());
  part.written[index] = true;
  --part.waits_for;
  if (owner != to) --from.waits_for;
  settle(number, to);
  if (owner != to) settle(number, owner);
}

void FakeHost::settle(std::uint64_t number, std::uint32_t member) {
  const Entry* const entry = find(number);
  if (entry == nullptr) return;
  const Part& part = *entry->parts[member];
  if (part.waits_for != 0 || (!entry->is_spread && !part.is_taken)) return;
  later([this, number, member] { end(number, member); });
}

void FakeHost::end(std::uint64_t number, std::uint32_t member) {
  FakeGroup* const group = members_[member];
  if (group == nullptr || group->hangs_ || group->open_.erase(number) == 0) return;
  const Status status = group->broken_ ? Status(*group->broken_) : Status();
  Entry* const entry = find(number);
  if (entry != nullptr && entry->parts[member]) {
    Part& part = *entry->parts[member];
    part.is_over = true;
    for (std::size_t i = 0; i < part.pieces.size(); ++i) {
      const LocalPiece& piece = part.pieces[i];
      check_memory(part, piece, entry->is_spread);
      if (status.ok() || part.written[i]) continue;
      make_rubbish(memory_of(piece, entry->is_spread        ? piece.out
                                    : piece.owner == member ? piece.sum
                                                            : nullptr));
    }
    if (++entry->over == size_) entries_.erase(number);
  }
  group->owner_.on_ended(number, status);
}

FakeGroup::~FakeGroup() {
  if (!open_.empty()) host_.violated("a group is destroyed while a collective of it is open");
  host_.members_[member_] = nullptr;
}

void FakeGroup::break_at(std::uint64_t call, const Error& error) {
  calls_until_break_ = call;
  break_error_ = error;
  if (call == 0) break_now(error);
}

void FakeGroup::hold_readable(bool hold) {
  holds_ = hold;
  if (hold) return;
  for (auto& then : std::exchange(unreadable_, {}))
    tell(std::move(then));
}

void FakeGroup::tell(std::function<void(Status)> then) {
  host_.later([this, &host = host_, member = member_, then = std::move(then)] {
    if (host.members_[member] == this && !hangs_) then(broken_ ? Status(*broken_) : Status());
  });
}

bool FakeGroup::called(const char* what) {
  if (!is_begun_ && !broken_) host_.violated(std::string(what) + " before begin() has ended");
  if (calls_until_break_ > 0 && --calls_until_break_ == 0) break_now(break_error_);
  return !broken_;
}

void FakeGroup::break_now(const Error& error) {
  if (broken_) return;
  host_.loop_.post([&host = host_, alive = std::weak_ptr(host_.alive_), member = member_, error] {
    if (!alive.expired() && host.members_[member] != nullptr) host.members_[member]->owner_.on_broken(error);
  });
  abort(error);
}

void FakeGroup::abort(const Error& error) {
  if (broken_) return;
  broken_ = error;
  if (hangs_) {
    host_.loop_.after(kPatience,
                      [this, &host = host_, alive = std::weak_ptr(host_.alive_), member = member_] {
                        if (alive.expired() || host.members_[member] != this) return;
                        open_.clear();
                        owner_.on_left_behind(make_error(ErrorCode::os, "the fake GPU has not come to rest"));
                      });
  }
  for (const std::uint64_t number : open_)
    host_.later([&host = host_, number, member = member_] { host.end(number, member); });
  for (auto& then : std::exchange(unreadable_, {}))
    tell(std::move(then));
  if (begun_) tell(std::exchange(begun_, {}));
}

Sequencer::Traits FakeGroup::traits() const { return host_.options_.traits; }

void FakeGroup::make_setup(std::function<void(Result<std::vector<std::byte>>)> done) {
  if (member_ != 0) host_.violated("only the leader makes the setup");
  host_.setup_.assign(16, std::byte{static_cast<unsigned char>(host_.options_.seed)});
  host_.later([this, &host = host_, member = member_, done = std::move(done)] {
    if (host.members_[member] == this && !hangs_) done(host.setup_);
  });
}

void FakeGroup::begin(std::span<const std::byte> setup, std::function<void(Status)> done) {
  if (begun_ || is_begun_) host_.violated("begin() was called twice");
  begun_ = std::move(done);
  host_.begun(*this, setup);
}

Result<std::shared_ptr<Region>> FakeGroup::allocate(std::size_t bytes) {
  if (allocation_error_) return *allocation_error_;
  auto region = allocate_ordinary_region(bytes);
  if (region.ok()) regions_.push_back(*region);
  return region;
}

void FakeGroup::when_readable(const OperationBuffer&, std::function<void(Status)> then) {
  const bool works = called("when_readable");
  if (works && holds_) return unreadable_.push_back(std::move(then));
  tell(std::move(then));
}

void FakeGroup::reduce(const Collective& what, std::span<const LocalPiece> pieces) {
  for (const LocalPiece& piece : pieces) {
    const bool is_broadcast = what.kind == RoundKind::broadcast;
    if ((piece.in == nullptr) != (is_broadcast && what.root != member_))
      host_.violated("an input is missing, or of one who has none");
    if (is_broadcast && !what.root) continue;
    if (piece.owner == member_ && !is_home(piece, piece.sum))
      host_.violated("a sum lies in no region of the group");
  }
  collective(false, what, pieces);
}

void FakeGroup::stage(const LocalPiece& piece, std::function<void(Status)> then) {
  if (piece.owner != member_ || !is_home(piece, piece.answer))
    host_.violated("what is staged is no answer of this member's, or lies in no region of the group");
  called("stage");
  tell([this, partition = piece.partition, then = std::move(then)](const Status& status) {
    staged_.insert(partition);
    then(status);
  });
}

void FakeGroup::spread(const Collective& what, std::span<const LocalPiece> pieces) {
  for (const LocalPiece& piece : pieces) {
    if (piece.owner != member_) continue;
    if (!is_home(piece, piece.answer)) host_.violated("an answer lies in no region of the group");
    if (staged_.erase(piece.partition) == 0 && !broken_)
      host_.violated("an answer is spread before it was staged");
  }
  collective(true, what, pieces);
}

bool FakeGroup::is_home(const LocalPiece& piece, const std::byte* begin) const {
  return std::any_of(regions_.begin(), regions_.end(), [&](const auto& region) {
    return region.get() == piece.home && begin != nullptr &&
           region->contains({begin, piece.elements * size_of(piece.dtype)});
  });
}

void FakeGroup::collective(bool is_spread, const Collective& what, std::span<const LocalPiece> pieces) {
  const bool works = called(is_spread ? "spread" : "reduce");
  if (next_ && *next_ != what.number) host_.violated("collectives are not numbered without gaps");
  if (pieces.empty()) host_.violated("a collective has no piece");
  next_ = what.number + 1;
  open_.insert(what.number);
  if (works) return host_.join_collective(*this, is_spread, what, pieces);
  host_.later([&host = host_, number = what.number, member = member_] { host.end(number, member); });
}

}  // namespace bps
