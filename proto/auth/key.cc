#include "proto/auth/key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>

#include "proto/auth/mac_input.h"
#include "proto/base/assert.h"

namespace bps {
namespace {

// We are a guest in the processes of others: OpenSSL reads no configuration file for us and leaves nothing to
// be done at exit().
void prepare_openssl() {
  static const int prepared =
      OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  BPS_ASSERT(prepared == 1);
}

Status fill_random(std::span<std::byte> bytes) {
  prepare_openssl();
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) == 1)
    return {};
  return make_error(ErrorCode::os, "the system gives no random bytes", "see that /dev/urandom can be read");
}

SharedKey derive(const Key& key, const MacInput& input) {
  Mac mac = compute_mac(key, input.bytes());
  auto derived = std::make_shared<const Key>(mac);
  wipe(mac);
  return derived;
}

}  // namespace

Key::Key(std::span<const std::byte> bytes) : size_(bytes.size()) {
  BPS_ASSERT(bytes.size() >= kMinBytes && bytes.size() <= kMaxBytes);
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Key::~Key() { wipe(bytes_); }

Result<SharedKey> Key::fresh() {
  std::array<std::byte, 32> bytes;
  if (Status status = fill_random(bytes); !status) return status.error();
  auto key = std::make_shared<const Key>(bytes);
  wipe(bytes);
  return SharedKey(std::move(key));
}

SharedKey derive_server_key(const Key& cluster) { return derive(cluster, MacInput("bps server key 1")); }

SharedKey derive_admin_key(const Key& cluster) { return derive(cluster, MacInput("bps admin key 1")); }

SharedKey derive_job_key(const Key& cluster, std::string_view job) {
  return derive(cluster, MacInput("bps job key 1").text(job));
}

SharedKey derive_ticket_key(const Key& cluster, const Ticket& ticket) {
  return derive(cluster, MacInput("bps ticket key 1")
                             .number(ticket.job_run.value)
                             .number(ticket.rank.value)
                             .number(ticket.incarnation.value));
}

Mac compute_mac(const Key& key, std::span<const std::byte> bytes) {
  prepare_openssl();
  Mac mac;
  unsigned size = 0;
  const auto* result = HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
                            reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                            reinterpret_cast<unsigned char*>(mac.data()), &size);
  BPS_ASSERT(result != nullptr && size == mac.size());
  return mac;
}

bool same_mac(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Result<Nonce> fresh_nonce() {
  Nonce nonce;
  if (Status status = fill_random(nonce); !status) return status.error();
  return nonce;
}

void wipe(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

}  // namespace bps
