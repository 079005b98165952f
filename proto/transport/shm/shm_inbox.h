// What the peer of a connection lends to this end: its regions as they are mapped here, its control word, and
// what is to be given back to it.
//
// Everything that comes from the peer is checked: what is wrong is an Error, and the connection ends with it.
// Payloads that were lent keep their region mapped and may outlive the inbox; then nobody is told that they
// are not needed any more. Bounds: limits.h for one connection, a budget for all of a transport.
//
// Owner: a connection, on its loop. Steady state allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "proto/transport/shm/shm_control.h"
#include "proto/transport/shm/shm_memory.h"
#include "proto/transport/shm/shm_records.h"
#include "proto/transport/transport.h"

namespace bps {

// How many regions of peers a process may still map, and how many bytes all of them may have. Any thread.
class ShmMappingBudget {
 public:
  explicit ShmMappingBudget(std::size_t regions) : regions_left_(static_cast<std::int64_t>(regions)) {}

  // For a region that is to be mapped.
  Status take(std::uint64_t bytes);
  void give_back(std::uint64_t bytes);
  // What is mapped stays.
  void limit_bytes(std::uint64_t bytes) { max_bytes_.store(bytes, std::memory_order_relaxed); }

  std::int64_t regions_left() const { return regions_left_.load(std::memory_order_relaxed); }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> regions_left_;
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> max_bytes_{UINT64_MAX};
};

class ShmInbox {
 public:
  // Told, once until returned() is called, that there is something to give back.
  class Owner {
   public:
    virtual void on_given_back() = 0;

   protected:
    ~Owner() = default;
  };

  ShmInbox(std::shared_ptr<ShmMappingBudget> budget, Owner& owner);
  ~ShmInbox() { close(); }
  ShmInbox(const ShmInbox&) = delete;
  ShmInbox& operator=(const ShmInbox&) = delete;

  // The same inbox for another owner; this one is closed.
  void move_to(ShmInbox& other);
  // Forgets the peer. What is lent stays mapped as long as it is held.
  void close();

  // A descriptor has come with the stream; the next record that needs one takes it.
  Status add_descriptor(UniqueFd fd);
  Status on_hello();
  Status on_region(const ShmRegionRecord& record);
  Status on_drop(const ShmDrop& record);
  // A payload of `bytes` > 0 bytes, as it is lent.
  Result<LentPayload> borrow(const LoanReference& reference, std::uint64_t bytes);

  bool has_hello() const { return link_ != nullptr; }
  // What was read so far of what is lent is whole. Only after the hello.
  bool intact() const;
  std::size_t mapped_regions() const { return mapped_regions_; }

  // Tokens of payloads that are not needed any more, in the order in which they were given back. Then clear.
  std::span<const std::uint64_t> returned() const;
  void clear_returned();

 private:
  struct Link;
  class MappedRegion;

  Result<UniqueFd> take_descriptor();

  const std::shared_ptr<ShmMappingBudget> budget_;
  Owner& owner_;
  std::vector<UniqueFd> descriptors_;
  std::shared_ptr<Link> link_;
  std::vector<std::shared_ptr<MappedRegion>> regions_;  // by id
  std::size_t mapped_regions_ = 0;
  std::uint64_t mapped_bytes_ = 0;
};

}  // namespace bps
