#include "client/src/calls/message_check.h"

#include <catch2/catch.hpp>
#include <span>
#include <string>
#include <vector>

namespace bps {
namespace {

using Lengths = std::vector<std::uint64_t>;

// Of rank 2 in a job of 6 ranks; the group has the ranks 4, 2 and 0, so this one has place 1.
struct MessageCase {
  MessageCase() : memory(100) {
    rules.world_size = 6;
    rules.self = Rank{2};
    for (std::size_t i = 0; i < memory.size(); ++i)
      memory[i] = static_cast<std::byte>(i);
  }

  std::span<std::byte> bytes(std::size_t begin, std::size_t count) {
    return std::span(memory).subspan(begin, count);
  }
  MessageCase& calls(RoundCall call) {
    request.request.call = call;
    return *this;
  }
  MessageCase& in(std::size_t begin, std::size_t count, Lengths parts = {}) {
    request.request.in.bytes = bytes(begin, count);
    request.parts = std::move(parts);
    return *this;
  }
  MessageCase& out(std::size_t begin, std::size_t count, Lengths parts = {}) {
    request.request.out.bytes = bytes(begin, count);
    request.out_parts = std::move(parts);
    return *this;
  }
  MessageCase& any_length() {
    request.given = std::make_shared<GivenParts>();
    return *this;
  }
  MessageCase& meets(Rank peer, std::uint64_t tag, bool receives) {
    request.request.call = RoundCall::message(receives ? peer : rules.self);
    request.peer = peer;
    request.tag = tag;
    request.receives = receives;
    return *this;
  }
  Status prepare() { return prepare_message(request, "g", ranks, rules); }
  // "" if nothing is wrong.
  std::string refusal() {
    const Status status = prepare();
    if (status.ok()) return {};
    CHECK(status.error().code == ErrorCode::invalid_argument);
    const Error& error = status.error();
    return error.message + (error.advice.empty() ? "" : "; " + error.advice);
  }
  void copy() {
    REQUIRE(refusal().empty());
    copy_own_part(request, 1);
  }
  std::vector<int> numbers(std::size_t begin, std::size_t count) {
    std::vector<int> out;
    for (const std::byte byte : bytes(begin, count))
      out.push_back(static_cast<int>(byte));
    return out;
  }

  RankList ranks{{Rank{4}, Rank{2}, Rank{0}}};
  RequestRules rules;
  GroupRequest request;
  std::vector<std::byte> memory;
};

MessageCase scatter() { return MessageCase().calls(RoundCall::scatter(Rank{2})); }
MessageCase gather() { return MessageCase().calls(RoundCall::gather(Rank{2})); }
MessageCase all_to_all() { return MessageCase().calls(RoundCall::all_to_all()); }

const char* const kRoot = "give one of the group's ranks, as a rank of the job";
const char* const kApart = "give the part where the whole has it, or memory that does not overlap";

}  // namespace

TEST_CASE("message check: a message needs another rank of the group, and host memory") {
  MessageCase c;
  c.out(0, 10);
  for (const bool receives : {false, true}) {
    const std::string what = receives ? "message from" : "message to";
    CHECK(c.meets(Rank{4}, 7, receives).refusal().empty());
    CHECK(c.meets(Rank{2}, 7, receives).refusal() ==
          what +
              " rank 2 with tag 7 in group 'g': the other end is this rank itself; copy the buffer, or give "
              "another rank");
    CHECK(c.meets(Rank{3}, 7, receives).refusal() ==
          what + " rank 3 with tag 7 in group 'g': the other end, rank 3, is none of the group's ranks; " +
              kRoot);
    CHECK(c.meets(Rank{99}, 0, receives).refusal() ==
          what + " rank 99 with tag 0 in group 'g': the other end, rank 99, is none of the group's ranks; " +
              kRoot);
  }
  c.ranks = {};  // of all of the job
  CHECK(c.meets(Rank{5}, 7, true).refusal().empty());
  CHECK(c.meets(Rank{6}, 7, true).refusal() ==
        std::string(
            "message from rank 6 with tag 7 in group 'g': the other end, rank 6, is none of the group's "
            "ranks; ") +
            kRoot);
}

TEST_CASE("message check: memory that cannot be used, and ranks that sum first") {
  MessageCase c;
  c.meets(Rank{4}, 7, false).out(0, 10);
  const std::string what = "message to rank 4 with tag 7 in group 'g': ";
  c.request.request.out.memory = MemoryKind::cuda;
  CHECK(c.refusal() == what + "'out' is CUDA memory; copy it to host memory first");
  c.request.request.in.memory = MemoryKind::cuda;
  CHECK(c.refusal() == what + "'in' is CUDA memory; copy it to host memory first");
  c.request.request.in = c.request.request.out = {};
  CHECK(c.refusal().empty());  // no bytes need no memory
  c.request.request.out.bytes = std::span<std::byte>(static_cast<std::byte*>(nullptr), 5);
  CHECK(c.refusal() == what + "'out' is a null pointer, 5 bytes are needed");
  c.request.request.in.bytes = std::span<std::byte>(static_cast<std::byte*>(nullptr), 6);
  CHECK(c.refusal() == what + "'in' is a null pointer, 6 bytes are needed");
  c.rules.local_group = LocalGrouping::host;
  CHECK(c.refusal() ==
        what + "the ranks of a host sum first; set local-group off (BPS_LOCAL_GROUP) on all ranks");
}

TEST_CASE("message check: a root is one of the group's ranks, and may be this one") {
  for (const auto& [call, text] : {std::pair(RoundCall::scatter(Rank{3}), "scatter from rank 3"),
                                   std::pair(RoundCall::gather(Rank{3}), "gather to rank 3")}) {
    CHECK(MessageCase().calls(call).in(0, 3).out(10, 1).refusal() ==
          text + std::string(" in group 'g': the root, rank 3, is none of the group's ranks; ") + kRoot);
  }
  // The C API's ranks are signed.
  CHECK(MessageCase()
            .calls(RoundCall::scatter(Rank{static_cast<std::uint32_t>(-1)}))
            .refusal()
            .find("the root, rank -1, is none of the group's ranks") != std::string::npos);
  // Elsewhere than at the root nothing is divided.
  CHECK(MessageCase().calls(RoundCall::scatter(Rank{4})).out(0, 7).refusal().empty());
  CHECK(MessageCase().calls(RoundCall::gather(Rank{0})).in(0, 7).refusal().empty());
}

TEST_CASE("message check: parts that are not given are equal") {
  MessageCase c = scatter();
  CHECK(c.in(0, 9).out(10, 3).refusal().empty());
  CHECK(c.request.parts == Lengths{3, 3, 3});
  CHECK(c.request.out_parts.empty());
  c = gather();
  CHECK(c.in(10, 3).out(0, 9).refusal().empty());
  CHECK(c.request.parts.empty());
  CHECK(c.request.out_parts == Lengths{3, 3, 3});
  c = all_to_all();
  CHECK(c.in(0, 9).out(10, 9).refusal().empty());
  CHECK(c.request.parts == Lengths{3, 3, 3});
  CHECK(c.request.out_parts == Lengths{3, 3, 3});
  c = all_to_all();
  CHECK(c.in(0, 9, {2, 3, 4}).out(10, 9).refusal().empty());
  CHECK(c.request.parts == Lengths{2, 3, 4});
  CHECK(c.request.out_parts == Lengths{3, 3, 3});
  c = all_to_all();
  CHECK(c.in(0, 0).out(0, 0).refusal().empty());
  CHECK(c.request.parts == Lengths{0, 0, 0});
  c = all_to_all();
  CHECK(c.any_length().in(0, 6).refusal().empty());
  CHECK(c.request.parts == Lengths{2, 2, 2});
  CHECK(c.request.out_parts.empty());  // only the others know
}

TEST_CASE("message check: parts are one for each rank, and together the whole") {
  const std::string divide = "give the length of each rank's part";
  CHECK(scatter().in(0, 10).out(20, 3).refusal() ==
        "scatter from rank 2 in group 'g': 'in' has 10 bytes, which 3 ranks cannot divide equally; " +
            divide);
  CHECK(gather().in(20, 3).out(0, 10).refusal() ==
        "gather to rank 2 in group 'g': 'out' has 10 bytes, which 3 ranks cannot divide equally; " + divide);
  CHECK(all_to_all().in(0, 9).out(20, 10).refusal() ==
        "all_to_all in group 'g': 'out' has 10 bytes, which 3 ranks cannot divide equally; " + divide);
  CHECK(all_to_all().any_length().in(0, 10).refusal() ==
        "all_to_all in group 'g': 'in' has 10 bytes, which 3 ranks cannot divide equally; " + divide);
  const std::string one = "give the length of one part for each rank of the group, in their order";
  CHECK(scatter().in(0, 10, {5, 5}).out(20, 5).refusal() ==
        "scatter from rank 2 in group 'g': 'in' has 2 parts, the group has 3 ranks; " + one);
  CHECK(all_to_all().in(0, 9).out(20, 9, {9}).refusal() ==
        "all_to_all in group 'g': 'out' has 1 parts, the group has 3 ranks; " + one);
  const std::string sum = "give lengths that together are the buffer";
  for (const Lengths& parts : {Lengths{5, 5, 5}, Lengths{1, 2, 3}, Lengths{UINT64_MAX, 11, 0}}) {
    CHECK(scatter().in(0, 10, parts).out(20, 5).refusal() ==
          "scatter from rank 2 in group 'g': 'in' has 10 bytes, and its parts have not the same sum; " + sum);
    CHECK(gather().in(20, 5).out(0, 10, parts).refusal() ==
          "gather to rank 2 in group 'g': 'out' has 10 bytes, and its parts have not the same sum; " + sum);
  }
}

TEST_CASE("message check: an all_gather of any lengths takes any length") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}}) {
    MessageCase c;
    CHECK(c.calls(RoundCall::all_gather()).any_length().in(0, bytes).refusal().empty());
    CHECK(c.request.parts.empty());
  }
}

TEST_CASE("message check: the root's own part has its length, and lies apart or in its place") {
  CHECK(scatter().in(0, 10, {2, 3, 5}).out(20, 4).refusal() ==
        "scatter from rank 2 in group 'g': 'out' has 4 bytes, and this rank's part of 'in' has 3; give a "
        "buffer of "
        "this rank's part alone");
  CHECK(gather().in(20, 4).out(0, 10, {2, 3, 5}).refusal() ==
        "gather to rank 2 in group 'g': 'in' has 4 bytes, and this rank's part of 'out' has 3; give a buffer "
        "of "
        "this rank's part alone");
  for (const std::size_t begin : {2, 10, 20})  // in its place; right behind; apart
    CHECK(scatter().in(0, 10, {2, 3, 5}).out(begin, 3).refusal().empty());
  CHECK(scatter().in(10, 10, {2, 3, 5}).out(7, 3).refusal().empty());  // right before
  CHECK(gather().in(2, 3).out(0, 10, {2, 3, 5}).refusal().empty());
  for (const std::size_t begin : {0, 1, 3, 9}) {
    CHECK(scatter().in(0, 10, {2, 3, 5}).out(begin, 3).refusal() ==
          std::string("scatter from rank 2 in group 'g': 'in' and 'out' overlap; ") + kApart);
    CHECK(gather().in(begin, 3).out(0, 10, {2, 3, 5}).refusal() ==
          std::string("gather to rank 2 in group 'g': 'in' and 'out' overlap; ") + kApart);
  }
  CHECK(scatter().in(0, 7, {2, 0, 5}).out(1, 0).refusal().empty());  // no bytes overlap nothing
}

TEST_CASE("message check: an all_to_all's own part has one length, and its buffers lie apart") {
  CHECK(all_to_all().in(0, 10, {2, 3, 5}).out(10, 8, {0, 4, 4}).refusal() ==
        "all_to_all in group 'g': this rank gives itself 3 bytes, and takes 4 from itself; give the own part "
        "one "
        "length in 'in' and 'out'");
  for (const std::size_t begin : {10, 11, 19})
    CHECK(all_to_all().in(10, 10, {2, 3, 5}).out(begin, 10, {2, 3, 5}).refusal() ==
          "all_to_all in group 'g': 'in' and 'out' overlap; use memory that does not overlap");
  CHECK(all_to_all().in(10, 10, {2, 3, 5}).out(0, 10, {2, 3, 5}).refusal().empty());
  CHECK(all_to_all().in(10, 10, {5, 0, 5}).out(12, 0).refusal().empty());
}

TEST_CASE("message check: a rank's own part is copied, and nothing else") {
  MessageCase c = scatter();
  c.in(0, 10, {2, 3, 5}).out(20, 3).copy();
  CHECK(c.numbers(19, 5) == std::vector<int>{19, 2, 3, 4, 23});
  c = gather();
  c.in(20, 3).out(0, 10, {2, 3, 5}).copy();
  CHECK(c.numbers(0, 7) == std::vector<int>{0, 1, 20, 21, 22, 5, 6});
  c = all_to_all();
  c.in(0, 10, {2, 3, 5}).out(20, 10, {4, 3, 3}).copy();
  CHECK(c.numbers(22, 7) == std::vector<int>{22, 23, 2, 3, 4, 27, 28});
  CHECK(c.numbers(0, 4) == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("message check: nothing is copied in place, elsewhere than at the root, and of other calls") {
  const auto is_untouched = [](MessageCase& c) {
    const std::vector<std::byte> before = c.memory;
    c.copy();
    return c.memory == before;
  };
  MessageCase c = scatter();
  CHECK(is_untouched(c.in(0, 10, {2, 3, 5}).out(2, 3)));
  c = gather();
  CHECK(is_untouched(c.in(2, 3).out(0, 10, {2, 3, 5})));
  c = MessageCase();
  CHECK(is_untouched(c.calls(RoundCall::scatter(Rank{4})).out(20, 3)));
  c = MessageCase();
  CHECK(is_untouched(c.calls(RoundCall::gather(Rank{4})).in(20, 3)));
  c = MessageCase();
  CHECK(is_untouched(c.meets(Rank{4}, 0, true).out(20, 3)));
  c = MessageCase();
  CHECK(is_untouched(c.calls(RoundCall::all_gather()).any_length().in(20, 3)));
}

TEST_CASE("message check: lengths of parts are ignored elsewhere than at the root") {
  MessageCase c;
  c.calls(RoundCall::scatter(Rank{4})).out(20, 3);
  c.request.parts = {2, 3, 5};
  c.copy();
  CHECK(c.request.parts.empty());
  CHECK(c.numbers(20, 3) == std::vector<int>{20, 21, 22});
  c = MessageCase();
  c.calls(RoundCall::gather(Rank{4})).in(20, 3);
  c.request.out_parts = {2, 3, 5};
  c.copy();
  CHECK(c.request.out_parts.empty());
}

}  // namespace bps
