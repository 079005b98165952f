// Peers that share memory but break its rules: they lose their connection, with an error that says what was
// wrong; nothing is read that is not there, nothing leaks, nobody else notices.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "proto/transport/shm/shm_memory.h"
#include "proto/transport/shm/shm_records.h"
#include "proto/transport/shm/shm_socket.h"
#include "proto/wire/codec.h"
#include "tests/conformance/shm_fabric.h"
#include "tests/conformance/support.h"

namespace bps::conformance {
namespace {

using Bytes = std::vector<std::byte>;
using Catch::Contains;

constexpr std::uint64_t kBytes = 64 * 1024;  // of regions
constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

// Memory that may lack something.
UniqueFd memory(std::size_t bytes, int seals = kAllSeals, bool allocated = true) {
  UniqueFd fd(::memfd_create("crooked", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd);
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (allocated) REQUIRE(::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0);
  if (seals != 0) REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

Bytes hello_frame() {
  Bytes frame;
  append_hello(frame);
  return frame;
}

Bytes region_frame(std::uint32_t region, std::uint64_t bytes) {
  Bytes frame;
  append_region(frame, {region, bytes});
  return frame;
}

Bytes returned_frame(std::uint64_t token) {
  Bytes frame;
  append_returned(frame, {&token, 1});
  return frame;
}

Bytes lent_frame(const LoanReference& reference, std::uint64_t payload_bytes, std::uint64_t number = 1) {
  Encoder encoder;
  Bytes frame;
  append_lent(frame, encoder.encode(push_pull(number), payload_bytes), payload_bytes, reference);
  return frame;
}

Bytes plain_frame(const Message& message) {
  Encoder encoder;
  const auto encoded = encoder.encode(message, 0);
  return {encoded.begin(), encoded.end()};
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

// A listener with one crooked peer, which has said hello if `polite`, and a healthy connection beside it.
struct Crook {
  explicit Crook(bool polite = true) {
    auto made = fabric.transport().listen(fabric.loop(), fabric.any_endpoint(), [this](auto accepted) {
      (ends[0].connection ? ends[1] : ends[0]).attach(std::move(accepted));
    });
    REQUIRE(made.ok());
    listener = std::move(made).value();
    healthy.attach(fabric.transport().connect(fabric.loop(), listener->endpoint(), kLimit));
    REQUIRE(fabric.run_until([&] { return ends[0].connection != nullptr; }, kLimit));
    fd = connect_silently(listener->endpoint());
    REQUIRE(fabric.run_until([&] { return ends[1].connection != nullptr; }, kLimit));
    if (polite) say(hello_frame(), memory(4096).get());
  }
  End& victim() { return ends[1]; }

  void say(Bytes bytes, int descriptor = -1) {
    iovec piece{bytes.data(), bytes.size()};
    REQUIRE(send_pieces(fd.get(), {&piece, 1}, descriptor) == static_cast<ssize_t>(bytes.size()));
  }

  void expect_alive() {
    healthy.send(heartbeat(1));
    REQUIRE(fabric.run_until([&] { return ends[0].messages == 1; }, kLimit));
    CHECK(victim().closed == 0);
  }

  // The message of the protocol error that the peer has cost its connection; it hears that message too.
  std::string refusal() {
    REQUIRE(fabric.run_until([&] { return victim().closed == 1; }, kLimit));
    CHECK(victim().end.code == ErrorCode::protocol);
    CHECK_THAT(victim().end.message, Contains(victim().connection->peer()));
    healthy.send(heartbeat(1));
    REQUIRE(fabric.run_until([&] { return ends[0].messages == 1; }, kLimit));
    return victim().end.message;
  }

  // A machine that stands still for some seconds is not what these are about.
  static ShmOptions patient() {
    ShmOptions options;
    options.handshake_timeout = kLimit;
    return options;
  }

  ShmFabric fabric{patient()};
  End ends[2];
  End healthy;
  std::unique_ptr<Listener> listener;
  UniqueFd fd;
};

TEST_CASE("who does not begin with a hello, or says it wrongly, is refused") {
  const auto refusal = [](const Bytes& bytes, const UniqueFd& descriptor = {}) {
    Crook crook(/*polite=*/false);
    crook.say(bytes, descriptor.get());
    return crook.refusal();
  };
  CHECK_THAT(refusal(plain_frame(heartbeat(1))), Contains("before the hello"));
  CHECK_THAT(refusal(region_frame(0, 4096), memory(4096)), Contains("before the hello"));
  CHECK_THAT(refusal(returned_frame(1)), Contains("before the hello"));
  CHECK_THAT(refusal(lent_frame({}, 4096)), Contains("before the hello"));
  CHECK_THAT(refusal(hello_frame()), Contains("without its descriptor"));
  CHECK_THAT(refusal(hello_frame(), memory(4096, 0)), Contains("seals"));
  CHECK_THAT(refusal(hello_frame(), UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC))),
             Contains("no seals"));
  Crook twice;
  twice.say(hello_frame(), memory(4096).get());
  CHECK_THAT(twice.refusal(), Contains("second hello"));
}

TEST_CASE("memory that could be taken away, is not all there, or is none, is never mapped") {
  const auto refusal = [](const UniqueFd& descriptor, std::uint64_t bytes = kBytes,
                          std::uint32_t region = 0) {
    Crook crook;
    crook.say(region_frame(region, bytes), descriptor.get());
    return crook.refusal();
  };
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL})
    CHECK_THAT(refusal(memory(kBytes, kAllSeals & ~missing)), Contains("seals"));
  CHECK_THAT(refusal(memory(kBytes, kAllSeals, /*allocated=*/false)), Contains("only 0 are allocated"));
  CHECK_THAT(refusal(memory(kBytes / 2)), Contains("32768 bytes, 65536 were announced"));
  CHECK_THAT(refusal(memory(kBytes), 0), Contains("0 bytes"));
  CHECK_THAT(refusal(memory(kBytes), 1000), Contains("1000 bytes"));
  CHECK_THAT(refusal(memory(kBytes), std::uint64_t{1} << 63), Contains("more than"));
  CHECK_THAT(refusal(memory(kBytes), UINT64_MAX), Contains("more than"));
  CHECK_THAT(refusal(memory(kBytes), kBytes, kMaxShmRegions), Contains("at most 1024"));
  CHECK_THAT(refusal(memory(kBytes), kBytes, UINT32_MAX), Contains("4294967295"));
  CHECK_THAT(refusal(UniqueFd()), Contains("without its descriptor"));
  CHECK_THAT(refusal(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))), Contains("no seals"));
  CHECK_THAT(refusal(UniqueFd(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600))), Contains("seals"));
  CHECK_THAT(refusal(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))), Contains("no seals"));
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd read_end(ends[0]);
  CHECK_THAT(refusal(UniqueFd(ends[1])), Contains("no seals"));

  Crook good;
  good.say(region_frame(3, kBytes), memory(2 * kBytes).get());  // larger than it says is fine
  good.expect_alive();
  good.say(region_frame(3, kBytes), memory(kBytes).get());
  CHECK_THAT(good.refusal(), Contains("two regions") && Contains("number 3"));
  for (const std::uint32_t none : {0u, 2u, 5u, UINT32_MAX}) {
    Crook drops;
    drops.say(region_frame(2, kBytes), memory(kBytes).get());
    Bytes drop;
    append_drop(drop, {2});
    if (none == 2) drops.say(drop);
    drop.clear();
    append_drop(drop, {none});
    drops.say(drop);
    CHECK_THAT(drops.refusal(), Contains("region " + std::to_string(none)) && Contains("is none"));
  }
}

TEST_CASE("descriptors that nobody needs cost the connection, and do not stay open") {
  const std::size_t before = open_descriptors();
  {
    Crook crook;
    const UniqueFd some = memory(4096);
    for (std::uint64_t i = 0; i < 5; ++i)
      crook.say(plain_frame(heartbeat(i)), some.get());
    CHECK_THAT(crook.refusal(), Contains("4 descriptors"));
    CHECK(crook.victim().messages == 4);
  }
  {
    Crook crook;
    const UniqueFd some = memory(4096);
    Bytes frame = plain_frame(heartbeat(1));
    iovec piece{frame.data(), frame.size()};
    constexpr int kMany = 100;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMany * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(kMany * sizeof(int));
    for (int i = 0; i < kMany; ++i) {
      const int fd = some.get();
      std::memcpy(CMSG_DATA(header) + static_cast<std::size_t>(i) * sizeof fd, &fd, sizeof fd);
    }
    REQUIRE(::sendmsg(crook.fd.get(), &message, 0) == static_cast<ssize_t>(frame.size()));
    CHECK_THAT(crook.refusal(), Contains("descriptors"));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("references outside of what is mapped, and returns of what is not lent, are refused") {
  const auto refusal = [](const LoanReference& reference, std::uint64_t bytes) {
    Crook crook;
    crook.say(region_frame(1, kBytes), memory(kBytes).get());
    crook.say(lent_frame(reference, bytes));
    return crook.refusal();
  };
  CHECK_THAT(refusal({1, 0, 0, false}, 100), Contains("region 0") && Contains("is none"));
  CHECK_THAT(refusal({1, 0, 2, false}, 100), Contains("region 2") && Contains("is none"));
  CHECK_THAT(refusal({1, 0, UINT32_MAX, false}, 100), Contains("region 4294967295"));
  CHECK_THAT(refusal({1, 0, 1, false}, kBytes + 1), Contains("65537 bytes at 0"));
  CHECK_THAT(refusal({1, kBytes - 99, 1, false}, 100), Contains("100 bytes at 65437"));
  CHECK_THAT(refusal({1, kBytes, 1, false}, 1), Contains("outside"));
  CHECK_THAT(refusal({1, UINT64_MAX, 1, false}, 1), Contains("outside"));
  CHECK_THAT(refusal({1, UINT64_MAX - 50, 1, false}, 100), Contains("outside"));

  Crook last;
  last.say(region_frame(1, kBytes), memory(kBytes).get());
  last.say(lent_frame({1, kBytes - 100, 1, false}, 100));
  REQUIRE(last.fabric.run_until([&] { return last.victim().messages == 1; }, kLimit));
  CHECK((last.victim().received[0].payload == Bytes(100)));

  Crook never;
  never.say(returned_frame(1));
  CHECK_THAT(never.refusal(), Contains("not lent"));

  // What really is lent can be given back once, under its own name.
  for (const std::uint64_t change :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    Crook crook;
    const auto region = crook.fabric.transport().allocate(kBytes).value();
    crook.victim().send(push_pull(1), {region->bytes(), region.get()}, 9);
    Bytes stream;
    std::size_t lent_at = 0;
    REQUIRE(crook.fabric.run_until(
        [&] {
          std::array<std::byte, 4096> some;
          const ssize_t got = ::recv(crook.fd.get(), some.data(), some.size(), MSG_DONTWAIT);
          if (got > 0) stream.insert(stream.end(), some.begin(), some.begin() + got);
          lent_at = kFramePrefixBytes + 8 + kFramePrefixBytes + 16;  // hello and region
          return stream.size() > lent_at + kFramePrefixBytes;
        },
        kLimit));
    const auto reference =
        decode_reference(std::span(stream).subspan(lent_at).last<kFrameReferenceBytes>()).value();
    crook.say(returned_frame(reference.token ^ change));
    if (change == 0) {
      REQUIRE(crook.fabric.run_until([&] { return crook.victim().sent.size() == 1; }, kLimit));
      crook.say(returned_frame(reference.token));
    }
    CHECK_THAT(crook.refusal(), Contains("not lent"));
  }
}

TEST_CASE("every bit of a reference may be wrong: the payload lies inside the mapping or is refused") {
  const Bytes good = lent_frame({77, 4096, 1, true}, 1000);
  const std::size_t reference_at = good.size() - kFrameReferenceBytes;
  int delivered = 0;
  for (std::size_t bit = 0; bit < 8 * kFrameReferenceBytes; ++bit) {
    INFO("bit " << bit);
    Crook crook;
    const std::byte* begin = nullptr;
    crook.victim().at_lent = [&](Message&, LentPayload& payload) {
      begin = payload.bytes().data();
      std::size_t sum = 0;
      for (const std::byte byte : payload.bytes())
        sum += static_cast<std::size_t>(byte);
      return sum == 0;
    };
    crook.say(region_frame(1, kBytes), memory(kBytes).get());
    Bytes bad = good;
    bad[reference_at + bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    {
      Crook damaged;  // as it is, the CRC finds it
      damaged.say(bad);
      CHECK_THAT(damaged.refusal(), Contains("CRC"));
    }
    write_prefix(std::span(bad).first<kFramePrefixBytes>(), std::span(bad).subspan(kFramePrefixBytes), 1000,
                 kFrameLent);
    crook.say(bad);
    REQUIRE(crook.fabric.run_until([&] { return crook.victim().closed == 1 || begin != nullptr; }, kLimit));
    if (begin != nullptr) {
      ++delivered;
      crook.expect_alive();
    } else {
      crook.refusal();
    }
  }
  // Tokens are the sender's own, 16 bits of the offset stay inside, and one flag is known.
  CHECK(delivered == 64 + 16 + 1);
}

TEST_CASE("random bytes and frames of shared memory never do more than close the connection") {
  std::mt19937 random(5);
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 300; ++i) {
    INFO("case " << i);
    Crook crook;
    const UniqueFd fd = memory(64 * 1024);
    Bytes bytes = region_frame(random() % 3, 64 * 1024);
    const auto add = [&](const Bytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); };
    for (int frames = 0; frames < 6; ++frames) {
      switch (random() % 5) {
        case 0:
          add(lent_frame({random(), random() % 80'000, static_cast<std::uint32_t>(random() % 4), true},
                         1 + random() % 9000));
          break;
        case 1: add(returned_frame(random() % 3)); break;
        case 2: add(region_frame(random() % 4, (random() % 20) * 4096)); break;
        case 3: add(plain_frame(heartbeat(1))); break;
        default: append_drop(bytes, {static_cast<std::uint32_t>(random() % 4)});
      }
    }
    if (i % 2 == 0) bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    add(Bytes(2 * kMaxHelloHeaderBytes, std::byte{1}));  // ends in rubbish, whatever came before
    crook.say(bytes, random() % 8 == 0 ? -1 : fd.get());
    CHECK_FALSE(crook.refusal().empty());
  }
  CHECK(open_descriptors() == before);
}

}  // namespace
}  // namespace bps::conformance
