// Frames on their way to a peer that shares memory: decides for each payload whether it travels in the
// stream, is lent where it lies, or is copied into the slab and lent from there; tells the peer of regions
// before they are used and after they are gone; and knows what is lent.
//
//   send() -> [waiting: the slab is full] -> queued: gather(), the system call, consume() -> [lent:
//   give_back()]
//
// Owner: a connection, on its loop. Not bounded (the caller of send looks at bytes()). Steady state allocates
// nothing. Regions that the peer may not map any more, or that do not fit its limits, are treated as ordinary
// memory; payloads for which the system gives no slab travel in the stream.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "proto/transport/shm/loan_table.h"
#include "proto/transport/shm/shm_options.h"
#include "proto/transport/shm/shm_region.h"
#include "proto/transport/shm/shm_slab.h"
#include "proto/transport/stream/ring_queue.h"
#include "proto/transport/stream/send_queue.h"
#include "proto/transport/transport.h"

namespace bps {

class ShmOutbox {
 public:
  // `options` outlives it.
  explicit ShmOutbox(const ShmOptions& options) : options_(&options), slab_(options.slab_bytes) {}

  // Asks that drop_region(life) be called, on the connection's loop, when a region that is lent is gone.
  using Watch = std::function<void(const std::shared_ptr<RegionLife>& life)>;
  void set_watch(Watch watch) { watch_ = std::move(watch); }
  // Everything of another connection's end that becomes this one; that outbox is empty then.
  void take_over(ShmOutbox& other);

  // With the descriptor of the control page.
  void send_hello(std::shared_ptr<const UniqueFd> control);
  // `frame`: prefix and header, encoded for a payload in the stream.
  void send(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie);
  void send_returned(std::span<const std::uint64_t> tokens);
  void drop_region(const RegionLife& life);

  // The next system call: pieces of the stream, and the descriptor that goes with them or -1.
  struct Batch {
    std::size_t pieces = 0;
    std::size_t bytes = 0;
    int descriptor = -1;
  };
  Batch gather(std::span<iovec> pieces) const;
  void consume(std::size_t bytes);

  // False if no such payload is out.
  bool give_back(std::uint64_t token);

  // The cookie of the next payload that is not needed any more.
  std::optional<std::uint64_t> take_sent();

  // Headers, and payloads in the stream or copied, that have not been handed over. What is lent in place
  // costs the connection nothing, and waits for nothing.
  std::size_t bytes() const { return queue_.bytes() + copied_bytes_ + waiting_.bytes; }
  // Of these, what a system call could hand over now.
  std::size_t ready_bytes() const { return queue_.bytes(); }
  // Somebody's memory, not ours, is lent.
  bool lends_in_place() const { return loans_.lent_in_place() > 0; }

 private:
  struct Waiting {
    std::size_t frame_bytes = 0;
    Payload payload;
    std::uint64_t cookie = 0;
  };
  struct WaitingFrames {
    RingQueue<Waiting> frames;
    std::vector<std::byte> headers;
    std::size_t headers_begin = 0;
    std::size_t bytes = 0;
  };
  struct Announced {
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
    std::shared_ptr<RegionLife> life;
  };
  struct CopiedFrame {
    std::uint64_t end = 0;  // position in the stream
    std::size_t bytes = 0;  // of the payload
  };
  struct Descriptor {
    std::uint64_t begin = 0;  // position of its record
    std::shared_ptr<const UniqueFd> fd;
  };

  bool dispatch(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie);
  bool lend_in_place(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie);
  void lend(std::span<const std::byte> frame, std::span<const std::byte> bytes, std::uint32_t region,
            std::uint64_t offset, const Loan& loan, std::uint64_t cookie);
  void wait(std::span<const std::byte> frame, const Payload& payload, std::uint64_t cookie);
  void send_waiting();
  std::optional<std::uint32_t> announce(ShmRegion& region, bool ours);
  void push_scratch(std::shared_ptr<const UniqueFd> descriptor = nullptr);

  const ShmOptions* options_;
  Watch watch_;
  SendQueue queue_;
  WaitingFrames waiting_;
  RingQueue<CopiedFrame> copied_frames_;  // queued
  std::size_t copied_bytes_ = 0;          // payloads of copied_frames_
  RingQueue<Descriptor> descriptors_;
  std::uint64_t pushed_ = 0;  // positions in the stream
  std::uint64_t sent_ = 0;
  std::vector<std::byte> scratch_;

  std::unordered_map<std::uint64_t, Announced> announced_;  // by the number of the region's life
  std::vector<bool> used_ids_;
  std::uint64_t announced_bytes_ = 0;
  ShmSlab slab_;
  LoanTable loans_;
  RingQueue<std::uint64_t> given_back_;  // cookies
};

}  // namespace bps
