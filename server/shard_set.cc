#include "server/shard_set.h"

#include <algorithm>
#include <utility>

namespace bps {

void ShardSet::on_all(std::function<void(Shard&, std::uint32_t)> work, std::function<void()> done) {
  until_all_have(
      [work = std::move(work)](Shard& shard, std::uint32_t index, const std::function<void()>& finished) {
        work(shard, index);
        finished();
      },
      std::move(done));
}

void ShardSet::until_all_have(LongWork work, std::function<void()> done) {
  struct Call {
    LongWork work;
    std::function<void()> done;  // only touched on the main loop
    std::size_t left = 0;
  };
  if (shards_.empty()) {  // it has never started
    return main_.post([done = std::move(done), alive = alive_] {
      if (*alive) done();
    });
  }
  const auto call = std::make_shared<Call>(Call{std::move(work), std::move(done), shards_.size()});
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->loop().post([call, i, shard = shards_[i], alive = alive_, &main = main_] {
      call->work(*shard, i, [call, alive, &main] {
        main.post([call, alive] {
          if (*alive && --call->left == 0) call->done();
        });
      });
    });
  }
}

void ShardSet::trim(std::uint64_t bytes, std::function<void()> done) { trim_from(0, bytes, std::move(done)); }

void ShardSet::trim_from(std::uint32_t shard, std::uint64_t bytes, std::function<void()> done) {
  if (bytes == 0 || shard == shards_.size()) return done();
  shards_[shard]->loop().post(
      [this, shard, bytes, done = std::move(done), alive = alive_, of = shards_[shard], &main = main_] {
        const std::uint64_t given = of->trim(bytes);
        main.post([this, shard, bytes, done, alive, given] {
          if (*alive) trim_from(shard + 1, bytes - std::min(bytes, given), done);
        });
      });
}

}  // namespace bps
