#include "proto/auth/handshake.h"

#include <fmt/core.h>

#include <algorithm>

#include "proto/auth/transcript.h"
#include "proto/base/assert.h"
#include "proto/wire/codec.h"

namespace bps {
namespace {

constexpr const char* kSameKey =
    "give all programs of the cluster one key file (--key-file, BPS_KEY_FILE), or workers a job key made "
    "from it";

Error unauthorised(std::string what, const char* advice = kSameKey) {
  return make_error(ErrorCode::unauthorised, std::move(what), advice);
}

// One message has one encoding, so both sides have the same bytes without keeping those of the wire.
std::vector<std::byte> encode(const Message& message, std::uint16_t version) {
  Encoder encoder;
  const auto bytes = encoder.encode(message, 0, version);
  return {bytes.begin(), bytes.end()};
}

bool is_hello(const Message& message) {
  return std::holds_alternative<HelloWorker>(message) || std::holds_alternative<HelloServer>(message) ||
         std::holds_alternative<HelloLane>(message) || std::holds_alternative<HelloAdmin>(message) ||
         std::holds_alternative<HelloLocal>(message);
}

// Null: the message is no hello.
std::optional<Nonce>* nonce_of(Message& message) {
  if (auto* worker = std::get_if<HelloWorker>(&message)) return &worker->nonce;
  if (auto* server = std::get_if<HelloServer>(&message)) return &server->nonce;
  if (auto* lane = std::get_if<HelloLane>(&message)) return &lane->nonce;
  if (auto* admin = std::get_if<HelloAdmin>(&message)) return &admin->nonce;
  if (auto* local = std::get_if<HelloLocal>(&message)) return &local->nonce;
  return nullptr;
}

bool has_nonce(const Message& message) {
  const auto* nonce = nonce_of(const_cast<Message&>(message));
  return nonce != nullptr && nonce->has_value();
}

SharedKey key_for(const Key& cluster, const Message& hello) {
  if (const auto* worker = std::get_if<HelloWorker>(&hello)) return derive_job_key(cluster, worker->job);
  if (const auto* lane = std::get_if<HelloLane>(&hello)) {
    return derive_ticket_key(cluster, {lane->job_run, lane->rank, lane->incarnation});
  }
  if (std::holds_alternative<HelloAdmin>(hello)) return derive_admin_key(cluster);
  return derive_server_key(cluster);
}

// What its MAC covers: all but that MAC.
std::vector<std::byte> encode_unsealed(Welcome welcome, std::uint16_t version) {
  welcome.mac.reset();
  return encode(welcome, version);
}

Mac exclusive_or(Mac a, const Mac& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] ^= b[i];
  return a;
}

}  // namespace

// ---- connecting ----

Status ConnectingHandshake::begin(SharedKey key, Message& hello) {
  if (key == nullptr) {
    *this = {};
    return {};
  }
  const Result<Nonce> nonce = fresh_nonce();
  if (!nonce) return nonce.error();
  begin(std::move(key), hello, *nonce);
  return {};
}

void ConnectingHandshake::begin(SharedKey key, Message& hello, const Nonce& nonce) {
  BPS_ASSERT(is_hello(hello));
  *nonce_of(hello) = nonce;
  key_ = std::move(key);
  nonce_ = nonce;
  hello_ = encode(hello, kProtocolVersion);
  challenge_.reset();
}

// Who connects speaks one version.
Transcript ConnectingHandshake::transcript() const {
  return {*key_, nonce_, *challenge_, hello_, kProtocolVersion};
}

Result<Proof> ConnectingHandshake::answer(const Challenge& challenge) {
  if (key_ == nullptr) return unauthorised("it asks for a key, and there is none here");
  if (challenge_) return make_error(ErrorCode::protocol, "it asks for a second proof");
  challenge_ = challenge.nonce;
  return Proof{transcript().connecting_mac()};
}

Status ConnectingHandshake::check(const Welcome& welcome, std::string_view who) const {
  if (key_ == nullptr) return {};
  if (challenge_ && welcome.mac) {
    const Mac expected = transcript().accepting_mac(encode_unsealed(welcome, kProtocolVersion));
    if (same_mac(expected, *welcome.mac)) return {};
  }
  return unauthorised(fmt::format("{} does not prove that it has the key", who));
}

Result<SharedKey> ConnectingHandshake::ticket(const Welcome& welcome) const {
  if (key_ == nullptr) return SharedKey();
  BPS_ASSERT(challenge_);
  if (!welcome.ticket) return make_error(ErrorCode::protocol, "a Welcome without a ticket");
  Mac ticket = exclusive_or(*welcome.ticket, transcript().pad());
  auto key = std::make_shared<const Key>(ticket);
  wipe(ticket);
  return SharedKey(std::move(key));
}

// ---- accepting ----

Result<AcceptingHandshake::Step> AcceptingHandshake::take(Message&& message,
                                                          const std::optional<Nonce>& nonce) {
  if (hello_) return check_proof(message);
  if (Status status = check_hello(message); !status) return status.error();
  if (cluster_ == nullptr) return Step{true, std::move(message)};
  if (nonce) return challenge(std::move(message), *nonce);
  const Result<Nonce> fresh = fresh_nonce();
  if (!fresh) return fresh.error();
  return challenge(std::move(message), *fresh);
}

Status AcceptingHandshake::check_hello(const Message& message) const {
  if (cluster_ == nullptr) {
    if (!has_nonce(message)) return {};
    return unauthorised(fmt::format("this {} has no key, and a peer that has one cannot trust it", name_),
                        "start it with --key-file, or take the key away from the others (BPS_KEY_FILE)");
  }
  if (!is_hello(message) || std::holds_alternative<HelloLocal>(message) != is_of_job_) {
    return make_error(ErrorCode::protocol, fmt::format("{} before the handshake", name_of(message)));
  }
  if (has_nonce(message)) return {};
  return unauthorised(fmt::format("this {} lets nobody in without a key", name_));
}

AcceptingHandshake::Step AcceptingHandshake::challenge(Message&& hello, const Nonce& nonce) {
  hello_ = std::move(hello);
  version_ = version_in_use(*capabilities_of(*hello_));
  hello_bytes_ = encode(*hello_, version_);
  nonce_ = **nonce_of(*hello_);
  challenge_ = nonce;
  key_ = is_of_job_ ? cluster_ : key_for(*cluster_, *hello_);
  return Step{false, Challenge{challenge_}};
}

Transcript AcceptingHandshake::transcript() const {
  return {*key_, nonce_, challenge_, hello_bytes_, version_};
}

Result<AcceptingHandshake::Step> AcceptingHandshake::check_proof(const Message& message) {
  const auto* proof = std::get_if<Proof>(&message);
  if (proof == nullptr) {
    return make_error(ErrorCode::protocol, fmt::format("{} instead of a Proof", name_of(message)));
  }
  if (!same_mac(proof->mac, transcript().connecting_mac())) {
    const bool lane = std::holds_alternative<HelloLane>(*hello_);
    return unauthorised(lane ? "the ticket is not good for this lane" : "the key is not the right one");
  }
  return Step{true, *hello_};
}

std::string AcceptingHandshake::claim() const {
  if (!hello_) return {};
  if (const auto* worker = std::get_if<HelloWorker>(&*hello_)) {
    return fmt::format("rank {} of job '{}'", worker->rank.value, worker->job);
  }
  if (const auto* lane = std::get_if<HelloLane>(&*hello_)) {
    return fmt::format("rank {} of run {:016x}", lane->rank.value, lane->job_run.value);
  }
  if (const auto* local = std::get_if<HelloLocal>(&*hello_)) {
    return fmt::format("rank {} of run {:016x}", local->rank.value, local->job_run.value);
  }
  return std::holds_alternative<HelloAdmin>(*hello_) ? "an administrator" : "a server";
}

void AcceptingHandshake::seal(Welcome& welcome) const {
  if (key_ == nullptr) return;
  const auto* worker = std::get_if<HelloWorker>(&*hello_);
  // Who comes back has its ticket; and only the run that it joined here was given to it by us.
  if (worker != nullptr && worker->incarnation.value == 0) {
    const SharedKey ticket =
        derive_ticket_key(*cluster_, {welcome.job_run, worker->rank, welcome.incarnation});
    Mac bytes;
    std::copy(ticket->bytes().begin(), ticket->bytes().end(), bytes.begin());
    welcome.ticket = exclusive_or(bytes, transcript().pad());
    wipe(bytes);
  }
  welcome.mac = transcript().accepting_mac(encode_unsealed(welcome, version_));
}

}  // namespace bps
