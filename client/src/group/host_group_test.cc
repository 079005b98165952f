// One member, whose links are played: what comes early, late, wrong, or is withdrawn.
#include "client/src/group/host_group.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "client/src/engine/testing/fake_loan.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps::host_group_test {
namespace {

using Catch::Contains;
using testing::FakeLoan;

class Memory final : public Transport {
 public:
  Result<std::unique_ptr<Listener>> listen(EventLoop&, const Endpoint&, Accepted) override {
    return make_error(ErrorCode::os, "not here");
  }
  std::unique_ptr<Connection> connect(EventLoop&, const Endpoint&, Duration) override { return nullptr; }
};

std::vector<std::byte> floats(std::initializer_list<float> values) {
  std::vector<std::byte> bytes(4 * values.size());
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

PushPull part(std::uint32_t partition, std::uint64_t round = 0) {
  PushPull message;
  message.job_run = JobRun{7};
  message.partition = PartitionId{partition};
  message.round = Round{round};
  return message;
}

Aggregate answer(std::uint32_t partition, std::uint64_t round = 0) {
  Aggregate message;
  message.partition = PartitionId{partition};
  message.round = Round{round};
  return message;
}

// Member 0 of three, ranks 3, 5 and 8; it owns partitions 0 and 3 of tensors that have four.
struct Member final : LocalGroup::Owner {
  struct Sent {
    std::uint32_t to;
    Message message;
    std::vector<std::byte> payload;
    std::uint64_t cookie;
  };

  explicit Member(std::size_t max_early_frames = 100, std::size_t max_early_bytes = 1000) {
    HostGroup::Options options;
    options.job_run = JobRun{7};
    options.ranks = {Rank{3}, Rank{5}, Rank{8}};
    options.max_early_frames = max_early_frames;
    options.max_early_bytes = max_early_bytes;
    group = std::make_unique<HostGroup>(loop, memory, options, *this);
    for (std::uint32_t i = 0; i < 4; ++i) {
      LocalPiece piece;
      piece.partition = PartitionId{i};
      piece.owner = i % 3;
      piece.elements = 2;
      piece.in = reinterpret_cast<const std::byte*>(in[i]);
      piece.out = reinterpret_cast<std::byte*>(out[i]);
      if (piece.owner == 0) {
        piece.sum = reinterpret_cast<std::byte*>(sum[i]);
        piece.answer = reinterpret_cast<const std::byte*>(answers[i]);
      }
      pieces.push_back(piece);
    }
  }

  void on_summed(std::uint64_t number, std::size_t index) override { summed.emplace_back(number, index); }
  void on_ended(std::uint64_t number, const Status& status) override { ended.emplace(number, status); }
  void on_broken(const Error& error) override {
    CHECK_FALSE(broken);
    broken = error;
  }
  void send(std::uint32_t member, const Message& message, Payload payload, std::uint64_t cookie) override {
    sent.push_back({member, message, {payload.bytes.begin(), payload.bytes.end()}, cookie});
  }

  Collective collective(std::uint64_t number, std::uint64_t round = 0) const {
    return {number,         TensorId{1},  Round{round},    RoundKind::push_pull,
            Operation::sum, std::nullopt, MemoryKind::host};
  }
  void reduce(std::uint64_t number = 0, std::uint64_t round = 0) {
    group->reduce(collective(number, round), pieces);
    loop.run_tasks();
  }
  void spread(std::uint64_t number = 1, std::uint64_t round = 0) {
    group->spread(collective(number, round), pieces);
    loop.run_tasks();
  }
  void all_sent() {
    for (const Sent& frame : std::exchange(sent, {}))
      group->sent(frame.to, frame.cookie);
    loop.run_tasks();
  }
  // Through the stream.
  Status stream(std::uint32_t from, Message message, const std::vector<std::byte>& bytes) {
    std::byte* const place = bytes.empty() ? nullptr : group->payload(from, message, bytes.size());
    if (place != nullptr) std::memcpy(place, bytes.data(), bytes.size());
    const Status status = group->message(
        from, message, place == nullptr ? std::span<std::byte>() : std::span<std::byte>(place, bytes.size()));
    loop.run_tasks();
    return status;
  }
  Result<bool> lend(std::uint32_t from, Message message, const std::shared_ptr<FakeLoan>& loan) {
    LentPayload payload = FakeLoan::payload(loan);
    auto result = group->lent(from, message, payload);
    loop.run_tasks();
    return result;
  }

  VirtualLoop loop;
  Memory memory;
  float in[4][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  float out[4][2] = {};
  float sum[4][2] = {};
  float answers[4][2] = {{-1, -2}, {}, {}, {-7, -8}};
  std::vector<LocalPiece> pieces;
  std::vector<Sent> sent;
  std::vector<std::pair<std::uint64_t, std::size_t>> summed;
  std::map<std::uint64_t, Status> ended;
  std::optional<Error> broken;
  std::unique_ptr<HostGroup> group;
};

TEST_CASE("host group: inputs go to the owners, and end when they have been read") {
  Member member;
  member.reduce();
  REQUIRE(member.sent.size() == 2);
  CHECK(member.sent[0].to == 1);
  CHECK(member.sent[0].message == Message(part(1)));
  CHECK(member.sent[0].payload == floats({3, 4}));
  CHECK(member.sent[1].to == 2);
  CHECK(member.sent[1].message == Message(part(2)));
  for (const std::uint32_t from : {2, 1}) {
    REQUIRE(member.stream(from, part(0), floats({10, 20})).ok());
    REQUIRE(member.stream(from, part(3), floats({30, 40})).ok());
  }
  CHECK(member.summed == std::vector<std::pair<std::uint64_t, std::size_t>>{{0, 0}, {0, 3}});
  CHECK(member.sum[0][0] == 21);
  CHECK(member.sum[3][1] == 88);
  CHECK(member.ended.empty());
  member.all_sent();
  CHECK(member.ended.at(0).ok());
}

TEST_CASE("host group: answers go to all, and end when they have been read and copied") {
  Member member;
  member.spread();
  REQUIRE(member.sent.size() == 4);
  CHECK(member.sent[0].message == Message(answer(0)));
  CHECK(member.sent[3].payload == floats({-7, -8}));
  CHECK(member.out[3][1] == -8);
  const auto loan = FakeLoan::of(floats({5, 6}));
  REQUIRE(*member.lend(1, answer(1), loan));
  CHECK_FALSE(loan->is_out());
  CHECK(member.out[1][1] == 6);
  member.all_sent();
  CHECK(member.ended.empty());
  REQUIRE(member.stream(2, answer(2), floats({7, 8})).ok());
  CHECK(member.out[2][0] == 7);
  CHECK(member.ended.at(1).ok());
}

TEST_CASE("host group: what comes before its collective has begun is kept") {
  Member member;
  const auto loan = FakeLoan::of(floats({10, 20}));
  REQUIRE(*member.lend(1, part(0), loan));
  REQUIRE(member.stream(1, part(3), floats({30, 40})).ok());
  REQUIRE(member.stream(1, answer(1), floats({50, 60})).ok());
  CHECK(loan->is_out());
  member.reduce();
  CHECK(member.summed.empty());
  REQUIRE(member.stream(2, part(0), floats({100, 200})).ok());
  REQUIRE(member.stream(2, part(3), floats({300, 400})).ok());
  CHECK(member.summed.size() == 2);
  CHECK_FALSE(loan->is_out());
  CHECK(member.sum[0][1] == 222);
  CHECK(member.sum[3][0] == 337);
  member.spread();
  CHECK(member.out[1][1] == 60);
}

TEST_CASE("host group: an answer waits where an input is still being read") {
  Member member;
  for (LocalPiece& piece : member.pieces)
    piece.out = const_cast<std::byte*>(piece.in);
  member.reduce();
  const auto reduces = std::exchange(member.sent, {});
  for (const std::uint32_t from : {1, 2}) {
    REQUIRE(member.stream(from, part(0), floats({10, 20})).ok());
    REQUIRE(member.stream(from, part(3), floats({30, 40})).ok());
  }
  member.spread();
  const auto loan = FakeLoan::of(floats({50, 60}));
  REQUIRE(*member.lend(1, answer(1), loan));
  REQUIRE(member.stream(2, answer(2), floats({70, 80})).ok());
  CHECK(member.in[1][0] == 3);
  CHECK(member.in[2][0] == 5);
  CHECK(member.in[0][0] == -1);  // its own: nobody reads it
  member.all_sent();
  CHECK(member.ended.empty());
  for (const auto& frame : reduces)
    member.group->sent(frame.to, frame.cookie);
  member.loop.run_tasks();
  CHECK(member.in[1][0] == 50);
  CHECK(member.in[2][1] == 80);
  CHECK_FALSE(loan->is_out());
  CHECK(member.ended.at(1).ok());
}

TEST_CASE("host group: a member that breaks a rule is named") {
  const auto bytes = floats({1, 2});
  PushPull wrong = part(0);
  std::string expected;
  const auto refused = [&](Member& member, const Message& message, std::size_t size = 8) {
    const Status status = member.stream(1, message, std::vector<std::byte>(size));
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::protocol);
    CHECK_THAT(status.error().message, Contains("rank 5 of this host"));
    return status.error().message;
  };
  {
    Member member;
    member.reduce();
    CHECK_THAT(refused(member, part(3)),
               Contains("the part of partition 3, round 0 (sum), 8 bytes where the part of "
                        "partition 0, round 0 (sum), 8 bytes was due"));
  }
  {
    Member member;
    member.reduce();
    CHECK_THAT(refused(member, part(0, 1)), Contains("round 1"));
  }
  {
    Member member;
    member.reduce();
    CHECK_THAT(refused(member, answer(0)), Contains("the answer of partition 0"));
  }
  {
    Member member;
    member.reduce();
    wrong.call = Operation::max;
    CHECK_THAT(refused(member, wrong), Contains("(max)"));
  }
  {
    Member member;
    member.reduce();
    CHECK_THAT(refused(member, part(0), 4), Contains("4 bytes where"));
    CHECK(member.summed.empty());
  }
  Member member;
  wrong = part(0);
  wrong.weight = 2;
  CHECK_THAT(refused(member, wrong), Contains("fields"));
  wrong = part(0);
  wrong.job_run = JobRun{8};
  CHECK_THAT(refused(member, wrong), Contains("fields"));
  Aggregate other = answer(1);
  other.applied = {Round{1}};
  CHECK_THAT(refused(member, other), Contains("fields"));
  CHECK_THAT(refused(member, Heartbeat{}), Contains("Heartbeat"));
  CHECK_THAT(refused(member, part(0), 0), Contains("without its bytes"));
  const auto loan = FakeLoan::of(bytes);
  CHECK_FALSE(member.lend(1, Message(wrong), loan).ok());
  CHECK_FALSE(loan->is_out());
  CHECK_FALSE(member.broken);
}

TEST_CASE("host group: there is an end to what may come early") {
  Member few(2, 1000), small(100, 20);
  REQUIRE(few.stream(1, part(0), floats({1, 2})).ok());
  REQUIRE(few.stream(1, part(3), floats({1, 2})).ok());
  CHECK_THAT(few.stream(1, part(6), floats({1, 2})).error().message, Contains("more than was asked for: 2"));
  CHECK(few.stream(2, part(0), floats({1, 2})).ok());
  REQUIRE(small.stream(1, part(0), floats({1, 2})).ok());
  REQUIRE(small.stream(1, part(3), floats({1, 2})).ok());
  CHECK_FALSE(small.stream(1, part(6), floats({1, 2})).ok());
  CHECK(small.lend(1, part(6), FakeLoan::of(floats({1, 2}))).ok());
}

TEST_CASE("host group: what is wrong and came early breaks the group when its turn comes") {
  Member member;
  REQUIRE(member.stream(1, part(3), floats({1, 2})).ok());
  const auto loan = FakeLoan::of(floats({1, 2}));
  REQUIRE(*member.lend(2, part(0), loan));
  member.reduce();
  REQUIRE(member.broken);
  CHECK_THAT(member.broken->message, Contains("rank 5 of this host has sent the part of partition 3"));
  CHECK_FALSE(loan->is_out());
  CHECK(member.ended.empty());  // the links may still read what was sent
  member.spread();
  CHECK(member.ended.at(1).error() == *member.broken);
  CHECK(member.stream(2, part(3), floats({1, 2})).ok());  // goes nowhere
  member.all_sent();
  CHECK(member.ended.at(0).error() == *member.broken);
  std::optional<Status> told;
  member.group->stage(member.pieces[0], [&](const Status& status) { told = status; });
  member.loop.run_tasks();
  CHECK_FALSE(told->ok());
}

TEST_CASE("host group: what was withdrawn does not count") {
  Member member;
  member.reduce();
  const auto loan = FakeLoan::of(floats({10, 20}));
  REQUIRE(*member.lend(1, part(0), loan));
  loan->withdraw();
  REQUIRE(member.stream(2, part(0), floats({30, 40})).ok());
  CHECK(member.summed.empty());
  CHECK_FALSE(loan->is_out());
  member.spread();
  const auto gone = FakeLoan::of(floats({10, 20}));
  gone->withdraw_after(0);
  REQUIRE(*member.lend(1, part(3), FakeLoan::of(floats({30, 40}))));
  REQUIRE(*member.lend(2, part(3), FakeLoan::of(floats({30, 40}))));
  CHECK(member.summed.size() == 1);
  REQUIRE(*member.lend(1, answer(1), gone));
  CHECK_FALSE(gone->is_out());
  REQUIRE(member.stream(2, answer(2), floats({30, 40})).ok());
  member.all_sent();
  CHECK(member.ended.empty());
  const Error error = make_error(ErrorCode::peer_lost, "rank 5 is gone");
  member.group->abort(error);
  member.loop.run_tasks();
  CHECK(member.ended.at(0).error() == error);
  CHECK(member.ended.at(1).error() == error);
  CHECK_FALSE(member.broken);
}

TEST_CASE("host group: abort ends everything once, and what comes later goes nowhere") {
  Member member;
  const auto early = FakeLoan::of(floats({10, 20})), part_of = FakeLoan::of(floats({10, 20}));
  member.reduce();
  member.spread();
  REQUIRE(*member.lend(1, part(0), part_of));
  REQUIRE(member.stream(1, part(3), floats({1, 2})).ok());
  REQUIRE(member.stream(1, answer(1), floats({1, 2})).ok());
  REQUIRE(*member.lend(1, part(0, 1), early));
  const Error error = make_error(ErrorCode::peer_lost, "rank 5 is gone");
  member.group->abort(error);
  CHECK(member.ended.empty());
  CHECK_FALSE(early->is_out());
  CHECK_FALSE(part_of->is_out());
  member.loop.run_tasks();
  CHECK(member.ended.size() == 2);
  CHECK(member.ended.at(0).error() == error);
  member.group->abort(error);
  member.all_sent();
  member.reduce(2, 1);
  CHECK(member.ended.size() == 3);
  CHECK(member.ended.at(2).error() == error);
  CHECK(*member.lend(2, part(0), early));
  CHECK_FALSE(early->is_out());
}

TEST_CASE("host group: may go while it has something to tell") {
  Member member;
  bool told = false;
  member.group->begin({}, [&](const Status&) { told = true; });
  member.group.reset();
  member.loop.run_tasks();
  CHECK_FALSE(told);
}

}  // namespace
}  // namespace bps::host_group_test
