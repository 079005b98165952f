#include "tests/sim/sim_messages.h"

#include <fmt/format.h>

#include <algorithm>

namespace bps::sim {

SimMessages::SimMessages(Worker worker, std::uint64_t seed) : worker_(std::move(worker)), random_(seed) {
  const CallsPlan& plan = worker_.job.calls;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    std::vector<Rank> ranks = plan.groups[g];
    for (std::uint32_t r = 0; plan.groups[g].empty() && r < worker_.job.world_size(); ++r)
      ranks.emplace_back(r);
    if (std::find(ranks.begin(), ranks.end(), worker_.rank) == ranks.end()) continue;
    for (const Rank other : ranks) {
      for (std::uint64_t tag = 0; tag < plan.tags && other != worker_.rank; ++tag) {
        ways_.push_back(std::make_unique<Way>(Way{g, {worker_.rank, other, tag, 0}}));
        ways_.push_back(std::make_unique<Way>(Way{g, {other, worker_.rank, tag, 0}}));
      }
    }
  }
  random_.shuffle(ways_);
  unfinished_ = ways_.size() * plan.messages;
}

void SimMessages::start() {
  for (const auto& way : ways_)
    go_on(*way);
}

// The next one begins whether or not the last one is done.
void SimMessages::go_on(Way& way) {
  if (way.next.number == worker_.job.calls.messages) return;
  const Duration most = std::max<Duration>(worker_.think, std::chrono::milliseconds(2));
  worker_.loop.after(random_.between(Duration(0), most), [this, &way] { begin(way); });
}

void SimMessages::begin(Way& way) {
  const MessageKey key = way.next;
  ++way.next.number;
  const bool receives = key.to == worker_.rank;
  auto memory = std::make_shared<std::vector<std::byte>>(message_bytes(worker_.job, way.group, key));
  if (receives) std::fill(memory->begin(), memory->end(), std::byte{0xee});
  GroupRequest request;
  request.group = worker_.id_of(way.group);
  request.dtype = DType::u8;
  request.peer = receives ? key.from : key.to;
  request.receives = receives;
  request.tag = key.tag;
  request.request.call = RoundCall::message(key.from);
  request.request.out.bytes = *memory;
  const Status begun = worker_.begin(std::move(request), [this, &way, key, memory](const auto& result) {
    on_done(way, key, *memory, result);
  });
  if (!begun) on_done(way, key, *memory, begun.error());
  go_on(way);
}

void SimMessages::on_done(Way& way, const MessageKey& key, const std::vector<std::byte>& memory,
                          const Result<std::uint32_t>& result) {
  if (!result && result.error().code == ErrorCode::closed) return;
  if (!result) return worker_.give_up(result.error());
  if (memory != message_bytes(worker_.job, way.group, key)) {
    worker_.fail(fmt::format("message {} from rank {} to rank {} with tag {} in group {} is wrong",
                             key.number, key.from.value, key.to.value, key.tag, way.group));
  }
  if (--unfinished_ == 0) worker_.over();
}

}  // namespace bps::sim
