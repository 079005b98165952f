// What a worker says back of its lanes and tensors when its control connection is taken up again (decision
// 0013).
#include <utility>

#include "client/src/lanes/data_plane.h"

namespace bps {

namespace {

// Declare and Declared of tensors that are known already, in pieces.
class TensorReport {
 public:
  explicit TensorReport(const std::function<void(const Message&)>& say) : say_(say) {}

  void add(const TensorState& tensor, JobRun run) {
    const std::size_t partitions = tensor.partitions().size();
    const bool is_full = declare_.tensors.size() == kMaxTensorsPerDeclare ||
                         partitions_ + partitions > kMaxPartitionsPerDeclare;
    if (is_full) flush();
    partitions_ += partitions;
    declare_.tensors.push_back(tensor.declaration());
    declared_.tensors.push_back(tensor.declared());
    if (tensor.poisoned()) failed_.push_back({run, tensor.id(), tensor.poison()});
  }

  void flush() {
    if (declare_.tensors.empty()) return;
    say_(std::exchange(declare_, {}));
    say_(std::exchange(declared_, {}));
    for (TensorFailed& failed : std::exchange(failed_, {}))
      say_(std::move(failed));
    partitions_ = 0;
  }

 private:
  const std::function<void(const Message&)>& say_;
  Declare declare_;
  Declared declared_;
  std::vector<TensorFailed> failed_;
  std::size_t partitions_ = 0;
};

}  // namespace

void DataPlane::report(const std::function<void(const Message&)>& say) {
  job_.may_lack_moves();
  say(job_.now());
  TensorReport tensors(say);
  for (const auto& tensor : tensors_.all()) {
    if (tensor != nullptr) tensors.add(*tensor, job_.run());
  }
  tensors.flush();
}

}  // namespace bps
