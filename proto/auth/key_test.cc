#include "proto/auth/key.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "proto/auth/auth_harness.h"

namespace bps {
namespace {

using testing::hex;
using testing::key_of;

}  // namespace

// RFC 4231, test cases 1 (its key is 20 bytes of 0b) and 3 (20 bytes of aa, 50 of dd).
TEST_CASE("key: a MAC is HMAC-SHA256") {
  const auto hi = testing::bytes_of("Hi There");
  CHECK(hex(compute_mac(*key_of(20, 0x0b), hi)) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  const std::vector<std::byte> dd(50, std::byte{0xdd});
  CHECK(hex(compute_mac(*key_of(20, 0xaa), dd)) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
}

// Made with another implementation (Python's hmac) from the description in PROTOCOL.md.
TEST_CASE("key: what is derived is what PROTOCOL.md says") {
  const SharedKey cluster = key_of(32, 0x11);
  CHECK(hex(derive_server_key(*cluster)->bytes()) ==
        "ea48b293879b0513ff3ce6a7f43a25ba2aa56a33dcf28dc70fcd6e52765e2207");
  CHECK(hex(derive_job_key(*cluster, "resnet50")->bytes()) ==
        "eeab8ce1211617c7a4e1a66360721c5ea01040653d219a02d644eba4bbdffb3c");
  CHECK(hex(derive_ticket_key(*cluster, {JobRun{0xb2}, Rank{2}, Incarnation{0xa1}})->bytes()) ==
        "516090e5eaee0c07e3a5bb5fb522444220fbd04340e26a57f832af0193c8c0b5");
}

TEST_CASE("key: every field of a ticket, every name and every cluster gives a key of its own") {
  const SharedKey cluster = key_of(32, 0x11);
  std::vector<std::string> all;
  for (const SharedKey& key :
       {derive_server_key(*cluster), derive_server_key(*key_of(32, 0x12)), derive_job_key(*cluster, "a"),
        derive_job_key(*cluster, "b"), derive_job_key(*cluster, std::string("a\0", 2)),
        derive_ticket_key(*cluster, {JobRun{1}, Rank{2}, Incarnation{3}}),
        derive_ticket_key(*cluster, {JobRun{4}, Rank{2}, Incarnation{3}}),
        derive_ticket_key(*cluster, {JobRun{1}, Rank{4}, Incarnation{3}}),
        derive_ticket_key(*cluster, {JobRun{1}, Rank{2}, Incarnation{4}}),
        derive_ticket_key(*derive_job_key(*cluster, "a"), {JobRun{1}, Rank{2}, Incarnation{3}})}) {
    all.push_back(hex(key->bytes()));
  }
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST_CASE("key: fresh keys and nonces differ") {
  const auto a = Key::fresh();
  const auto b = Key::fresh();
  REQUIRE((a.ok() && b.ok()));
  CHECK((*a)->bytes().size() == 32);
  CHECK(hex((*a)->bytes()) != hex((*b)->bytes()));
  CHECK(*fresh_nonce() != *fresh_nonce());
}

TEST_CASE("key: its memory is wiped when it goes") {
  alignas(Key) std::byte memory[sizeof(Key)];
  const std::vector<std::byte> secret(32, std::byte{0x5c});
  auto* key = new (memory) Key(secret);
  std::byte* const where = const_cast<std::byte*>(key->bytes().data());
  REQUIRE(std::count(where, where + 32, std::byte{0x5c}) == 32);
  key->~Key();
  CHECK(std::count(memory, memory + sizeof memory, std::byte{0x5c}) == 0);
}

TEST_CASE("key: MACs that differ in any bit are not the same") {
  Mac mac{};
  CHECK(same_mac(mac, Mac{}));
  for (std::size_t i = 0; i < mac.size(); ++i) {
    Mac other = mac;
    other[i] ^= std::byte{1};
    CHECK_FALSE(same_mac(mac, other));
  }
}

}  // namespace bps
