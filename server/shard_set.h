// The shards of a server, each on a loop of its own: runs work on all of them, and goes on here when it is
// done.
//
// Owner: the Server. Lives on: main loop, where what follows is posted to, unless this is gone by then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "server/shard/shard.h"

namespace bps {

class ShardSet {
 public:
  explicit ShardSet(EventLoop& main) : main_(main) {}
  ~ShardSet() { *alive_ = false; }
  ShardSet(const ShardSet&) = delete;
  ShardSet& operator=(const ShardSet&) = delete;

  void add(std::shared_ptr<Shard> shard) { shards_.push_back(std::move(shard)); }
  std::size_t size() const { return shards_.size(); }
  const std::vector<std::shared_ptr<Shard>>& all() const { return shards_; }

  // Runs `work` on every shard's loop, then `done` here.
  void on_all(std::function<void(Shard&, std::uint32_t index)> work, std::function<void()> done);
  // The same, for work that is over on a shard when it has called `finished` there.
  using LongWork = std::function<void(Shard&, std::uint32_t index, std::function<void()> finished)>;
  void until_all_have(LongWork work, std::function<void()> done);
  // Shards give so many bytes back to the system, one after the other, as far as they have them. No more:
  // rounds that are under way would fill the same memory with pages again.
  void trim(std::uint64_t bytes, std::function<void()> done);

 private:
  void trim_from(std::uint32_t shard, std::uint64_t bytes, std::function<void()> done);

  EventLoop& main_;
  std::vector<std::shared_ptr<Shard>> shards_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for tasks that come back
};

}  // namespace bps
