// Both sides of the handshake against a peer that has not the key, and says what it likes in any order:
// hellos, nonces, proofs and Welcomes. Nobody is let in, nobody is believed.
#include <array>
#include <memory>

#include "proto/auth/handshake.h"
#include "proto/base/assert.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

SharedKey key() {
  static const SharedKey shared =
      std::make_shared<const Key>(std::array<std::byte, 32>{std::byte{0x5e}, std::byte{0x17}});
  return shared;
}

Nonce secret(Input& input) {
  Nonce bytes{};
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(input.below(256));
  return bytes;
}

Message peer_message(Input& input) {
  switch (input.below(8)) {
    case 0: {
      HelloWorker hello;
      hello.job = input.text(input.below(20));
      hello.incarnation = Incarnation{input.below(3)};
      hello.rank = Rank{input.below(5)};
      if (input.flag()) hello.nonce = secret(input);
      return hello;
    }
    case 1: {
      HelloServer hello;
      if (input.flag()) hello.nonce = secret(input);
      return hello;
    }
    case 2: {
      HelloLane hello;
      hello.job_run = JobRun{input.below(3)};
      if (input.flag()) hello.nonce = secret(input);
      return hello;
    }
    case 3: return Challenge{secret(input)};
    case 4: return Proof{secret(input)};
    case 5: {
      Welcome welcome;
      if (input.flag()) welcome.mac = secret(input);
      if (input.flag()) welcome.ticket = secret(input);
      return welcome;
    }
    case 6: return Heartbeat{input.below(9)};
    default: return Refused{ErrorCode::unauthorised, input.text(input.below(9)), ""};
  }
}

void accept(Input& input) {
  AcceptingHandshake handshake(key(), "server");
  while (!input.empty()) {
    const auto step = handshake.take(peer_message(input), secret(input));
    (void)handshake.claim();
    if (!step) {
      BPS_ASSERT(!step.error().message.empty());
      return;  // the connection is closed now
    }
    BPS_ASSERT(!step->admitted);
    BPS_ASSERT(std::holds_alternative<Challenge>(step->message));
  }
}

void connect(Input& input) {
  ConnectingHandshake handshake;
  Message hello = HelloServer{};
  if (input.flag()) hello = HelloWorker{};
  handshake.begin(key(), hello, secret(input));
  while (!input.empty()) {
    const Message message = peer_message(input);
    if (const auto* challenge = std::get_if<Challenge>(&message)) {
      if (!handshake.answer(*challenge)) return;
    } else if (const auto* welcome = std::get_if<Welcome>(&message)) {
      BPS_ASSERT(!handshake.check(*welcome, "it").ok());
    }
  }
}

}  // namespace

std::vector<Bytes> seeds() { return random_seeds(60, 300); }

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  input.flag() ? bps::fuzz::accept(input) : bps::fuzz::connect(input);
  return 0;
}
