// What both sides of a handshake have seen when a proof is due, and the proofs: MACs over it, one for each
// direction, and the pad that hides a ticket on its way. PROTOCOL.md, section 5, says the same in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/auth/key.h"
#include "proto/auth/mac_input.h"

namespace bps {

struct Transcript {
  const Key& key;
  const Nonce& connecting;
  const Nonce& accepting;
  std::span<const std::byte> hello;  // its frame
  std::uint64_t version;             // in use

  Mac connecting_mac() const { return compute_mac(key, input("bps connecting side 1").bytes()); }
  // `welcome`: its frame, as it would be without a MAC.
  Mac accepting_mac(std::span<const std::byte> welcome) const {
    return compute_mac(key, input("bps accepting side 1").bytes(welcome).bytes());
  }
  Mac pad() const {
    return compute_mac(key, MacInput("bps ticket pad 1").bytes(connecting).bytes(accepting).bytes());
  }

 private:
  MacInput input(const char* label) const {
    MacInput input(label);
    input.number(version).bytes(connecting).bytes(accepting).bytes(hello);
    return input;
  }
};

}  // namespace bps
