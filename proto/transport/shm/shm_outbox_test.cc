// Which way each payload goes, and what a peer is told; what the bytes mean is checked by reading them back.
#include "proto/transport/shm/shm_outbox.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "proto/base/descriptor_limit.h"
#include "proto/base/testing/not_run.h"
#include "proto/transport/shm/shm_records.h"
#include "proto/wire/codec.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

using Bytes = std::vector<std::byte>;

struct Outbox {
  Outbox() : outbox(options) {
    outbox.set_watch([this](const std::shared_ptr<RegionLife>& life) { watched.push_back(life); });
  }
  void send(std::span<const std::byte> payload, const Region* region = nullptr, std::uint64_t cookie = 0) {
    outbox.send(encoder.encode(Heartbeat{1}, payload.size()), {payload, region}, cookie);
  }

  // As a socket that takes at most `most` bytes at a time; each system call as "bytes" or "bytes+fd".
  std::vector<std::string> drain(std::size_t most = SIZE_MAX) {
    std::vector<std::string> calls;
    while (outbox.ready_bytes() > 0) {
      std::array<iovec, 8> pieces;
      const auto batch = outbox.gather(pieces);
      REQUIRE(batch.bytes > 0);
      std::size_t left = std::min(most, batch.bytes);
      calls.push_back(std::to_string(left) + (batch.descriptor >= 0 ? "+fd" : ""));
      outbox.consume(left);
      for (std::size_t i = 0; i < batch.pieces && left > 0; ++i) {
        const auto* const data = static_cast<const std::byte*>(pieces[i].iov_base);
        const std::size_t here = std::min(left, pieces[i].iov_len);
        stream.insert(stream.end(), data, data + here);
        left -= here;
      }
      while (const auto cookie = outbox.take_sent())
        sent.push_back(*cookie);
    }
    return calls;
  }

  // What the stream says, frame by frame: "inline 100", "lent 3 scarce", "region 0", "drop 0", ...
  std::vector<std::string> frames() {
    std::vector<std::string> result;
    for (std::size_t at = 0; at < stream.size();) {
      const auto start = std::span(stream).subspan(at).first<kFramePrefixBytes>();
      const auto prefix = read_prefix(start, kMaxHelloHeaderBytes, kFrameLent | kFrameRecord);
      REQUIRE(prefix.ok());
      const auto header = std::span(stream).subspan(at + kFramePrefixBytes, prefix->header_bytes);
      REQUIRE(check_header(start, header).ok());
      at += kFramePrefixBytes + prefix->header_bytes;
      if (prefix->flags == 0) {
        result.push_back("inline " + std::to_string(prefix->payload_bytes));
        at += prefix->payload_bytes;
      } else if (prefix->flags == kFrameLent) {
        const auto reference = decode_reference(header.last<kFrameReferenceBytes>()).value();
        tokens.push_back(reference.token);
        result.push_back("lent " + std::to_string(prefix->payload_bytes) + " at " +
                         std::to_string(reference.where) + " of " + std::to_string(reference.memory) +
                         (reference.scarce ? " scarce" : ""));
      } else {
        const auto record = decode_record(header).value();
        if (std::holds_alternative<ShmHello>(record)) result.push_back("hello");
        if (const auto* region = std::get_if<ShmRegionRecord>(&record))
          result.push_back("region " + std::to_string(region->region) + " " + std::to_string(region->bytes));
        if (const auto* drop = std::get_if<ShmDrop>(&record))
          result.push_back("drop " + std::to_string(drop->region));
        if (const auto* returned = std::get_if<ReturnedLoans>(&record))
          result.push_back("returned " + std::to_string(returned->size()));
      }
    }
    stream.clear();
    return result;
  }

  ShmOptions options;
  ShmOutbox outbox;
  Encoder encoder;
  Bytes stream;
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> tokens;
  std::vector<std::shared_ptr<RegionLife>> watched;
};

using Strings = std::vector<std::string>;

TEST_CASE("small payloads go through the stream, regions are lent, the rest is copied once") {
  Outbox outbox;
  const auto region = ShmRegion::make(100'000).value();
  const Bytes ordinary(50'000, std::byte{5});
  outbox.send(std::span(ordinary).first(1024), nullptr, 1);
  outbox.send(region->bytes().subspan(1000, 50'000), region.get(), 2);
  outbox.send(ordinary, nullptr, 3);
  outbox.send(region->bytes().first(100), region.get(), 4);
  outbox.send(region->bytes().last(9000), region.get(), 5);
  outbox.drain();
  CHECK(outbox.frames() == Strings{"inline 1024", "region 0 102400", "lent 50000 at 1000 of 0",
                                   "region 1 1048576", "lent 50000 at 0 of 1 scarce", "inline 100",
                                   "lent 9000 at 91000 of 0"});
  CHECK(outbox.sent == std::vector<std::uint64_t>{1, 3, 4});
  CHECK(outbox.outbox.lends_in_place());
  REQUIRE(outbox.tokens.size() == 3);
  CHECK(outbox.outbox.give_back(outbox.tokens[2]));
  CHECK(outbox.outbox.give_back(outbox.tokens[1]));
  CHECK(outbox.outbox.take_sent() == 5u);
  CHECK_FALSE(outbox.outbox.take_sent());
  CHECK_FALSE(outbox.outbox.give_back(outbox.tokens[1]));
  CHECK(outbox.outbox.give_back(outbox.tokens[0]));
  CHECK(outbox.outbox.take_sent() == 2u);
  CHECK_FALSE(outbox.outbox.lends_in_place());
}

TEST_CASE("a descriptor goes with the first byte of its record, one in a system call") {
  Outbox outbox;
  const auto control = ShmRegion::make(4096).value();
  outbox.outbox.send_hello(control->file());
  const auto first = ShmRegion::make(20'000).value();
  const auto second = ShmRegion::make(20'000).value();
  outbox.send(first->bytes(), first.get());
  outbox.send(second->bytes(), second.get());
  outbox.send(first->bytes(), first.get());
  const auto frame = std::to_string(kFramePrefixBytes + outbox.encoder.encode(Heartbeat{1}, 1).size());
  const std::size_t lent = outbox.encoder.encode(Heartbeat{1}, 1).size() + kFrameReferenceBytes;
  CHECK(outbox.drain() ==
        Strings{"32+fd", std::to_string(40 + lent) + "+fd", std::to_string(40 + 2 * lent) + "+fd"});
  CHECK(outbox.frames() == Strings{"hello", "region 0 20480", "lent 20000 at 0 of 0", "region 1 20480",
                                   "lent 20000 at 0 of 1", "lent 20000 at 0 of 0"});

  // Byte by byte too, and never twice.
  const auto third = ShmRegion::make(20'000).value();
  outbox.send(third->bytes(), third.get());
  const auto calls = outbox.drain(1);
  CHECK(calls.size() == 40 + lent);
  CHECK(std::ranges::count(calls, "1+fd") == 1);
  CHECK(calls.front() == "1+fd");
}

TEST_CASE("queued bytes are headers and payloads that have not left, but not what is lent in place") {
  Outbox outbox;
  const auto region = ShmRegion::make(100'000).value();
  const std::size_t frame = outbox.encoder.encode(Heartbeat{1}, 1).size() + kFrameReferenceBytes;
  outbox.send(region->bytes(), region.get());
  CHECK(outbox.outbox.bytes() == 40 + frame);
  outbox.drain();
  CHECK(outbox.outbox.bytes() == 0);

  const Bytes ordinary(100'000);
  outbox.send(ordinary);
  CHECK(outbox.outbox.bytes() == 40 + frame + 100'000);
  CHECK(outbox.outbox.ready_bytes() == 40 + frame);
  outbox.outbox.consume(40 + frame - 1);
  CHECK(outbox.outbox.bytes() == 1 + 100'000);
  outbox.outbox.consume(1);
  CHECK(outbox.outbox.bytes() == 0);
}

TEST_CASE("regions that are gone are told once, and their numbers are used again") {
  Outbox outbox;
  auto first = ShmRegion::make(20'000).value();
  const auto second = ShmRegion::make(20'000).value();
  outbox.send(first->bytes(), first.get());
  outbox.send(second->bytes(), second.get());
  REQUIRE(outbox.watched.size() == 2);
  outbox.drain();
  outbox.frames();
  outbox.outbox.drop_region(*outbox.watched[0]);
  outbox.outbox.drop_region(*outbox.watched[0]);
  const auto third = ShmRegion::make(30'000).value();
  outbox.send(third->bytes(), third.get());
  outbox.drain();
  CHECK(outbox.frames() == Strings{"drop 0", "region 0 32768", "lent 30000 at 0 of 0"});
}

TEST_CASE("what is given back is told in as few records as can be") {
  Outbox outbox;
  const std::vector<std::uint64_t> tokens(kMaxTokensPerRecord + 1, 7);
  outbox.outbox.send_returned(tokens);
  CHECK(outbox.drain().size() == 1);
  CHECK(outbox.frames() == Strings{"returned 500", "returned 1"});
}

TEST_CASE("frames wait behind a full slab, in order, and lose nothing") {
  Outbox outbox;
  const Bytes payload(kMaxPayloadBytes / 16, std::byte{1});  // 4 MiB: all of the slab
  outbox.send(payload, nullptr, 1);
  outbox.send(payload, nullptr, 2);
  outbox.send(std::span(payload).first(10), nullptr, 3);
  outbox.drain();
  CHECK(outbox.frames() == Strings{"region 0 4194304", "lent 4194304 at 0 of 0 scarce"});
  CHECK(outbox.outbox.bytes() > payload.size());
  CHECK(outbox.outbox.ready_bytes() == 0);
  REQUIRE(outbox.outbox.give_back(outbox.tokens[0]));
  outbox.drain();
  CHECK(outbox.frames() == Strings{"lent 4194304 at 0 of 0 scarce", "inline 10"});
  CHECK(outbox.sent == std::vector<std::uint64_t>{1, 2, 3});
  CHECK(outbox.outbox.bytes() == 0);
}

TEST_CASE("more regions than a peer maps are treated as ordinary memory") {
  raise_descriptor_limit();
  Outbox outbox;
  std::vector<std::shared_ptr<ShmRegion>> regions;
  int lent = 0;
  int copied = 0;
  for (std::uint32_t i = 0; i < kMaxShmRegions; ++i) {
    auto region = ShmRegion::make(9000);
    if (!region) break;  // few descriptors
    regions.push_back(std::move(region).value());
    outbox.send(regions.back()->bytes(), regions.back().get());
    outbox.drain();
    for (const std::string& frame : outbox.frames()) {
      if (frame.find("scarce") != std::string::npos) ++copied;
      if (frame == "lent 9000 at 0 of " + std::to_string(i)) ++lent;
    }
  }
  if (regions.size() < kMaxShmRegions) {
    return testing::not_run("regions",
                            "this process may open " + std::to_string(regions.size()) + " descriptors");
  }
  CHECK(lent == kMaxShmRegions - 16);
  CHECK(copied == 16);
}

}  // namespace
}  // namespace bps
