// A region of the shared-memory transport: memory that its connections lend to peers without a copy.
//
// Connections that have told their peer of a region want to know when it is gone, so that the peer unmaps it.
// Both ends of that live on different threads and either may go first, so what they share is a RegionLife.
// Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "proto/base/loop/asio_loop.h"
#include "proto/base/loop/completion.h"
#include "proto/base/memory/region.h"
#include "proto/transport/shm/shm_memory.h"

namespace bps {

class RegionLife {
 public:
  explicit RegionLife(std::uint64_t number) : number_(number) {}

  // Different for every region that this process ever makes.
  std::uint64_t number() const { return number_; }

  // `gone` is posted to the mailbox when the region is destroyed; at once if it is already. Says too whether
  // the subscriber is still there: those that are not are forgotten.
  struct Subscriber {
    std::shared_ptr<Mailbox> mailbox;
    std::function<bool()> is_alive;  // any thread
    Task gone;
  };
  void subscribe(Subscriber subscriber);

  // The region is destroyed.
  void end();

 private:
  struct State {
    std::vector<Subscriber> subscribers;
    std::size_t prune_at = 16;
    bool ended = false;
  };
  const std::uint64_t number_;
  Monitor<State> state_;
};

class ShmRegion final : public Region {
 public:
  static Result<std::shared_ptr<ShmRegion>> make(std::size_t bytes);
  ~ShmRegion() override;

  const std::shared_ptr<RegionLife>& life() const { return life_; }
  // Of the whole file, which a peer maps.
  std::size_t file_bytes() const { return memory_.bytes().size(); }
  const std::shared_ptr<const UniqueFd>& file() const { return file_; }
  // For a region that has been passed to all who will ever get it. Not thread-safe.
  void forget_file() { file_.reset(); }

  ShmRegion(std::size_t bytes, ShmMemory memory);

 private:
  ShmMapping memory_;
  std::shared_ptr<const UniqueFd> file_;
  std::shared_ptr<RegionLife> life_;
};

}  // namespace bps
