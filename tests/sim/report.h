// What went wrong in a run. Everything that checks adds to it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace bps::sim {

class Report {
 public:
  void fail(std::string what) {
    if (failures_.size() < kMax) failures_.push_back(std::move(what));
  }
  bool ok() const { return failures_.empty(); }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  static constexpr std::size_t kMax = 20;
  std::vector<std::string> failures_;
};

}  // namespace bps::sim
