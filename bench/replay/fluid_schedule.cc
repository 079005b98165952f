#include "bench/replay/fluid_schedule.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace bps::bench {
namespace {

// The network: serves one layer at a time, which is as good as any mixture of them.
class Link {
 public:
  Link(std::size_t layers, FluidOrder order)
      : order_(order), remaining_(layers, 0), done_(layers, 0), now_(0) {}

  // Layer i arrives at time `release`; layers arrive from the last to the first.
  void arrive(std::size_t i, double release, double work) {
    serve_until(release);
    now_ = std::max(now_, release);
    remaining_[i] = work;
    if (work > 0) {
      waiting_.insert(i);
    } else {
      done_[i] = release;
    }
  }

  std::vector<double> finish() {
    while (!waiting_.empty())
      complete(next());
    return std::move(done_);
  }

 private:
  std::size_t next() const { return order_ == FluidOrder::priority ? *waiting_.begin() : *waiting_.rbegin(); }

  void complete(std::size_t i) {
    now_ += remaining_[i];
    done_[i] = now_;
    waiting_.erase(i);
  }

  void serve_until(double time) {
    while (!waiting_.empty()) {
      const std::size_t i = next();
      if (now_ + remaining_[i] > time) {
        remaining_[i] -= time - now_;
        now_ = time;
        return;
      }
      complete(i);
    }
  }

  FluidOrder order_;
  std::vector<double> remaining_, done_;
  std::set<std::size_t> waiting_;
  double now_;
};

}  // namespace

FluidSchedule fluid_schedule(std::span<const FluidLayer> layers, FluidOrder order) {
  Link link(layers.size(), order);
  double now = 0;
  for (std::size_t i = layers.size(); i-- > 0;) {
    now += layers[i].backward_s;
    link.arrive(i, now, layers[i].transfer_s);
  }
  FluidSchedule schedule;
  schedule.transferred_s = link.finish();
  for (std::size_t i = 0; i < layers.size(); ++i)
    now = std::max(now, schedule.transferred_s[i]) + layers[i].forward_s;
  schedule.iteration_s = now;
  return schedule;
}

}  // namespace bps::bench
