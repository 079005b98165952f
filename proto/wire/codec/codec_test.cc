#include "proto/wire/codec.h"

#include <fmt/core.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "proto/wire/frame.h"
#include "proto/wire/testing/decoded.h"
#include "proto/wire/testing/random_messages.h"
#include "proto/wire/testing/sample_messages.h"

namespace bps {
namespace {

using testing::header_of;
using testing::RandomMessages;
using testing::refusal;
using testing::sample_messages;

std::uint32_t read_u32(const std::vector<std::byte>& bytes, std::size_t at) {
  std::uint32_t value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("every message comes back as it was, with its name") {
  const auto samples = sample_messages();
  REQUIRE(samples.size() == kMessageCount);
  Encoder encoder;
  Message out;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    REQUIRE(samples[i].index() == i);
    const auto frame = encoder.encode(samples[i], 99);
    const auto prefix = read_prefix(frame.first<kFramePrefixBytes>(), kMaxControlHeaderBytes);
    REQUIRE(prefix.ok());
    CHECK(prefix->payload_bytes == 99);
    CHECK(check_header(frame.first<kFramePrefixBytes>(), frame.subspan(kFramePrefixBytes)).ok());
    INFO(name_of(samples[i]));
    const Status status = decode(frame.subspan(kFramePrefixBytes), out, prefix->version);
    REQUIRE(status.ok());
    CHECK(out == samples[i]);
  }
  CHECK(std::string(name_of(Message{HelloWorker{}})) == "HelloWorker");
  CHECK(std::string(name_of(Message{PushPull{}})) == "PushPull");
  CHECK(std::string(name_of(Message{Credit{}})) == "Credit");
}

TEST_CASE("random messages come back as they were, from any alignment") {
  RandomMessages random(20240607);
  Encoder encoder;
  Message out;
  std::vector<std::byte> moved;
  for (int i = 0; i < 3000; ++i) {
    const Message message = random.next();
    const auto frame = encoder.encode(message, 0);
    const std::size_t offset = random.number(0, 8);
    moved.assign(offset, std::byte{0});
    moved.insert(moved.end(), frame.begin() + kFramePrefixBytes, frame.end());
    const Status status = decode(std::span(moved).subspan(offset), out);
    INFO(i << " " << name_of(message) << ": " << (status.ok() ? "" : status.error().message));
    REQUIRE(status.ok());
    REQUIRE(out == message);
  }
}

TEST_CASE("headers of data frames are small") {
  for (const Message& message :
       {Message{PushPull{}}, Message{Aggregate{}}, Message{NotReady{}}, Message{ClearToSend{}}}) {
    INFO(name_of(message));
    CHECK(header_of(message).size() <= 96);
  }
  CHECK(header_of(Credit{1}).size() <= 48);
}

TEST_CASE("damaged headers that pass no CRC are refused, or decoded to a message that survives the wire") {
  std::mt19937 random(7);
  Message out, again;
  std::uint64_t decoded = 0;
  const auto take = [&](std::span<const std::byte> header) {
    if (!decode(header, out).ok()) return;
    ++decoded;
    REQUIRE(decode(header_of(out), again).ok());
    REQUIRE(again == out);
  };
  for (const Message& message : sample_messages()) {
    const std::vector<std::byte> good = header_of(message);
    for (std::size_t length = 0; length < good.size(); ++length) {
      take(std::span(good).first(length));
    }
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
        std::vector<std::byte> bad = good;
        bad[i] = static_cast<std::byte>(value);
        take(bad);
      }
    }
    for (int i = 0; i < 500; ++i) {
      std::vector<std::byte> bad = good;
      for (int flips = 0; flips < 4; ++flips)
        bad[random() % bad.size()] = static_cast<std::byte>(random());
      take(bad);
    }
  }
  CHECK(decoded > 1000);
}

TEST_CASE("random bytes are refused") {
  std::mt19937 random(3);
  Message out;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random());
    CHECK_FALSE(decode(bytes, out).ok());
  }
}

TEST_CASE("queries and answers keep to their limits") {
  CHECK_THAT(refusal(AskOpenRounds{.tensor = TensorId{kMaxTensorsPerJob}}),
             Catch::Contains("AskOpenRounds.tensor"));
  CHECK_THAT(refusal(OpenRounds{.rounds = std::vector<OpenRound>(kMaxWaitsNamed + 1)}),
             Catch::Contains("OpenRounds.rounds"));
  CHECK_THAT(refusal(OpenRounds{.rounds = {{.missing = std::vector<Rank>(kMaxMissingNamed + 1)}}}),
             Catch::Contains("OpenRounds.rounds.missing"));
  CHECK_THAT(refusal(OpenRounds{.rounds = {{.expected = 1, .absent = 2}}}),
             Catch::Contains("OpenRounds.rounds.absent"));
  CHECK_THAT(refusal(AskWaits{.job = std::string(kMaxNameBytes + 1, 'x')}), Catch::Contains("AskWaits.job"));
  CHECK_THAT(refusal(AskWaits{.subject = Subject{kSubjectCount}}), Catch::Contains("AskWaits.subject"));
  CHECK_THAT(refusal(AskWaits{.tensor = "a\nb"}), Catch::Contains("AskWaits.tensor"));
  CHECK_THAT(refusal(Waits{.waits = std::vector<Wait>(kMaxWaitsNamed + 1)}), Catch::Contains("Waits.waits"));
  CHECK_THAT(refusal(Waits{.waits = {{.job = "j", .kind = WaitKind{kWaitKindCount}}}}),
             Catch::Contains("Waits.waits.kind"));
  CHECK_THAT(refusal(Waits{.silent = std::vector<Party>(kMaxMissingNamed + 1)}),
             Catch::Contains("Waits.silent"));
  CHECK_THAT(refusal(Waits{.silent = {{.state = PartyState{kPartyStateCount}}}}),
             Catch::Contains("Waits.silent"));
  CHECK_THAT(refusal(ClusterState{.jobs = std::vector<JobState>(kMaxJobsListed + 1)}),
             Catch::Contains("ClusterState.jobs"));
  const auto with_link = [&](std::size_t count, Rank rank) {
    return refusal(ClusterState{.jobs = {{.job = "j",
                                          .phase = "p",
                                          .world_size = 1,
                                          .cut_links = std::vector<CutLink>(count, {rank, {}, 0})}}});
  };
  CHECK_THAT(with_link(kMaxMissingNamed + 1, Rank{0}), Catch::Contains("ClusterState.jobs.cut_links"));
  CHECK_THAT(with_link(1, Rank{kMaxWorldSize}), Catch::Contains("ClusterState.jobs.cut_links.rank"));
  CHECK_THAT(refusal(ClusterState{.gone_servers = std::vector<GoneServer>(kMaxGoneServersListed + 1)}),
             Catch::Contains("ClusterState.gone_servers"));
  CHECK_THAT(refusal(ClusterState{.servers = {{.endpoint = {"h", 1}}}}),
             Catch::Contains("ClusterState.servers.shards"));
  CHECK_THAT(refusal(Drained{.stays_for = std::vector<std::string>(kMaxWaitsNamed + 1, "j")}),
             Catch::Contains("Drained.stays_for"));
  CHECK_THAT(refusal(Drained{.stays_for = {"j"}}), Catch::Contains("Drained.reasons"));
}

TEST_CASE("a message of unknown type is refused with its number") {
  // The number of this type occurs once in its small header.
  const Message credit = Credit{0x0101010101010101};
  std::vector<std::byte> header = header_of(credit);
  const auto type = static_cast<std::byte>(credit.index() + 1);
  const int unknown = kMessageCount + 1;
  const std::string unknown_type = "unknown type " + std::to_string(unknown);
  int found = 0;
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (header[i] != type) continue;
    ++found;
    for (const auto& [number, text] :
         {std::pair{unknown, unknown_type}, {0, "unknown type 0"}, {255, "type 255"}}) {
      header[i] = static_cast<std::byte>(number);
      Message out;
      const Status status = decode(header, out);
      REQUIRE_FALSE(status.ok());
      CHECK_THAT(status.error().message, Catch::Contains(text));
    }
    header[i] = type;
  }
  CHECK(found == 1);
}

// A hello of the scheduler's side of a later version, with a mode that is unknown here.
HelloWorker later_hello(std::uint16_t lowest, std::uint16_t highest) {
  HelloWorker hello{.job = "j", .world_size = 1, .mode = static_cast<Mode>(9)};
  hello.capabilities = {lowest, highest, {}};
  return hello;
}

TEST_CASE("versions: who shares none is told both ranges, before anything else of its hello is looked at") {
  const std::uint16_t later = kProtocolVersion + 3;
  Message out;
  const Status status =
      decode(header_of(later_hello(later, static_cast<std::uint16_t>(later + 2))), out, later);
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message,
             Catch::StartsWith(fmt::format(
                 "the peer speaks bps protocol versions {} to {}, this side speaks ", later, later + 2)) &&
                 Catch::EndsWith(std::to_string(kProtocolVersion)));
  // With a version in common it is judged by its content.
  CHECK_THAT(refusal(later_hello(kProtocolVersion, later)), Catch::Contains("mode is 9"));
  CHECK_THAT(refusal(later_hello(kProtocolVersion, static_cast<std::uint16_t>(kProtocolVersion - 1))),
             Catch::Contains("lowest_version"));
  CHECK_THAT(refusal(later_hello(kFirstFrozenVersion - 1, later)), Catch::Contains("lowest_version"));
}

TEST_CASE("versions: a refusal of any later version can be read, also with a code that is unknown here") {
  const std::uint16_t later = kProtocolVersion + 3;
  Refused refused{static_cast<ErrorCode>(200), "no", "try later"};
  refused.capabilities = {later, later, {}};
  Message out;
  REQUIRE(decode(header_of(refused), out, later).ok());
  refused.code = ErrorCode::protocol;
  CHECK(out == Message(refused));
}

TEST_CASE("versions: the prefix is of the version that the message says, and of ours after the hello") {
  Message out;
  const std::uint16_t later = kProtocolVersion + 1;
  CHECK_THAT(decode(header_of(HelloAdmin{}), out, later).error().message,
             Catch::Contains("frame of version"));
  CHECK_THAT(decode(header_of(Refused{}), out, later).error().message, Catch::Contains("frame of version"));
  CHECK_THAT(decode(header_of(Welcome{}), out, later).error().message, Catch::Contains("frame of version"));
  CHECK_THAT(decode(header_of(Heartbeat{}), out, later).error().message,
             Catch::Contains("speaks bps protocol version " + std::to_string(later)));
}

TEST_CASE("features: unknown ones come back as they were, within their limits and in growing order") {
  HelloAdmin hello;
  auto& features = hello.capabilities.features;
  for (std::uint16_t i = 0; i < kMaxFeatures; ++i)
    features.push_back(
        {static_cast<std::uint16_t>(7 * i), std::vector<std::byte>(kMaxFeatureBytes, std::byte{5})});
  Message out;
  REQUIRE(decode(header_of(hello), out).ok());
  CHECK(out == Message(hello));
  Refused refused{ErrorCode::os, std::string(kMaxMessageBytes, 'a'), std::string(kMaxAdviceBytes, 'b'),
                  hello.capabilities};
  CHECK(header_of(refused).size() <= kMaxHelloHeaderBytes);
  features.push_back({65535, {}});
  CHECK_THAT(refusal(hello), Catch::Contains("Capabilities.features"));
  features = {{2, {}}, {2, {}}};
  CHECK_THAT(refusal(hello), Catch::Contains("growing order"));
  features = {{2, std::vector<std::byte>(kMaxFeatureBytes + 1)}};
  CHECK_THAT(refusal(hello), Catch::Contains("Capabilities.features.value"));
}

TEST_CASE("capabilities are in each hello and what answers it, and nowhere else") {
  // The root table: body_type, body, capabilities.
  auto header = header_of(HelloAdmin{});
  const std::size_t table = read_u32(header, 0);
  const std::size_t slots = table - read_u32(header, table) + 4;
  Message out;
  REQUIRE(decode(header, out).ok());
  auto without = header;
  without[slots + 4] = without[slots + 5] = std::byte{0};
  CHECK_THAT(decode(without, out).error().message, Catch::Contains("no capabilities"));
  const auto heartbeat = static_cast<std::byte>(1 + Message(Heartbeat{}).index());
  header[table + std::to_integer<std::size_t>(header[slots])] = heartbeat;
  CHECK_THAT(decode(header, out).error().message, Catch::Contains("a Heartbeat has capabilities"));
}

TEST_CASE("unknown enum values are refused, naming message and field") {
  CHECK(refusal(PushPull{.call = static_cast<Operation>(8)}) ==
        "PushPull.operation is 8, this build knows 0 to 7");
  RoundCall call;
  call.kind = RoundKind::scatter;  // is no round
  CHECK(refusal(PushPull{.call = call}) == "PushPull.kind is 6, this build knows 0 to 5");
  call.kind = static_cast<RoundKind>(9);
  CHECK_THAT(refusal(OpenCalls{{}, {}, {{1, call}}}), Catch::Contains("kind is 9, this build knows 0 to 8"));
  CHECK(refusal(PushPull{.dtype = static_cast<DType>(8)}) == "PushPull.dtype is 8, this build knows 0 to 7");
  CHECK(refusal(PushPull{.codec = static_cast<Codec>(1)}) == "PushPull.codec is 1, this build knows 0 to 0");
  CHECK(refusal(Aggregate{.codec = static_cast<Codec>(7)}) ==
        "Aggregate.codec is 7, this build knows 0 to 0");
  CHECK_THAT(refusal(Declare{1, {{.name = "a", .dtype = static_cast<DType>(8)}}}),
             Catch::Contains("tensors.dtype is 8"));
  CHECK_THAT(refusal(Declare{1, {{.name = "a", .mode = static_cast<Mode>(3)}}}),
             Catch::Contains("tensors.mode is 3"));
  CHECK_THAT(refusal(Ack{1, {static_cast<ErrorCode>(13), "", ""}}), Catch::Contains("Ack.error is 13"));
  CHECK_THAT(refusal(DeclareSlices{1, {}, {}, false, {{.name = "a", .dtype = static_cast<DType>(200)}}}),
             Catch::Contains("dtype is 200"));
  CHECK_THAT(refusal(HelloWorker{.job = "j", .world_size = 1, .mode = static_cast<Mode>(9)}),
             Catch::Contains("mode is 9"));
  // Of a tensor only.
  CHECK_THAT(refusal(HelloWorker{.job = "j", .world_size = 1, .mode = Mode::slot}),
             Catch::Contains("mode is 2"));
}

TEST_CASE("a call has only what its kind has: equal calls are equal bytes") {
  RoundCall odd = RoundCall::broadcast(Rank{3});
  odd.operation = Operation::max;
  CHECK_THAT(refusal(PushPull{.call = odd}), Catch::Contains("PushPull.operation is 3"));
  odd = RoundCall::all_gather();
  odd.operation = Operation::max;
  CHECK_THAT(refusal(PushPull{.call = odd}), Catch::Contains("PushPull.operation is 3"));
  odd = RoundCall::reduce_scatter(Operation::max);
  odd.root = Rank{3};
  CHECK_THAT(refusal(PushPull{.call = odd}), Catch::Contains("PushPull.root is 3"));
  odd = Operation::max;
  odd.exact_order = true;
  CHECK_THAT(refusal(PushPull{.call = odd}), Catch::Contains("PushPull.exact_order is 1"));
  odd = Operation::max;
  odd.root = Rank{3};
  CHECK_THAT(refusal(PushPull{.call = odd}), Catch::Contains("PushPull.root is 3"));
  CHECK_THAT(refusal(LocalNews{.ready = {{.call = odd}}}), Catch::Contains("LocalNews.root is 3"));
}

TEST_CASE("numbers beyond their limits are refused") {
  const HelloWorker good{.job = "j", .rank = Rank{1}, .world_size = 2};
  Message out;
  REQUIRE(decode(header_of(good), out).ok());
  CHECK(std::get<HelloWorker>(out).partition_bytes == 0);  // the scheduler chooses
  auto with = [&](auto change) {
    HelloWorker m = good;
    change(m);
    return refusal(m);
  };
  CHECK_THAT(with([](auto& m) { m.world_size = kMaxWorldSize + 1; }),
             Catch::Contains("world_size is 4097, 1 to 4096"));
  CHECK_THAT(with([](auto& m) { m.world_size = 0; }), Catch::Contains("world_size is 0"));
  CHECK_THAT(with([](auto& m) { m.rank = Rank{2}; }), Catch::Contains("rank is 2, it must be less than 2"));
  CHECK_THAT(with([](auto& m) { m.local_rank = 1; }), Catch::Contains("local_rank is 1"));
  CHECK_THAT(with([](auto& m) { m.local_size = 0; }), Catch::Contains("local_size is 0"));
  CHECK_THAT(with([](auto& m) { m.partition_bytes = 4095; }), Catch::Contains("partition_bytes is 4095"));
  CHECK_THAT(with([](auto& m) { m.partition_bytes = 4100; }), Catch::Contains("no multiple of 8"));
  CHECK_THAT(with([](auto& m) { m.partition_bytes = kMaxPartitionBytes + 8; }),
             Catch::Contains("partition_bytes is 67108872"));
  CHECK_THAT(refusal(JobStart{}), Catch::Contains("JobStart.partition_bytes is 0"));
  CHECK_THAT(refusal(HelloServer{.data = {"h", 1}, .shards = 0}), Catch::Contains("HelloServer.shards is 0"));
  CHECK_THAT(refusal(HelloServer{.data = {"h", 1}, .shards = 257}), Catch::Contains("shards is 257"));
  CHECK_THAT(refusal(HelloLane{.rank = Rank{kMaxWorldSize}}), Catch::Contains("HelloLane.rank"));
  CHECK_THAT(refusal(HelloLane{.shard = kMaxShardsPerServer}), Catch::Contains("HelloLane.shard"));
  CHECK_THAT(refusal(HelloLane{.cpu = kMaxCpus}), Catch::Contains("HelloLane.cpu"));
  CHECK_THAT(refusal(PushPull{.partition = PartitionId{kMaxPartitionsPerJob}}),
             Catch::Contains("PushPull.partition"));
  CHECK_THAT(refusal(PushPull{.call = RoundCall::broadcast(Rank{kMaxWorldSize})}),
             Catch::Contains("PushPull.root"));
  CHECK_THAT(refusal(PushPull{.count = kMaxTensorElements + 1}), Catch::Contains("PushPull.count"));
  CHECK_THAT(refusal(PushPull{.weight = kMaxWorldSize + 1}), Catch::Contains("PushPull.weight"));
  CHECK_THAT(refusal(Aggregate{.weight = kMaxWorldSize + 1}), Catch::Contains("Aggregate.weight"));
  CHECK_THAT(refusal(NotReady{.partition = PartitionId{~0u}}), Catch::Contains("NotReady.partition"));
  CHECK_THAT(refusal(Declare{1, {{.name = "a", .elements = kMaxTensorElements + 1}}}),
             Catch::Contains("tensors.elements"));
  CHECK_THAT(refusal(DropTensors{0, {}, {TensorId{kMaxTensorsPerJob}}}),
             Catch::Contains("DropTensors.tensors"));
  CHECK_THAT(refusal(DropTensors{0, {}, {}, {PartitionId{kMaxPartitionsPerJob}}}),
             Catch::Contains("DropTensors.partitions"));
  CHECK_THAT(
      refusal(Declared{1, {{.first_partition = PartitionId{kMaxPartitionsPerJob - 1}, .owners = {{}, {}}}}}),
      Catch::Contains("first_partition"));
  CHECK_THAT(refusal(DeclareSlices{
                 1, {}, {}, false, {{.name = "a", .partitions = {{{}, 0, kMaxPartitionBytes / 4 + 1}}}}}),
             Catch::Contains("partitions.elements is 16777217"));
  CHECK_THAT(refusal(OpenJob{.job = "j", .members = {{.rank = Rank{1}}, {.rank = Rank{1}}}}),
             Catch::Contains("OpenJob.members.rank is not in growing order"));
  CHECK_THAT(refusal(Moved{.moves = {{PartitionId{kMaxPartitionsPerJob}, LaneIndex{0}}}}),
             Catch::Contains("Moved.moves.partition"));
  CHECK_THAT(refusal(Moved{.moves = {{PartitionId{0}, LaneIndex{kMaxLanesPerJob}}}}),
             Catch::Contains("Moved.moves.owner"));
  CHECK_THAT(refusal(Moved{.lanes = {{.endpoint = {"h", 1}, .shard = kMaxShardsPerServer}}}),
             Catch::Contains("lanes.shard"));
  CHECK_THAT(refusal(Resume{.partitions = {{PartitionId{kMaxPartitionsPerJob}, Round{1}}}}),
             Catch::Contains("Resume.partitions.partition"));
  CHECK_THAT(refusal(Resume{.partitions = std::vector<StoredRounds>(kMaxPartitionsPerResume + 1)}),
             Catch::Contains("Resume.partitions has 257 entries"));
  CHECK_THAT(refusal(Stored{.partition = PartitionId{kMaxPartitionsPerJob}}),
             Catch::Contains("Stored.partition"));
  CHECK_THAT(refusal(Retained{.weight = kMaxWorldSize + 1}), Catch::Contains("Retained.weight"));
  CHECK_THAT(refusal(Aggregate{.applied = std::vector<Round>(kMaxWorldSize + 1)}),
             Catch::Contains("Aggregate.applied has 4097 entries"));
  CHECK_THAT(refusal(Retained{.applied = std::vector<Round>(kMaxWorldSize + 1)}),
             Catch::Contains("Retained.applied has 4097 entries"));
}

TEST_CASE("a call without a name has a number, and no fewer elements than its piece") {
  const PushPull good{.count = 5, .number = 0x0102030405060708, .whole = 5};
  Message out;
  REQUIRE(decode(header_of(good), out).ok());
  CHECK(out == Message(good));
  CHECK_THAT(refusal(PushPull{.count = 5, .number = 1, .whole = 4}),
             Catch::Contains("PushPull.whole is 4, 5 to"));
  CHECK_THAT(refusal(PushPull{.number = 1, .whole = kMaxTensorElements + 1}),
             Catch::Contains("PushPull.whole is 1099511627777"));

  // The encoder writes no number 0.
  std::vector<std::byte> header = header_of(good);
  const auto number = std::as_bytes(std::span(&good.number, 1));
  const auto at = std::search(header.begin(), header.end(), number.begin(), number.end());
  REQUIRE(at != header.end());
  std::fill_n(at, number.size(), std::byte{0});
  CHECK_THAT(decode(header, out).error().message, Catch::Contains("PushPull.number is 0"));
}

TEST_CASE("what is said of groups is refused where it cannot be") {
  const HelloWorker good{
      .job = "j", .world_size = 1, .local_group = LocalGrouping::host, .group_name = "a", .group_size = 1};
  Message out;
  REQUIRE(decode(header_of(good), out).ok());
  auto with = [&](auto change) {
    HelloWorker m = good;
    change(m);
    return refusal(m);
  };
  CHECK_THAT(with([](auto& m) { m.local_group = LocalGrouping{3}; }), Catch::Contains("local_group is 3"));
  CHECK_THAT(with([](auto& m) { m.group_name.clear(); }), Catch::Contains("group_name is missing"));
  CHECK_THAT(with([](auto& m) { m.group_name.assign(kMaxGroupNameBytes + 1, 'x'); }),
             Catch::Contains("group_name has 257 bytes"));
  CHECK_THAT(with([](auto& m) { m.group_size = kMaxLocalGroupSize + 1; }),
             Catch::Contains("group_size is 65"));
  CHECK_THAT(with([](auto& m) { m.local_group = LocalGrouping::off; }),
             Catch::Contains("group_name has 1 bytes"));
  CHECK_THAT(refusal(HelloWorker{.job = "j", .world_size = 1, .group_size = 2}),
             Catch::Contains("group_size is 2"));

  CHECK_THAT(refusal(OpenJob{.job = "j", .members = {{.rank = Rank{1}, .leader = Rank{2}}}}),
             Catch::Contains("members.leader is 2"));
  CHECK_THAT(refusal(OpenJob{.job = "j", .members = {{.group_rank = kMaxLocalGroupSize}}}),
             Catch::Contains("members.group_rank is 64"));

  CHECK_THAT(refusal(HelloLocal{.rank = Rank{kMaxWorldSize}}), Catch::Contains("HelloLocal.rank"));
  CHECK_THAT(refusal(LocalNews{.ready = std::vector<LocalReady>(kMaxNewsPerMessage + 1)}),
             Catch::Contains("LocalNews.ready has 1025 entries"));
  CHECK_THAT(refusal(LocalNews{.answered = std::vector<LocalAnswer>(kMaxNewsPerMessage + 1)}),
             Catch::Contains("LocalNews.answered has 1025 entries"));
  CHECK_THAT(refusal(LocalNews{.dropped = std::vector<TensorId>(kMaxNewsPerMessage + 1)}),
             Catch::Contains("LocalNews.dropped"));
  CHECK_THAT(refusal(LocalNews{.dropped = {TensorId{kMaxTensorsPerJob}}}),
             Catch::Contains("LocalNews.dropped"));
  CHECK_THAT(refusal(LocalNews{.ready = {{.call = Operation{kOperationCount}}}}),
             Catch::Contains("LocalNews.operation is 8"));
  CHECK_THAT(refusal(LocalNews{.ready = {{.memory = MemoryKind{kMemoryKindCount}}}}),
             Catch::Contains("ready.memory is 2"));
  CHECK_THAT(refusal(LocalNews{.answered = {{.index = kMaxPartitionsPerJob}}}),
             Catch::Contains("answered.index"));
  CHECK_THAT(refusal(LocalBatch{.setup = std::vector<std::byte>(kMaxLocalSetupBytes + 1)}),
             Catch::Contains("LocalBatch.setup has 257 entries"));
  CHECK_THAT(refusal(LocalBatch{.items = std::vector<LocalItem>(kMaxItemsPerBatch + 1)}),
             Catch::Contains("LocalBatch.items has 1025 entries"));
  CHECK_THAT(refusal(LocalBatch{.items = {{.kind = LocalItem::Kind{LocalItem::kKindCount}}}}),
             Catch::Contains("items.kind is 5"));
  CHECK_THAT(refusal(LocalBatch{.items = {{.first = 1, .count = kMaxPartitionsPerJob}}}),
             Catch::Contains("items.count"));
  CHECK_THAT(refusal(LocalBatch{.items = {{.member = kMaxLocalGroupSize}}}),
             Catch::Contains("items.member is 64"));
  CHECK_THAT(refusal(LocalBatch{.waiting = std::vector<LocalWaiting>(kMaxWaitsNamed + 1)}),
             Catch::Contains("LocalBatch.waiting has 65 entries"));
}

TEST_CASE("frames of a job without groups are as long as PROTOCOL.md says") {
  Encoder encoder;
  CHECK(encoder.encode(PushPull{}, 4096).size() == 120);
  CHECK(encoder.encode(Aggregate{}, 4096).size() == 112);
  CHECK(encoder.encode(Credit{.taken = 1}, 0).size() == 72);
}

TEST_CASE("lists that are too long are refused before memory is taken for them") {
  CHECK(refusal(JoinProgress{1, std::vector<Rank>(65), 1}) ==
        "JoinProgress.missing has 65 entries, at most 64 are allowed");
  CHECK_THAT(refusal(JobStart{.partition_bytes = kMinPartitionBytes, .members = std::vector<Member>(4097)}),
             Catch::Contains("members has 4097 entries"));
  CHECK_THAT(refusal(Declare{1, std::vector<TensorDeclaration>(1025, {.name = "a"})}),
             Catch::Contains("1025 entries"));
  const std::vector<LaneIndex> many(kMaxPartitionsPerDeclare / 2 + 1);
  CHECK_THAT(refusal(Declared{1, {{.owners = many}, {.owners = many}}}),
             Catch::Contains("Declared.tensors.owners has"));
  CHECK_THAT(refusal(JobStart{.partition_bytes = kMinPartitionBytes,
                              .lanes = std::vector<LaneTarget>(kMaxLanesPerJob + 1)}),
             Catch::Contains("65537 entries") || Catch::Contains("malformed"));
}

TEST_CASE("the largest JobStart fits into a control frame") {
  JobStart start{.partition_bytes = kMinPartitionBytes};
  for (std::uint32_t i = 0; i < kMaxLanesPerJob; ++i) {
    std::string host = std::to_string(i % kMaxServers);
    host.resize(kMaxHostBytes, 'h');
    start.lanes.push_back(
        {ServerId{i % kMaxServers}, Incarnation{~0ull}, {host, 65535}, i / kMaxServers, host});
  }
  Message out;
  const auto header = header_of(start);
  CHECK(header.size() < kMaxControlHeaderBytes / 2);
  REQUIRE(decode(header, out).ok());
  CHECK(std::get<JobStart>(out) == start);
}

TEST_CASE("names are bounded and clean, error texts are cut and made clean") {
  Message out;
  CHECK(decode(header_of(Declare{1, {{.name = std::string(kMaxNameBytes, 'x')}}}), out).ok());
  CHECK_THAT(refusal(Declare{1, {{.name = std::string(kMaxNameBytes + 1, 'x')}}}),
             Catch::Contains("name has 513 bytes"));
  CHECK_THAT(refusal(Declare{1, {{.name = ""}}}), Catch::Contains("name has 0 bytes, 1 to 512"));
  CHECK_THAT(refusal(Declare{1, {{.name = "a\nb"}}}), Catch::Contains("control character 0x0a"));
  CHECK_THAT(refusal(HelloServer{.data = {std::string(257, 'h'), 1}, .shards = 1}),
             Catch::Contains("data has 257 bytes"));
  CHECK_THAT(refusal(JobStart{.partition_bytes = kMinPartitionBytes,
                              .lanes = {{.endpoint = {"h", 1}, .host = std::string(257, 'h')}}}),
             Catch::Contains("lanes.host has 257 bytes"));

  // Two bytes a letter: the cut must not split one.
  std::string umlauts = "x";
  while (umlauts.size() < kMaxMessageBytes + 100)
    umlauts += "\xc3\xa4";
  const Refused long_texts{ErrorCode::protocol, umlauts, std::string(2000, 'a')};
  REQUIRE(decode(header_of(long_texts), out, kLowestWorkerVersion).ok());
  const auto& refused = std::get<Refused>(out);
  CHECK(refused.message.size() == kMaxMessageBytes - 1);
  CHECK(umlauts.starts_with(refused.message));
  CHECK(refused.advice.size() == kMaxAdviceBytes);
  CHECK(header_of(Refused{ErrorCode::protocol, umlauts, umlauts}).size() <= kMaxHelloHeaderBytes);
  CHECK(header_of(RoundFailed{{}, {}, {ErrorCode::protocol, umlauts, umlauts}, 1}).size() <=
        kMaxLaneHeaderBytes);
  const std::vector<Round> everyone(kMaxWorldSize, Round{1});
  CHECK(header_of(Aggregate{.applied = everyone}).size() <= kMaxLaneHeaderBytes);
  CHECK(header_of(Retained{.error = {ErrorCode::internal, umlauts, umlauts}, .applied = everyone}).size() <=
        kMaxLaneHeaderBytes);
  CHECK(header_of(PushPull{.error = {ErrorCode::configuration, umlauts, umlauts}}).size() <=
        kMaxLaneHeaderBytes);
  CHECK(header_of(Resume{.partitions = std::vector<StoredRounds>(kMaxPartitionsPerResume)}).size() <=
        kMaxLaneHeaderBytes);

  REQUIRE(decode(header_of(JobFailed{JobRun{1}, {ErrorCode::os, "a\nb\x1b[31m", ""}}), out).ok());
  CHECK(std::get<JobFailed>(out).error.message == "a b [31m");
  CHECK_THAT(refusal(JobFailed{JobRun{1}, {}}), Catch::Contains("code 0 (ok)"));
}

TEST_CASE("an error with code ok is no error, whatever its texts say") {
  const JobEnded failed{JobRun{0x7777}, {ErrorCode::configuration, "gone", "wait"}};
  auto header = header_of(failed);
  int seen = 0;
  for (std::byte& byte : header) {
    if (byte != static_cast<std::byte>(ErrorCode::configuration)) continue;
    const std::byte before = std::exchange(byte, std::byte{0});
    Message out;
    // One of them is the code.
    if (decode(header, out).ok() && std::get<JobEnded>(out).error.code == ErrorCode::ok) {
      CHECK(std::get<JobEnded>(out).error == Error{});
      ++seen;
    }
    byte = before;
  }
  CHECK(seen > 0);
}

TEST_CASE("structs that a broken peer has put off their alignment are refused") {
  std::vector<std::byte> header = header_of(DeclareSlices{
      1, JobRun{2}, {}, false, {{.name = "n", .partitions = {{PartitionId{0xabcdef}, 7, 0x1234}}}}});
  // Find the vector by its content, copy it to the end four bytes off, and turn the offset to it.
  std::size_t vector = 0;
  while (read_u32(header, vector + 4) != 0xabcdef || read_u32(header, vector) != 1)
    ++vector;
  std::size_t offset = 0;
  while (offset + read_u32(header, offset) != vector)
    offset += 4;
  while ((header.size() + 4) % 8 == 0)
    header.insert(header.end(), 4, std::byte{0});
  const std::size_t moved = header.size();
  const std::vector<std::byte> content(header.begin() + static_cast<std::ptrdiff_t>(vector),
                                       header.begin() + static_cast<std::ptrdiff_t>(vector) + 28);
  header.insert(header.end(), content.begin(), content.end());
  const auto distance = static_cast<std::uint32_t>(moved - offset);
  std::memcpy(header.data() + offset, &distance, sizeof distance);
  Message out;
  const Status status = decode(header, out);
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message, Catch::Contains("partitions is not aligned"));
}

TEST_CASE("a large message does not keep its memory in the encoder") {
  Encoder encoder;
  Declared large{1, {{.owners = std::vector<LaneIndex>(100'000)}}};
  CHECK(encoder.encode(large, 0).size() > 400'000);
  Message out;
  for (int i = 0; i < 3; ++i) {
    const auto frame = encoder.encode(Heartbeat{5}, 0);
    REQUIRE(decode(frame.subspan(kFramePrefixBytes), out).ok());
    CHECK(out == Message{Heartbeat{5}});
  }
}

}  // namespace bps
