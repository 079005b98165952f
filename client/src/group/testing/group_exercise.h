// For tests of local groups: gives all members of one the same random work, and checks what comes of it.
//
// Stands for everything around a group: the order in which all act is fixed here, each member follows it at a
// pace of its own, and the servers answer a sum with itself. Every result is compared with the oracle, bit
// for bit; every collective must end once, well, and no callback may come inside a call.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/src/group/local_group.h"
#include "proto/reduce/oracle.h"

namespace bps::testing {

struct ExerciseTensor {
  DType dtype = DType::f32;
  RoundKind kind = RoundKind::push_pull;
  Operation operation = Operation::sum;
  std::optional<std::uint32_t> root = {};
  std::vector<std::uint32_t> elements;  // of each partition
  // Of `in` and `out`, if not ordinary memory. In place: they are the same.
  std::function<std::shared_ptr<Region>(std::uint32_t member, std::size_t bytes)> allocate = {};
  bool in_place = false;
};

class GroupExercise {
 public:
  struct Member final : LocalGroup::Owner {
    void on_summed(std::uint64_t number, std::size_t place) override {
      exercise->summed(*this, number, place);
    }
    void on_ended(std::uint64_t number, const Status& status) override {
      CHECK_FALSE(is_inside);
      CHECK(ended.emplace(number, status).second);
      CHECK((!status.ok() || !broken));
    }
    void on_broken(const Error& error) override {
      CHECK_FALSE(is_inside);
      CHECK_FALSE(broken);
      broken = error;
    }
    void send(std::uint32_t member, const Message& message, Payload payload, std::uint64_t cookie) override {
      REQUIRE(sender);
      sender(member, message, payload, cookie);
    }

    GroupExercise* exercise = nullptr;
    std::uint32_t index = 0;
    LocalGroup* group = nullptr;
    std::function<void(std::uint32_t, const Message&, Payload, std::uint64_t)> sender;
    std::map<std::uint64_t, Status> ended;
    std::set<std::pair<std::uint64_t, std::size_t>> sums;
    std::optional<Error> broken;
    bool is_inside = false;
    bool is_stopped = false;
    std::size_t next = 0;  // item
  };

  GroupExercise(EventLoop& loop, std::uint32_t size, std::uint64_t seed)
      : loop_(loop), random_(seed), members_(size) {
    for (std::uint32_t i = 0; i < size; ++i) {
      members_[i].exercise = this;
      members_[i].index = i;
    }
  }
  GroupExercise(const GroupExercise&) = delete;
  GroupExercise& operator=(const GroupExercise&) = delete;

  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  Member& member(std::uint32_t index) { return members_[index]; }

  // To be called when the groups are there.
  void begin() {
    members_[0].group->make_setup([this](const Result<std::vector<std::byte>>& setup) {
      REQUIRE(setup.ok());
      for (Member& member : members_) {
        member.group->begin(*setup, [this](const Status& status) {
          REQUIRE(status.ok());
          ++begun_;
        });
      }
    });
  }
  bool is_begun() const { return begun_ == members_.size(); }

  // Adds a round of a tensor to what is to be done, in pieces of random length.
  void add(const ExerciseTensor& what) {
    auto tensor = std::make_unique<Tensor>();
    tensor->what = what;
    tensor->id = TensorId{static_cast<std::uint32_t>(tensors_.size())};
    tensor->first = next_partition_;
    for (const std::uint32_t elements : what.elements)
      tensor->offsets.push_back(tensor->bytes), tensor->bytes += elements * size_of(what.dtype);
    for (Member& member : members_)
      tensor->parts.push_back(make_part(*tensor, member));
    next_partition_ += static_cast<std::uint32_t>(what.elements.size());
    tensors_.push_back(std::move(tensor));
    push_round();
  }

  // One more round of all tensors, the results of the last one having been checked.
  void again() {
    check();
    for (const auto& tensor : tensors_) {
      tensor->round = tensor->round.next();
      for (Member& member : members_)
        fill(tensor->parts[member.index]);
      push_items(*tensor, true, 0, static_cast<std::uint32_t>(tensor->what.elements.size()),
                 tensor == tensors_.back() || random_() % 2 == 0);
    }
  }

  // Each member does what it has not done, one item a turn.
  void go() {
    for (Member& member : members_)
      turn(member);
  }
  bool is_done() const {
    return std::all_of(members_.begin(), members_.end(),
                       [&](const Member& member) { return member.ended.size() == items_.size(); }) &&
           spread_ == partitions_;
  }
  std::size_t items() const { return items_.size(); }
  // What is not over, for messages.
  std::string state() const {
    std::string text = std::to_string(spread_) + " of " + std::to_string(partitions_) + " partitions";
    for (const Member& member : members_) {
      text += "; member " + std::to_string(member.index) + " has begun " + std::to_string(member.next) +
              " of " + std::to_string(items_.size()) +
              (member.broken ? ", is broken: " + member.broken->message : "");
      for (std::size_t i = 0; i < member.next; ++i) {
        if (member.ended.count(i) == 0)
          text += (items_[i].is_reduce ? ", reduce " : ", spread ") + std::to_string(i);
      }
    }
    return text;
  }

  void check() {
    REQUIRE(is_done());
    for (const Member& member : members_) {
      CHECK_FALSE(member.broken);
      for (const auto& [number, status] : member.ended) {
        INFO("collective " << number << ": " << (status.ok() ? "" : status.error().message));
        CHECK(status.ok());
      }
    }
    for (const auto& tensor : tensors_)
      check(*tensor);
  }

  // Whether all that the member has begun is over; then its program may do what it likes with its memory.
  bool is_quiet(std::uint32_t member) const { return members_[member].ended.size() == members_[member].next; }
  void scribble(std::uint32_t member) {
    for (const auto& tensor : tensors_) {
      for (const auto memory : {tensor->parts[member].in, tensor->parts[member].out})
        std::fill(memory.begin(), memory.end(), std::byte{0x5c});
    }
  }
  // It begins nothing any more.
  void stop(std::uint32_t member) { members_[member].is_stopped = true; }

  // What a member shows of an item; for tests that call a group themselves.
  std::vector<LocalPiece> pieces(std::size_t item, std::uint32_t member) {
    return pieces_of(items_[item], members_[member]);
  }
  Collective collective(std::size_t item) const { return collective_of(items_[item], item); }

 private:
  struct Part {  // of a tensor, at a member
    std::vector<std::byte> ordinary;
    std::shared_ptr<Region> region;
    std::span<std::byte> in, out;
    std::vector<std::byte> was;   // in
    std::shared_ptr<Region> own;  // of the group: sums, then answers
  };
  struct Tensor {
    ExerciseTensor what;
    TensorId id;
    Round round;
    std::uint32_t first = 0;
    std::size_t bytes = 0;
    std::vector<std::size_t> offsets;  // of each partition
    std::vector<Part> parts;           // by member
  };
  struct Item {
    Tensor* tensor = nullptr;
    bool is_reduce = true;
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    bool ends_batch = true;
  };

  Part make_part(const Tensor& tensor, const Member& member) {
    Part part;
    const std::size_t needed = (tensor.what.in_place ? 1 : 2) * tensor.bytes;
    std::span<std::byte> memory;
    if (tensor.what.allocate) part.region = tensor.what.allocate(member.index, needed);
    if (part.region) {
      memory = part.region->bytes();
    } else {
      part.ordinary.resize(needed);
      memory = part.ordinary;
    }
    part.in = memory.first(tensor.bytes);
    part.out = tensor.what.in_place ? part.in : memory.subspan(tensor.bytes, tensor.bytes);
    part.own = member.group->allocate(2 * tensor.bytes).value();
    fill(part);
    return part;
  }

  void fill(Part& part) {
    for (std::byte& byte : part.in)
      byte = std::byte{static_cast<unsigned char>(random_())};
    part.was.assign(part.in.begin(), part.in.end());
  }

  void push_round() {
    Tensor& tensor = *tensors_.back();
    const auto count = static_cast<std::uint32_t>(tensor.what.elements.size());
    for (std::uint32_t first = 0; first < count;) {
      const auto length = std::min(count - first, 1 + static_cast<std::uint32_t>(random_() % 4));
      push_items(tensor, true, first, length, first + length == count || random_() % 2 == 0);
      first += length;
    }
  }

  void push_items(Tensor& tensor, bool is_reduce, std::uint32_t first, std::uint32_t count,
                  bool ends_batch = true) {
    items_.push_back({&tensor, is_reduce, first, count, ends_batch});
    (is_reduce ? partitions_ : spread_) += count;
    for (Member& member : members_) {
      if (member.next + 1 == items_.size() && is_going_) turn(member);
    }
  }

  void turn(Member& member) {
    is_going_ = true;
    loop_.after(Duration(random_() % 100'000), [this, &member] {
      if (member.next == items_.size() || member.is_stopped) return;
      const std::size_t number = member.next++;
      do_item(member, number);
      if (member.next < items_.size()) turn(member);
    });
  }

  void do_item(Member& member, std::size_t number) {
    const Item item = items_[number];
    const auto pieces = pieces_of(item, member);
    member.is_inside = true;
    if (item.is_reduce) {
      member.group->reduce(collective_of(item, number), pieces);
    } else {
      member.group->spread(collective_of(item, number), pieces);
    }
    // All members end their batches at the same places.
    if (item.ends_batch) member.group->end_batch();
    member.is_inside = false;
  }

  Collective collective_of(const Item& item, std::size_t number) const {
    const bool is_broadcast = item.tensor->what.kind == RoundKind::broadcast;
    return {number,
            item.tensor->id,
            item.tensor->round,
            item.tensor->what.kind,
            item.tensor->what.operation,
            is_broadcast ? item.tensor->what.root : std::nullopt,
            MemoryKind::host};
  }

  std::vector<LocalPiece> pieces_of(const Item& item, const Member& member) {
    std::vector<LocalPiece> pieces;
    for (std::uint32_t i = item.first; i < item.first + item.count; ++i)
      pieces.push_back(piece_of(*item.tensor, i, member));
    return pieces;
  }

  LocalPiece piece_of(Tensor& tensor, std::uint32_t index, const Member& member) {
    const ExerciseTensor& what = tensor.what;
    Part& part = tensor.parts[member.index];
    LocalPiece piece;
    piece.partition = PartitionId{tensor.first + index};
    piece.owner = piece.partition.value % size();
    piece.dtype = what.dtype;
    piece.elements = what.elements[index];
    const bool is_broadcast = what.kind == RoundKind::broadcast;
    if (!is_broadcast || what.root == member.index) {
      piece.in = part.in.data() + tensor.offsets[index];
      piece.in_home = part.region.get();
    }
    if (piece.owner == member.index) {
      piece.sum = part.own->bytes().data() + tensor.offsets[index];
      piece.answer = piece.sum + tensor.bytes;
      piece.home = part.own.get();
    }
    if (!is_broadcast || what.root != member.index) piece.out = part.out.data() + tensor.offsets[index];
    return piece;
  }

  // The server's answer is there at once.
  void summed(Member& member, std::uint64_t number, std::size_t index) {
    CHECK_FALSE(member.is_inside);
    CHECK(member.sums.emplace(number, index).second);
    CHECK(member.ended.count(number) == 0);
    const Item item = items_.at(number);
    REQUIRE(item.is_reduce);
    const auto place = item.first + static_cast<std::uint32_t>(index);
    const LocalPiece piece = piece_of(*item.tensor, place, member);
    REQUIRE(piece.owner == member.index);
    const auto expected = expected_of(*item.tensor, place);
    if (item.tensor->what.kind != RoundKind::broadcast || item.tensor->what.root)
      CHECK(std::memcmp(piece.sum, expected.data(), expected.size()) == 0);
    std::memcpy(const_cast<std::byte*>(piece.answer), expected.data(), expected.size());
    member.group->stage(piece, [this, tensor = item.tensor, place](const Status& status) {
      if (status.ok()) push_items(*tensor, false, place, 1);
    });
  }

  void check(Tensor& tensor) {
    for (std::uint32_t index = 0; index < tensor.what.elements.size(); ++index) {
      const auto expected = expected_of(tensor, index);
      for (const Member& member : members_) {
        const Part& part = tensor.parts[member.index];
        const LocalPiece piece = piece_of(tensor, index, member);
        if (piece.out == nullptr) continue;
        INFO("tensor " << tensor.id.value << " (" << name_of(tensor.what.dtype) << " "
                       << (tensor.what.kind == RoundKind::broadcast ? "broadcast"
                                                                    : name_of(tensor.what.operation))
                       << "), partition " << index << ", member " << member.index);
        CHECK(std::memcmp(piece.out, expected.data(), expected.size()) == 0);
        if (!tensor.what.in_place) CHECK(std::equal(part.was.begin(), part.was.end(), part.in.begin()));
      }
    }
  }

  std::vector<std::byte> expected_of(const Tensor& tensor, std::uint32_t index) {
    const ExerciseTensor& what = tensor.what;
    const std::size_t bytes = what.elements[index] * size_of(what.dtype), offset = tensor.offsets[index];
    std::vector<std::byte> expected(bytes, std::byte{7});
    if (what.kind == RoundKind::broadcast) {
      if (what.root) std::memcpy(expected.data(), tensor.parts[*what.root].was.data() + offset, bytes);
      return expected;
    }
    const Operation operation = what.operation == Operation::average ? Operation::sum : what.operation;
    for (std::uint32_t i = 0; i < what.elements[index]; ++i) {
      std::vector<std::uint64_t> column;
      for (const Part& part : tensor.parts)
        column.push_back(reduce::oracle::element(what.dtype, part.was.data() + offset, i));
      reduce::oracle::set_element(what.dtype, expected.data(), i,
                                  reduce::oracle::reduced(what.dtype, operation, column, 1));
    }
    return expected;
  }

  EventLoop& loop_;
  std::mt19937_64 random_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<Item> items_;
  std::uint32_t next_partition_ = 0;
  std::size_t partitions_ = 0;  // reduced, or to be
  std::size_t spread_ = 0;
  std::size_t begun_ = 0;
  bool is_going_ = false;
};

// A random tensor for a group of this size.
inline ExerciseTensor random_tensor(std::mt19937_64& random, std::uint32_t size, std::uint32_t max_elements) {
  ExerciseTensor tensor;
  tensor.dtype = static_cast<DType>(random() % kDTypeCount);
  const auto call = random() % (kOperationCount + 1);
  if (call == kOperationCount) {
    tensor.kind = RoundKind::broadcast;
  } else if (is_defined(static_cast<Operation>(call), tensor.dtype)) {
    tensor.operation = static_cast<Operation>(call);
  }
  if (tensor.kind == RoundKind::broadcast && random() % 3 != 0)
    tensor.root = static_cast<std::uint32_t>(random() % size);
  tensor.in_place = random() % 2 == 0;
  for (std::uint64_t i = 1 + random() % 7; i > 0; --i)
    tensor.elements.push_back(1 + static_cast<std::uint32_t>(random() % max_elements));
  return tensor;
}

}  // namespace bps::testing
