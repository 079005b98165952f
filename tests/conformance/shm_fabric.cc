#include "tests/conformance/shm_fabric.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <vector>

#include "proto/transport/shm/shm_control.h"
#include "proto/transport/shm/shm_records.h"
#include "proto/transport/shm/shm_socket.h"
#include "proto/wire/frame.h"

namespace bps::conformance {
namespace {

using Bytes = std::vector<std::byte>;

// Turns the stream of a connection that shares memory into the one that a connection over TCP would have.
class ShmRawPeer final : public SocketPeer {
 public:
  explicit ShmRawPeer(const Endpoint& endpoint) : SocketPeer(connect_silently(endpoint)) {
    REQUIRE(control_.open().ok());
    Bytes hello;
    append_hello(hello);
    iovec piece{hello.data(), hello.size()};
    const auto control = control_.take_file();
    REQUIRE(send_pieces(fd_.get(), {&piece, 1}, control->get()) == static_cast<ssize_t>(hello.size()));
  }

  // The other side is told of a reset when something that it has sent is never read: its hello.
  void reset() override {
    REQUIRE(arrived_.empty());
    fd_ = UniqueFd();
  }

  ~ShmRawPeer() override {
    if (fd_) receive_some(1024 * 1024);
  }

  Bytes receive(std::size_t limit) override {
    if (plain_.size() < limit) receive_some(limit);
    const std::size_t count = std::min(limit, plain_.size());
    Bytes result(plain_.begin(), plain_.begin() + static_cast<std::ptrdiff_t>(count));
    plain_.erase(plain_.begin(), plain_.begin() + static_cast<std::ptrdiff_t>(count));
    return result;
  }

 private:
  void receive_some(std::size_t limit) {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    REQUIRE(::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) == 0);
    Bytes bytes(limit);
    iovec piece{bytes.data(), bytes.size()};
    Received received;
    receive_pieces(fd_.get(), {&piece, 1}, received);
    REQUIRE(::fcntl(fd_.get(), F_SETFL, flags) == 0);
    for (std::size_t i = 0; i < received.count; ++i)
      descriptors_.push_back(std::move(received.descriptors[i]));
    if (received.bytes <= 0) return;
    arrived_.insert(arrived_.end(), bytes.begin(), bytes.begin() + received.bytes);
    while (take_frame()) {}
  }

  bool take_frame() {
    if (arrived_.size() < kFramePrefixBytes) return false;
    const auto prefix = read_prefix(std::span(arrived_).first<kFramePrefixBytes>(), kMaxControlHeaderBytes,
                                    kFrameLent | kFrameRecord);
    REQUIRE(prefix.ok());
    std::size_t whole = kFramePrefixBytes + prefix->header_bytes;
    if (prefix->flags == 0) whole += prefix->payload_bytes;
    if (arrived_.size() < whole) return false;
    const auto header = std::span(arrived_).subspan(kFramePrefixBytes, prefix->header_bytes);
    if (prefix->flags == 0) {
      plain_.insert(plain_.end(), arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(whole));
    } else if (prefix->flags == kFrameLent) {
      take_lent(header, prefix->payload_bytes);
    } else {
      take_record(header);
    }
    arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(whole));
    return true;
  }

  void take_lent(std::span<const std::byte> header, std::uint64_t payload_bytes) {
    const auto reference = decode_reference(header.last<kFrameReferenceBytes>());
    REQUIRE(reference.ok());
    const auto message = header.first(header.size() - kFrameReferenceBytes);
    std::array<std::byte, kFramePrefixBytes> prefix;
    write_prefix(prefix, message, payload_bytes);
    plain_.insert(plain_.end(), prefix.begin(), prefix.end());
    plain_.insert(plain_.end(), message.begin(), message.end());
    const auto memory = regions_.at(reference->memory).bytes().subspan(reference->where, payload_bytes);
    plain_.insert(plain_.end(), memory.begin(), memory.end());
    Bytes returned;
    append_returned(returned, {&reference->token, 1});
    send(returned);
  }

  void take_record(std::span<const std::byte> bytes) {
    const auto record = decode_record(bytes);
    REQUIRE(record.ok());
    if (const auto* region = std::get_if<ShmRegionRecord>(&*record)) {
      auto mapping = map_peer_memory(descriptors_.at(0).get(), region->bytes);
      REQUIRE(mapping.ok());
      regions_[region->region] = std::move(mapping).value();
    } else if (const auto* drop = std::get_if<ShmDrop>(&*record)) {
      REQUIRE(regions_.erase(drop->region) == 1);
      return;
    } else if (!std::holds_alternative<ShmHello>(*record)) {
      return;
    }
    descriptors_.erase(descriptors_.begin());
  }

  ShmControl control_;
  Bytes arrived_;  // the stream as it is, up to the first frame that is not whole
  Bytes plain_;    // as it would be over TCP
  std::vector<UniqueFd> descriptors_;
  std::map<std::uint32_t, ShmMapping> regions_;
};

}  // namespace

std::string unused_name() {
  static int count = 0;
  return "bps-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

UniqueFd connect_silently(const Endpoint& endpoint) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = abstract_address(endpoint.host);
  REQUIRE(address.ok());
  REQUIRE(::connect(fd.get(), address->get(), address->length) == 0);
  return fd;
}

Endpoint ShmFabric::any_endpoint() { return {unused_name(), 0}; }
Endpoint ShmFabric::dead_endpoint() { return {unused_name(), 0}; }

std::unique_ptr<RawPeer> ShmFabric::raw_connect(const Endpoint& endpoint) {
  return std::make_unique<ShmRawPeer>(endpoint);
}

std::unique_ptr<Fabric> make_fabric() { return std::make_unique<ShmFabric>(); }

}  // namespace bps::conformance
