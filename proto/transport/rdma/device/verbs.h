// What this transport needs of an RDMA device, and no more: connections with one queue pair each, memory that
// a device may read and write, and requests to it. There are two implementations: libibverbs with librdmacm
// (rdma/real/), and a fabric inside the process (rdma/fake/) on which tests run where there is no device, and
// which fails on demand.
//
// A link is one connection: rdma_cm's id with its events, a queue pair, a completion queue. Whoever destroys
// it may use the memory again as soon as the destructor has returned: neither the device nor the peer touches
// it then.
//
// Links and listeners: one thread at a time, the loop that they belong to. Devices and memory: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"
#include "proto/transport/stream/socket_address.h"

namespace bps {

struct VerbsLimits {
  std::uint32_t work_requests = 0;  // of one queue
  std::uint32_t completions = 0;    // of one completion queue
  std::uint8_t reads_out = 0;       // READs that one queue pair may have under way
  std::uint8_t reads_in = 0;        // READs of the peer that it serves at a time
};

// Registered as long as it lives.
class VerbsMemory {
 public:
  virtual ~VerbsMemory() = default;
  std::uint32_t local_key = 0;
  std::uint32_t remote_key = 0;
};

class VerbsDevice {
 public:
  virtual ~VerbsDevice() = default;
  virtual const std::string& name() const = 0;
  virtual const VerbsLimits& limits() const = 0;
  // A port of it, of those to be used, has a link.
  virtual bool is_active() = 0;
  // It was removed, and somebody has heard of it. It closes when all links and listeners on it are gone, and
  // registrations end with it. If it comes back it is another one.
  virtual bool is_lost() const = 0;
  // Pins it: takes long. The peer may read what is `readable`; the device may write all of it.
  virtual Result<std::unique_ptr<VerbsMemory>> register_memory(std::span<std::byte> memory,
                                                               bool readable) = 0;
};

// What happened to a link, apart from its requests.
struct VerbsNews {
  enum class Kind : std::uint8_t {
    resolved,      // of a connecting one: it has a device, make_queues() and connect() may follow
    established,   // private_data: what the accepting end said, on the connecting one
    refused,       // by the peer: private_data is what it said, empty if nobody listens there
    failed,        // it never came to be: see `why`
    disconnected,  // by the peer
    removed,       // the device
  };
  Kind kind = Kind::failed;
  std::string why;
  std::vector<std::byte> private_data;
};

struct QueueDepths {
  std::uint32_t requests = 0;
  std::uint32_t receives = 0;
};

struct WorkRequest {
  enum class Kind : std::uint8_t { send, read };
  Kind kind = Kind::send;
  bool signalled = false;  // its completion is told; that of all before it is thereby known, too
  bool in_line = false;    // the bytes are copied within the call
  std::uint64_t id = 0;
  std::byte* local = nullptr;
  std::uint32_t bytes = 0;
  std::uint32_t local_key = 0;
  std::uint64_t remote = 0;  // READs only, as is the key
  std::uint32_t remote_key = 0;
};

struct WorkCompletion {
  std::uint64_t id = 0;
  std::uint32_t bytes = 0;   // received
  std::uint32_t status = 0;  // 0: good. Else see describe_completion()
};

// As libibverbs numbers them.
inline constexpr std::uint32_t kCompletionFlushed = 5;
inline constexpr std::uint32_t kCompletionUnanswered = 12;
inline constexpr std::uint32_t kCompletionReceiverNotReady = 13;
inline constexpr std::uint32_t kCompletionStatusCount = 23;
std::string describe_completion(std::uint32_t status);

// `limit`: of the locked memory of this process; nothing: none. `out_of_memory`.
Error cannot_pin_memory(std::string_view device, std::size_t bytes, std::string_view why,
                        std::optional<std::uint64_t> limit);

class VerbsLink {
 public:
  virtual ~VerbsLink() = default;

  // Becomes readable when there are news, or completions after arm(). Stays the link's.
  virtual int descriptor() const = 0;

  // The next news, if there are any; quiets the descriptor when there are none.
  virtual std::optional<VerbsNews> next_news() = 0;

  // After `resolved`, or of a link that a listener gave.
  virtual VerbsDevice& device() = 0;
  virtual Status make_queues(const QueueDepths& depths) = 0;
  // The most bytes that a request may carry in line. After make_queues().
  virtual std::uint32_t inline_bytes() const = 0;

  // After make_queues(). Receives must be posted before.
  virtual Status connect(std::span<const std::byte> private_data) = 0;
  virtual Status accept(std::span<const std::byte> private_data) = 0;
  virtual void reject(std::span<const std::byte> private_data) = 0;

  // Once the connection is there. Until then a READ by the peer ends it, whatever keys the peer knows.
  virtual Status allow_reads() = 0;

  virtual Status post(const WorkRequest& request) = 0;
  virtual Status post_receive(std::uint64_t id, std::span<std::byte> memory, std::uint32_t local_key) = 0;
  // Fills `completions` from the front; returns how many.
  virtual std::size_t poll(std::span<WorkCompletion> completions) = 0;
  // The descriptor tells of the next completion; poll again afterwards for those that came just before.
  virtual Status arm() = 0;
};

// Somebody who connects: with `link`, accept() or reject() follows.
struct VerbsRequest {
  std::unique_ptr<VerbsLink> link;
  std::vector<std::byte> private_data;
  SocketAddress peer;
};

class VerbsListener {
 public:
  virtual ~VerbsListener() = default;
  virtual int descriptor() const = 0;
  virtual SocketAddress address() const = 0;  // with the real port
  // Nothing: there is none, and the descriptor is quiet. An error concerns one request, or the device.
  virtual Result<std::optional<VerbsRequest>> next_request() = 0;
  // With its device. Nothing comes any more.
  virtual bool is_removed() const = 0;
};

class Verbs {
 public:
  virtual ~Verbs() = default;
  // Those that can be used now. They live as long as this.
  virtual Result<std::vector<VerbsDevice*>> devices() = 0;
  virtual Result<std::unique_ptr<VerbsLink>> connect(const SocketAddress& address, int timeout_ms) = 0;
  virtual Result<std::unique_ptr<VerbsListener>> listen(const SocketAddress& address, int backlog) = 0;
};

// For those who can do without: is there a device with a link? Errors: `unreachable`, with those that have
// none; as devices().
Status check_active(Verbs& verbs);

}  // namespace bps
