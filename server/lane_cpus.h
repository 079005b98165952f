// Where a shard runs: on the CPU that all its lanes come from, if there is one.
//
// The problem: on a host whose workers and servers share few CPUs, bytes that a worker sends on one CPU and a
// server reads on another go through the caches of both, and where those are far apart that takes longer than
// the rest. A worker whose threads are bound says so in its hello (decision 0022).
//
// Owner: a Shard. Lives on: shard loop. Failure: a shard that may not run where it should runs where it
// likes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace bps {

class LaneCpus {
 public:
  // Binds the calling thread to that CPU; without one, to none.
  using Bind = std::function<void(std::optional<std::uint32_t> cpu)>;

  // `bind` may be empty: then nothing is bound.
  explicit LaneCpus(Bind bind) : bind_(std::move(bind)) {}

  void enter(std::optional<std::uint32_t> cpu) {
    ++lanes_[cpu];
    settle();
  }
  void leave(std::optional<std::uint32_t> cpu) {
    const auto found = lanes_.find(cpu);
    if (--found->second == 0) lanes_.erase(found);
    settle();
  }

 private:
  void settle() {
    const auto wanted = lanes_.size() == 1 ? lanes_.begin()->first : std::nullopt;
    // While there are no lanes it stays: those that come next are likely the same.
    if (lanes_.empty() || wanted == bound_) return;
    bound_ = wanted;
    if (bind_) bind_(wanted);
  }

  const Bind bind_;
  std::map<std::optional<std::uint32_t>, std::size_t> lanes_;  // how many name it
  std::optional<std::uint32_t> bound_;
};

// Binds the calling thread to a CPU that is one of these, and to all of these when it is another or none: a
// worker names the CPU, but where this process may run is for who has started it to say. None: not known, and
// nothing is bound.
LaneCpus::Bind bind_among(std::vector<std::uint32_t> cpus);

}  // namespace bps
