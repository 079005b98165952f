// Messages and exchanges of them, through the C API and real sockets.
#include <bps/bps.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "client/src/api/testing/c_api_harness.h"
#include "proto/base/log/log.h"

using Catch::Contains;
using namespace bps::testing;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Lengths = std::vector<std::uint64_t>;

bps_buffer buffer_of(Bytes& memory) {
  return {sizeof(bps_buffer), memory.data(), memory.size(), BPS_MEMORY_HOST, 0, nullptr, nullptr};
}

// What `from` gives `to`.
Bytes part(std::size_t from, std::size_t to, std::size_t bytes) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::uint8_t>(from * 31 + to * 7 + i % 251);
  return out;
}

bps_handle* begun(bps_status status, bps_handle* handle, const Refusal& why) {
  INFO(why.message());
  REQUIRE(status == BPS_OK);
  return handle;
}

bps_handle* send(bps_client* client, Bytes& memory, std::int32_t to, std::uint64_t tag = 0) {
  const bps_buffer buffer = buffer_of(memory);
  bps_handle* handle = nullptr;
  Refusal why;
  const bps_status status = bps_send(client, BPS_WORLD, &buffer, to, tag, &handle, why);
  return begun(status, handle, why);
}

bps_handle* receive(bps_client* client, Bytes& memory, std::int32_t from, std::uint64_t tag = 0) {
  const bps_buffer buffer = buffer_of(memory);
  bps_handle* handle = nullptr;
  Refusal why;
  const bps_status status = bps_receive(client, BPS_WORLD, &buffer, from, tag, &handle, why);
  return begun(status, handle, why);
}

std::string error_of(bps_handle* handle, bps_status expected) {
  Refusal why;
  CHECK(wait_and_free(handle, why) == expected);
  return why.message();
}

// What was copied may still be under way.
void close_all(const Workers& job) {
  for (std::size_t rank = 0; rank < job.size(); ++rank)
    CHECK(bps_close(job[rank], kSoon, nullptr) == BPS_OK);
}

}  // namespace

TEST_CASE("c api: messages meet by source, destination and tag, in any order") {
  const Workers job(3);
  constexpr std::size_t kLengths[] = {0, 1, 5000, 65'536, 65'537, 3'000'000};
  // Tags in another order on the two ends, two messages of each.
  std::vector<Bytes> sent, received;
  std::vector<bps_handle*> handles;
  for (std::size_t i = 0; i < std::size(kLengths); ++i) {
    for (int twice = 0; twice < 2; ++twice)
      received.emplace_back(kLengths[i]);
  }
  sent.reserve(received.size());
  for (std::size_t i = std::size(kLengths); i-- > 0;) {
    handles.push_back(receive(job[2], received[2 * i], 0, i));
    handles.push_back(receive(job[2], received[2 * i + 1], 0, i));
  }
  for (std::size_t i = 0; i < std::size(kLengths); ++i) {
    for (std::size_t twice = 0; twice < 2; ++twice) {
      sent.push_back(part(i, twice, kLengths[i]));
      handles.push_back(send(job[0], sent.back(), 2, i));
    }
  }
  for (bps_handle* const handle : handles)
    check_ok(handle);
  CHECK(received == sent);
  close_all(job);
}

TEST_CASE("c api: all ranks may send first, and wait for that, if it is short") {
  const Workers job(3);
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    Bytes short_one = part(rank, 0, 60'000);
    check_ok(send(job[rank], short_one, static_cast<std::int32_t>((rank + 1) % 3)));
    std::fill(short_one.begin(), short_one.end(), std::uint8_t{0});  // it was copied
  }
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    const std::size_t from = (rank + 2) % 3;
    Bytes received(60'000);
    check_ok(receive(job[rank], received, static_cast<std::int32_t>(from)));
    CHECK(received == part(from, 0, 60'000));
  }
  close_all(job);
}

TEST_CASE("c api: a message that is not equally long on both ends fails its tag, and nothing else") {
  const bps::ExpectLog differ("messages from rank 0 to rank 1 with tag 5");
  const Workers job(3);
  Bytes five(5, 1), longer(GENERATE(6, 200'000), 0);
  const auto begin = std::chrono::steady_clock::now();
  bps_handle* const sent = send(job[0], longer, 1, 5);
  const std::string told = error_of(receive(job[1], five, 0, 5), BPS_CONFIGURATION);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  CHECK_THAT(told, Contains("messages from rank 0 to rank 1 with tag 5 in group 'world'") &&
                       Contains("message from rank 0 of 5 u8") &&
                       Contains("of " + std::to_string(longer.size()) + " u8"));
  if (longer.size() > 65'536) {
    CHECK(error_of(sent, BPS_CONFIGURATION) == told);
  } else {  // the copy's error comes with the next one
    check_ok(sent);
  }
  const bps_buffer buffer = buffer_of(five);
  bps_handle* next = nullptr;
  bps_status status = bps_send(job[0], BPS_WORLD, &buffer, 1, 5, &next, nullptr);
  if (status == BPS_OK) CHECK(error_of(next, BPS_CONFIGURATION) == told);
  bps_handle* const other = send(job[0], five, 1, 6);
  Bytes received(5);
  check_ok(receive(job[1], received, 0, 6));
  check_ok(other);
  CHECK(received == five);
  close_all(job);
}

TEST_CASE("c api: exchanges give each rank its parts") {
  const Workers job(3);
  // part_of(from, to) bytes; 0 equal: as long as the caller says nothing.
  const bool equal = GENERATE(true, false);
  const std::size_t scale = GENERATE(1, 40'000);
  const auto length = [&](std::size_t from, std::size_t to) {
    return (equal ? 7 : (from * 2 + to) % 5) * scale;
  };
  std::vector<Bytes> memory;
  std::vector<bps_handle*> handles;
  std::vector<Bytes> outs(9), ins(9);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    Lengths in_bytes, out_bytes, root_bytes, gathered;
    Bytes &scattered = ins[rank], &own = ins[3 + rank], &given = ins[6 + rank];
    std::size_t taken = 0, all = 0;
    for (std::size_t other = 0; other < 3; ++other) {
      const Bytes from_root = part(1, other, length(1, other)), mine = part(rank, other, length(rank, other));
      scattered.insert(scattered.end(), from_root.begin(), from_root.end());
      root_bytes.push_back(from_root.size());
      given.insert(given.end(), mine.begin(), mine.end());
      in_bytes.push_back(mine.size());
      out_bytes.push_back(length(other, rank));
      gathered.push_back(length(other, 2));
      taken += length(other, rank);
      all += length(other, 2);
    }
    own = part(rank, 2, length(rank, 2));
    outs[rank].resize(length(1, rank));
    outs[3 + rank].resize(all);
    outs[6 + rank].resize(taken);
    const bps_buffer scatter_in = buffer_of(scattered), scatter_out = buffer_of(outs[rank]);
    const bps_buffer gather_in = buffer_of(own), gather_out = buffer_of(outs[3 + rank]);
    const bps_buffer in = buffer_of(given), out = buffer_of(outs[6 + rank]);
    const auto lengths = [&](const Lengths& given_lengths) { return equal ? nullptr : given_lengths.data(); };
    const std::size_t count = equal ? 0 : 3;
    const bool is_root = rank == 1, is_last = rank == 2;
    bps_handle* handle = nullptr;
    Refusal why;
    bps_status status = bps_scatter(job[rank], BPS_WORLD, is_root ? &scatter_in : nullptr, &scatter_out,
                                    lengths(root_bytes), count, 1, &handle, why);  // ignored elsewhere
    handles.push_back(begun(status, handle, why));
    status = bps_gather(job[rank], BPS_WORLD, &gather_in, is_last ? &gather_out : nullptr, lengths(gathered),
                        count, 2, &handle, why);
    handles.push_back(begun(status, handle, why));
    status = bps_all_to_all(job[rank], BPS_WORLD, &in, &out, lengths(in_bytes), lengths(out_bytes), count,
                            &handle, why);
    handles.push_back(begun(status, handle, why));
  }
  for (bps_handle* const handle : handles)
    check_ok(handle);
  Bytes last;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(outs[rank] == part(1, rank, length(1, rank)));
    Bytes expected;
    for (std::size_t other = 0; other < 3; ++other) {
      const Bytes from = part(other, rank, length(other, rank)), to_last = part(other, 2, length(other, 2));
      expected.insert(expected.end(), from.begin(), from.end());
      if (rank == 2) last.insert(last.end(), to_last.begin(), to_last.end());
    }
    CHECK(outs[6 + rank] == expected);
  }
  CHECK(outs[5] == last);
}

TEST_CASE(
    "c api: parts whose lengths only their givers know arrive in library memory, in the order of calls") {
  const Workers job(3);
  const auto length = [](std::size_t from, std::size_t to) { return (from * 3 + to) % 4 * 30'000; };
  std::vector<Bytes> ins(9), outs(3);
  std::vector<bps_handle*> gathers, exchanges, plain;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    Lengths in_bytes;
    for (std::size_t to = 0; to < 3; ++to) {
      const Bytes mine = part(rank, to, length(rank, to));
      ins[3 + rank].insert(ins[3 + rank].end(), mine.begin(), mine.end());
      in_bytes.push_back(mine.size());
    }
    ins[rank] = part(rank, 9, length(rank, 1));
    ins[6 + rank] = part(rank, 5, 30);
    outs[rank].resize(30);
    const bps_buffer one = buffer_of(ins[rank]), all = buffer_of(ins[3 + rank]);
    const bps_buffer in = buffer_of(ins[6 + rank]), out = buffer_of(outs[rank]);
    bps_handle* handle = nullptr;
    Refusal why;
    bps_status status =
        bps_all_to_all(job[rank], BPS_WORLD, &all, nullptr, in_bytes.data(), nullptr, 3, &handle, why);
    exchanges.push_back(begun(status, handle, why));
    status = bps_all_to_all(job[rank], BPS_WORLD, &in, &out, nullptr, nullptr, 0, &handle, why);
    plain.push_back(begun(status, handle, why));
    status = bps_group_all_gather(job[rank], BPS_WORLD, &one, nullptr, nullptr, 0, &handle, why);
    gathers.push_back(begun(status, handle, why));
  }
  const auto check_parts = [&](bps_handle* handle, const auto& expected) {
    Refusal why;
    CHECK(bps_wait(handle, kSoon, why) == BPS_OK);
    for (std::size_t from = 0; from < 3; ++from) {
      bps_view view = BPS_VIEW_INIT;
      REQUIRE(bps_handle_view(handle, from, &view, why) == BPS_OK);
      const auto* const bytes = static_cast<const std::uint8_t*>(view.pointer);
      CHECK(Bytes(bytes, bytes + view.bytes) == expected(from));
      CHECK(view.pieces == 3);
    }
    bps_handle_free(handle);
  };
  for (std::size_t rank = 0; rank < 3; ++rank) {
    check_parts(gathers[rank], [&](std::size_t from) { return part(from, 9, length(from, 1)); });
    check_parts(exchanges[rank], [&](std::size_t from) { return part(from, rank, length(from, rank)); });
    check_ok(plain[rank]);
    for (std::size_t from = 0; from < 3; ++from) {
      const Bytes given = part(from, 5, 30);
      CHECK(Bytes(outs[rank].begin() + 10 * from, outs[rank].begin() + 10 * from + 10) ==
            Bytes(given.begin() + 10 * rank, given.begin() + 10 * rank + 10));
    }
  }
}

TEST_CASE("c api: exchanges that differ fail the group on all ranks, and say what was called") {
  const bps::ExpectLog differ("rank");
  const Workers job(3);
  const int what = GENERATE(range(0, 5));
  CAPTURE(what);
  std::vector<Bytes> ins(3), outs(3);
  std::vector<bps_handle*> handles;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ins[rank].resize(30);
    outs[rank].resize(30);
    const bps_buffer in = buffer_of(ins[rank]), out = buffer_of(outs[rank]);
    const bool is_odd = rank == 2;
    const Lengths lengths{11, 9, 10};
    const std::uint64_t* const given = is_odd && what == 0 ? lengths.data() : nullptr;
    bps_buffer third = out;
    third.bytes = 10;
    bps_handle* handle = nullptr;
    Refusal why;
    bps_status status{};
    if (is_odd && what == 1) {
      status = bps_scatter(job[rank], BPS_WORLD, nullptr, &third, nullptr, 0, 0, &handle, why);
    } else if (is_odd && what == 2) {
      status = bps_group_push_pull(job[rank], BPS_WORLD, BPS_U8, &in, &out, BPS_SUM, &handle, why);
    } else if (is_odd && what == 3) {
      status = bps_all_to_all(job[rank], BPS_WORLD, &in, nullptr, nullptr, nullptr, 0, &handle, why);
    } else if (is_odd && what == 4) {
      status = bps_group_all_gather(job[rank], BPS_WORLD, &third, nullptr, nullptr, 0, &handle, why);
    } else {
      status = bps_all_to_all(job[rank], BPS_WORLD, &in, &out, given, nullptr, given == nullptr ? 0 : 3,
                              &handle, why);
    }
    handles.push_back(begun(status, handle, why));
  }
  const auto begin = std::chrono::steady_clock::now();
  for (bps_handle* const handle : handles) {
    Refusal why;
    CHECK(wait_and_free(handle, why) == BPS_CONFIGURATION);
    CHECK_THAT(why.message(), Contains("rank 2"));
    if (what == 0) CHECK_THAT(why.message(), Contains("of 9 u8") || Contains("of 11 u8"));
    if (what == 1) CHECK_THAT(why.message(), Contains("scatter from rank 0") && Contains("all_to_all"));
    if (what == 2) CHECK_THAT(why.message(), Contains("sum of 30 u8") && Contains("all_to_all"));
    if (what >= 3) CHECK_THAT(why.message(), Contains("only their givers know") && Contains("all_to_all"));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("c api: messages and exchanges that are wrong by themselves are refused, and count for nothing") {
  const Workers job(3);
  Bytes ten(10, 1), nine(9, 2);
  const bps_buffer longer = buffer_of(ten), shorter = buffer_of(nine);
  const Lengths two{5, 5}, wrong{3, 3, 3};
  bps_handle* handle = nullptr;
  Refusal why;
  const auto refused = [&](bps_status status, const char* text) {
    CHECK(status == BPS_INVALID_ARGUMENT);
    CHECK_THAT(why.message(), Contains(text));
    CHECK(handle == nullptr);
  };
  const OpenClient& a = job[0];
  refused(bps_send(a, BPS_WORLD, &longer, 0, 7, &handle, why),
          "message to rank 0 with tag 7 in group 'world': the other end is this rank itself");
  refused(bps_send(a, BPS_WORLD, &longer, 3, 0, &handle, why), "rank 3, is none of the group's ranks");
  refused(bps_receive(a, BPS_WORLD, &longer, -1, 0, &handle, why), "rank -1");
  refused(bps_send(a, 9, &longer, 1, 0, &handle, why), "group 9 has not been declared");
  refused(bps_send(a, BPS_WORLD, nullptr, 1, 0, &handle, why), "buffer 'buffer' is NULL");
  refused(bps_scatter(a, BPS_WORLD, &longer, &shorter, nullptr, 0, 0, &handle, why),
          "'in' has 10 bytes, which 3 ranks cannot divide");
  refused(bps_scatter(a, BPS_WORLD, &longer, &shorter, two.data(), 2, 0, &handle, why),
          "2 parts, the group has 3 ranks");
  refused(bps_scatter(a, BPS_WORLD, &longer, &shorter, wrong.data(), 3, 0, &handle, why),
          "have not the same sum");
  refused(bps_scatter(a, BPS_WORLD, &shorter, &longer, nullptr, 0, 0, &handle, why),
          "'out' has 10 bytes, and this rank's part of 'in' has 3");
  refused(bps_gather(a, BPS_WORLD, &longer, &shorter, nullptr, 0, 0, &handle, why), "'in' has 10 bytes");
  refused(bps_all_to_all(a, BPS_WORLD, &shorter, &shorter, nullptr, nullptr, 0, &handle, why), "overlap");
  refused(bps_all_to_all(a, BPS_WORLD, &longer, &shorter, nullptr, nullptr, 0, &handle, why),
          "'in' has 10 bytes");
  refused(bps_group_all_gather(a, BPS_WORLD, &longer, nullptr, two.data(), 2, &handle, why), "out is NULL");
  bps_handle* const sent = send(job[1], ten, 0);
  Bytes received(10);
  check_ok(receive(a, received, 1));
  check_ok(sent);
  CHECK(received == ten);
  close_all(job);
}

TEST_CASE("c api: a wait for a message names its other end; closing waits for what was copied") {
  const Workers job(2);
  Bytes five(5, 3), received(5);
  bps_handle* const waiting = receive(job[1], received, 0, 4);
  Refusal why;
  CHECK(bps_wait(waiting, 1500, why) == BPS_DEADLINE);
  CHECK_THAT(
      why.message(),
      Contains("message from rank 0 of 5 u8 (messages from rank 0 to rank 1 with tag 4 in group 'world')") &&
          Contains("missing rank 0"));
  check_ok(send(job[0], five, 1, 4));
  check_ok(send(job[0], five, 1, 5));
  bps_handle* const last = receive(job[1], received, 0, 5);
  CHECK(bps_close(job[0], kSoon, why) == BPS_OK);
  check_ok(waiting);
  check_ok(last);
  CHECK(received == five);
}

TEST_CASE("c api: many push_pulls in one call end together") {
  const Workers job(2);
  std::vector<std::vector<float>> memory;
  std::vector<bps_handle*> handles;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const std::size_t count : {0, 10, 5000, 10})
      memory.emplace_back(count, static_cast<float>(rank + 1));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<bps_buffer> buffers;
    for (std::size_t i = 0; i < 4; ++i)
      buffers.push_back(OpenClient::buffer(memory[4 * rank + i]));
    bps_handle* handle = nullptr;
    Refusal why;
    const bps_status status = bps_push_pull_many(job[rank], BPS_WORLD, BPS_F32, buffers.data(),
                                                 buffers.data(), 4, BPS_SUM, &handle, why);
    handles.push_back(begun(status, handle, why));
  }
  for (bps_handle* const handle : handles) {
    Refusal why;
    CHECK(bps_wait(handle, kSoon, why) == BPS_OK);
    CHECK(bps_handle_ranks(handle) == 2);
    bps_handle_free(handle);
  }
  for (const auto& one : memory)
    CHECK(one == std::vector<float>(one.size(), 3.f));
}
