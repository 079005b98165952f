// For tests of what goes wrong: some operations of a group of GPUs from the first call to the last, whatever
// fails on the way, with what every owner of a group does then: it aborts the others.
#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "client/src/gpu/testing/cuda_host.h"

namespace bps::testing {

class CudaScenario {
 public:
  static constexpr std::uint32_t kElements = 64;  // of a partition, i32
  static constexpr std::uint32_t kPartitions = 6;

  struct Member final : LocalGroup::Owner {
    void on_summed(std::uint64_t number, std::size_t index) override {
      CHECK(ended.count(number) == 0);
      CHECK(summed.emplace(number, index).second);
    }
    void on_ended(std::uint64_t number, const Status& status) override {
      CHECK(ended.emplace(number, status.ok()).second);
      if (!status.ok()) error = status.error();
    }
    void on_broken(const Error& why) override {
      CHECK_FALSE(broken);
      CHECK_FALSE(aborted);
      broken = why;
    }
    void on_left_behind(const Error& why) override {
      CHECK(aborted);
      CHECK_FALSE(left_behind);
      left_behind = why;
    }
    void send(std::uint32_t, const Message&, Payload, std::uint64_t) override {
      FAIL("CUDA groups send nothing");
    }
    std::string name_of(TensorId tensor) const override {
      return "layer" + std::to_string(tensor.value) + ".weight";
    }
    std::string name_of_others() const override { return "the others of this host"; }

    bool is_over() const { return aborted || broken || refused; }

    std::shared_ptr<Region> user, own;
    std::optional<Status> begun;
    std::optional<Error> broken, refused, error, left_behind;
    bool aborted = false;
    std::map<std::uint64_t, bool> ended;
    std::set<std::pair<std::uint64_t, std::size_t>> summed;
    std::uint64_t calls = 0;       // collectives
    std::uint32_t thens = 0;       // that were asked for, and have not come
    std::uint64_t first_uses = 0;  // of NCCL's calls, when the group had begun
  };

  explicit CudaScenario(CudaHost& host) : host_(host), members(host.ranks.size()) {}

  // True: all went well. In any case all has ended, and nothing is left but what CudaHost::wrongs() says.
  bool run() {
    const bool good = open() && readable() && collectives();
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& member = members[i];
      CHECK(member.ended.size() == member.calls);
      CHECK(member.thens == 0);
      // Whoever is told that it has ended may do with its memory what he likes.
      member.user.reset();
      member.own.reset();
    }
    host_.leave();
    return good;
  }

  void each(const std::function<void(std::uint32_t, Member&, CudaHost::Rank&)>& act) {
    for (std::uint32_t i = 0; i < members.size(); ++i)
      act(i, members[i], host_.ranks[i]);
  }
  bool is_any_over() const {
    for (const Member& member : members)
      if (member.is_over()) return true;
    return false;
  }
  // Until it is so, or something breaks; then the others are aborted, and all that is open ends.
  bool reach(const std::function<bool(const Member&)>& done) {
    const auto all = [&](const auto& is) {
      for (const Member& member : members)
        if (!is(member)) return false;
      return true;
    };
    const bool reached = host_.run_until([&] { return is_any_over() || all(done); }) && !is_any_over();
    if (reached) return true;
    CHECK(is_any_over());
    each([&](std::uint32_t, Member& member, CudaHost::Rank& rank) {
      if (member.broken || rank.group == nullptr) return;
      member.aborted = true;
      rank.group->abort(make_error(ErrorCode::peer_lost, "another rank of this host is gone"));
    });
    CHECK(host_.run_until(
        [&] { return all([](const Member& m) { return m.ended.size() == m.calls && m.thens == 0; }); }));
    return false;
  }

  bool open() {
    bool all = true;
    each([&](std::uint32_t i, Member& member, CudaHost::Rank&) { all = host_.join(i, member) && all; });
    if (!all) return false;
    std::optional<Result<std::vector<std::byte>>> made;
    host_.ranks[0].group->make_setup([&](Result<std::vector<std::byte>> setup) { made = std::move(setup); });
    REQUIRE(host_.run_until([&] { return made.has_value(); }));
    const auto& setup = *made;
    if (!setup) return false;
    each([&](std::uint32_t, Member& member, CudaHost::Rank& rank) {
      ++member.thens;
      rank.group->begin(*setup, [&member](const Status& status) {
        --member.thens;
        member.begun = status;
        if (!status.ok()) member.refused = status.error();
      });
    });
    if (!reach([](const Member& member) { return member.begun.has_value(); })) return false;
    each([](std::uint32_t, Member& member, CudaHost::Rank& rank) {
      member.first_uses = rank.nccl->first_uses();
      CHECK((member.first_uses > 0) == (rank.nccl->calls() > 0));
    });
    each([&](std::uint32_t i, Member& member, CudaHost::Rank& rank) {
      member.user = host_.on_device(i, kPartitions * kElements * 4);
      auto own = rank.group->allocate(2 * kPartitions * kElements * 4);
      if (own) member.own = *own;
      if (member.user == nullptr || !own) member.refused = own ? Error() : own.error();
      if (member.user == nullptr) return;
      for (std::uint32_t k = 0; k < kPartitions * kElements; ++k)
        set(member, k, static_cast<std::int32_t>(k * (i + 1)));
    });
    return reach([](const Member&) { return true; });
  }

  bool readable() {
    each([&](std::uint32_t, Member& member, CudaHost::Rank& rank) {
      CudaBuffers buffers(rank.device);
      auto buffer = buffers.describe(member.user->bytes().data(), member.user->bytes().size(), nullptr);
      if (!buffer) {
        member.refused = buffer.error();
        return;
      }
      ++member.thens;
      rank.group->when_readable(*buffer, [&member](const Status& status) {
        --member.thens;
        if (!status.ok()) member.error = member.refused = status.error();
      });
    });
    return reach([](const Member& member) { return member.thens == 0; });
  }

  // A tensor of six partitions: what is beyond whole runs is on its own.
  bool collectives() {
    each([&](std::uint32_t i, Member& member, CudaHost::Rank& rank) {
      ++member.calls;
      rank.group->reduce(collective(0), pieces(i, false));
      rank.group->end_batch();
    });
    if (!reach([](const Member& member) { return member.ended.count(0) == 1; })) return false;
    each([&](std::uint32_t i, Member& member, CudaHost::Rank& rank) {
      for (const LocalPiece& piece : pieces(i, true)) {
        if (piece.owner != i) continue;
        CHECK(member.summed.count({0, piece.partition.value}) == 1);
        std::memcpy(const_cast<std::byte*>(piece.answer), piece.answer - kPartitions * kElements * 4,
                    kElements * 4);
        ++member.thens;
        rank.group->stage(piece, [&member](const Status& status) {
          --member.thens;
          if (!status.ok()) member.error = status.error();
        });
      }
    });
    if (!reach([](const Member& member) { return member.thens == 0; })) return false;
    each([&](std::uint32_t i, Member& member, CudaHost::Rank& rank) {
      ++member.calls;
      rank.group->spread(collective(1), pieces(i, true));
      rank.group->end_batch();
    });
    if (!reach([](const Member& member) { return member.ended.count(1) == 1; })) return false;
    const auto size = static_cast<std::int32_t>(members.size());
    each([&](std::uint32_t, Member& member, CudaHost::Rank& rank) {
      CHECK(rank.nccl->first_uses() == member.first_uses);
      std::uint32_t wrong = 0;
      for (std::uint32_t k = 0; k < kPartitions * kElements; ++k)
        wrong += get(member, k) != static_cast<std::int32_t>(k) * size * (size + 1) / 2 ? 1 : 0;
      CHECK(wrong == 0);
    });
    return true;
  }

  static Collective collective(std::uint64_t number) {
    return {number,         TensorId{3},  Round{0},        RoundKind::push_pull,
            Operation::sum, std::nullopt, MemoryKind::cuda};
  }
  // In place: the sums, then the answers, then the input again. What an owner has of them lies side by side.
  std::vector<LocalPiece> pieces(std::uint32_t self, bool is_spread) {
    std::vector<LocalPiece> all;
    Member& member = members[self];
    for (std::uint32_t i = 0; i < kPartitions; ++i) {
      const std::size_t at = i * kElements * 4;
      LocalPiece piece;
      piece.partition = PartitionId{i};
      piece.owner = i % static_cast<std::uint32_t>(members.size());
      piece.dtype = DType::i32;
      piece.elements = kElements;
      if (is_spread) {
        piece.out = member.user->bytes().data() + at;
      } else {
        piece.in = member.user->bytes().data() + at;
      }
      if (piece.owner == self) {
        piece.home = member.own.get();
        piece.sum = member.own->bytes().data() + i / members.size() * kElements * 4;
        piece.answer = piece.sum + kPartitions * kElements * 4;
      }
      all.push_back(piece);
    }
    return all;
  }
  static void set(Member& member, std::uint32_t k, std::int32_t value) {
    std::memcpy(member.user->bytes().data() + 4 * k, &value, 4);
  }
  static std::int32_t get(const Member& member, std::uint32_t k) {
    std::int32_t value = 0;
    std::memcpy(&value, member.user->bytes().data() + 4 * k, 4);
    return value;
  }

 private:
  CudaHost& host_;

 public:
  std::vector<Member> members;
};

}  // namespace bps::testing
