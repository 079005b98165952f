// Who are you, and do you have the key? Both sides of the handshake, without connections and clocks.
//
//   connecting side                accepting side
//   hello with a nonce      ---->
//                           <----  Challenge: another nonce
//   Proof: a MAC            ---->                             checked before anything is said or done
//                           <----  Welcome with a MAC          checked before anything is believed
//
// Each MAC covers which side it comes from, the version, both nonces and the whole hello; the accepting
// side's the Welcome too. Both nonces are fresh, so that nothing recorded is good for anything again. What a
// hello asks for says which key is meant: a server's registration, an administrator's, the job's, or the
// ticket of one rank of one run.
//
// A side that has a key never goes on without the other's proof, and one that has none says so to a peer that
// has one. Without keys on both sides a hello is answered by Welcome at once, as if this file did not exist.
//
// Owner: a connection that is not through its handshake. Lives on: its loop. Failure: an Error, after which
// the connection is to be closed; its text may be told to the peer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/auth/key.h"
#include "proto/auth/transcript.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

// The side that opened the connection.
class ConnectingHandshake {
 public:
  // `key`: the server key, the admin key, the job's or the ticket's; null: none. `hello` gets a fresh nonce
  // and is then to be sent as it is. Begins anew.
  Status begin(SharedKey key, Message& hello);
  // The same with a nonce that somebody else has chosen, for tests.
  void begin(SharedKey key, Message& hello, const Nonce& nonce);

  // At most one Challenge is answered.
  Result<Proof> answer(const Challenge& challenge);
  // `who`: "the scheduler", for the error.
  Status check(const Welcome& welcome, std::string_view who) const;
  // After check(): the ticket in the Welcome of a new worker; null without a key.
  Result<SharedKey> ticket(const Welcome& welcome) const;

 private:
  Transcript transcript() const;

  SharedKey key_;
  std::vector<std::byte> hello_;
  Nonce nonce_{};
  std::optional<Nonce> challenge_;
};

// The side that was connected to.
class AcceptingHandshake {
 public:
  // `cluster`: null: no key. `name`: "scheduler" or "server", for errors.
  AcceptingHandshake(SharedKey cluster, const char* name) : cluster_(std::move(cluster)), name_(name) {}
  // Of a worker that takes the other ranks of its host, who have the job's key: nothing but HelloLocal.
  static AcceptingHandshake of_job(SharedKey key, const char* name) {
    AcceptingHandshake handshake(std::move(key), name);
    handshake.is_of_job_ = true;
    return handshake;
  }

  struct Step {
    bool admitted = false;
    Message message;  // admitted: the first message, to be acted on; else the answer, to be sent
  };
  // The peer's next message, until it is admitted. `nonce`: somebody else has chosen it, for tests.
  Result<Step> take(Message&& message, const std::optional<Nonce>& nonce = {});

  // Who the peer says it is, for the log; empty before its hello. Not yet proven.
  std::string claim() const;

  // Adds the proof to the Welcome of an admitted peer, and the ticket of a new worker. Without a key:
  // nothing.
  void seal(Welcome& welcome) const;

 private:
  Status check_hello(const Message& message) const;
  Step challenge(Message&& hello, const Nonce& nonce);
  Result<Step> check_proof(const Message& message);
  Transcript transcript() const;

  const SharedKey cluster_;
  const char* const name_;
  bool is_of_job_ = false;
  SharedKey key_;  // what the hello must prove
  std::optional<Message> hello_;
  std::vector<std::byte> hello_bytes_;
  std::uint16_t version_ = 0;  // in use with the peer
  Nonce nonce_{};              // the peer's
  Nonce challenge_{};          // ours
};

}  // namespace bps
