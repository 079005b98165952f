#include "proto/transport/shm/shm_region.h"

#include <atomic>
#include <utility>

namespace bps {
namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

void RegionLife::subscribe(Subscriber subscriber) {
  // Posting and destroying tasks happens outside the lock.
  std::vector<Subscriber> forgotten;
  const bool ended = state_.update([&](State& state) {
    if (state.ended) return true;
    if (state.subscribers.size() >= state.prune_at) {
      std::vector<Subscriber> kept;
      for (Subscriber& old : state.subscribers)
        (old.is_alive() ? kept : forgotten).push_back(std::move(old));
      state.subscribers = std::move(kept);
      state.prune_at = 2 * state.subscribers.size() + 16;
    }
    state.subscribers.push_back(std::move(subscriber));
    return false;
  });
  if (ended) subscriber.mailbox->post(std::move(subscriber.gone));
}

void RegionLife::end() {
  std::vector<Subscriber> subscribers;
  state_.update([&](State& state) {
    state.ended = true;
    subscribers.swap(state.subscribers);
  });
  for (Subscriber& subscriber : subscribers)
    subscriber.mailbox->post(std::move(subscriber.gone));
}

ShmRegion::ShmRegion(std::size_t bytes, ShmMemory memory)
    : Region(memory.mapping.bytes().first(bytes)),
      memory_(std::move(memory.mapping)),
      file_(std::make_shared<const UniqueFd>(std::move(memory.fd))),
      life_(std::make_shared<RegionLife>(next_number())) {}

ShmRegion::~ShmRegion() { life_->end(); }

Result<std::shared_ptr<ShmRegion>> ShmRegion::make(std::size_t bytes) {
  auto memory = make_shm_memory(bytes);
  if (!memory) return std::move(memory).error();
  return std::make_shared<ShmRegion>(bytes, std::move(memory).value());
}

}  // namespace bps
