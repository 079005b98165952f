// Secrets, and what is derived from them.
//
//   cluster key            of scheduler and servers, from --key-file
//     server key           registers servers with the scheduler
//     admin key            asks the scheduler about everything, and drains servers
//     job key              of the workers of one job, whatever its run
//     ticket key           of one life of one rank of one run: opens its lanes
//
// Each is HMAC-SHA256 of the cluster key over a label of its own, so that none of them says anything about
// another. A key is shared and never copied; its memory is wiped when the last holder lets go of it. It has
// no text form on purpose: nothing can log it.
//
// Lives on: any thread; a key never changes.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class Key;
using SharedKey = std::shared_ptr<const Key>;  // null: there is none

class Key {
 public:
  static constexpr std::size_t kMinBytes = 16;
  static constexpr std::size_t kMaxBytes = 64;

  // kMinBytes to kMaxBytes; the caller wipes its own copy.
  explicit Key(std::span<const std::byte> bytes);
  ~Key();
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;

  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

  // 32 random bytes. An error where the system has no randomness to give.
  static Result<SharedKey> fresh();

 private:
  std::array<std::byte, kMaxBytes> bytes_{};
  std::size_t size_ = 0;
};

// What a ticket key is good for.
struct Ticket {
  JobRun job_run;
  Rank rank;
  Incarnation incarnation;
};

SharedKey derive_server_key(const Key& cluster);
SharedKey derive_admin_key(const Key& cluster);
SharedKey derive_job_key(const Key& cluster, std::string_view job);
SharedKey derive_ticket_key(const Key& cluster, const Ticket& ticket);

// HMAC-SHA256.
Mac compute_mac(const Key& key, std::span<const std::byte> bytes);

// In time that does not depend on where they differ.
bool same_mac(const Mac& a, const Mac& b);

// Random bytes that were never used before. An error as in Key::fresh().
Result<Nonce> fresh_nonce();

// Overwrites what the compiler may think nobody reads any more.
void wipe(std::span<std::byte> bytes);

}  // namespace bps
