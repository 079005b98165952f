#include "client/src/gpu/cuda_staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/src/gpu/collective_plan.h"

namespace bps {
namespace {

std::string partitions(PartitionId first, PartitionId last) {
  return first == last ? fmt::format("partition {}", first.value)
                       : fmt::format("partitions {} to {}", first.value, last.value);
}

}  // namespace

void CudaStaging::add(std::vector<CudaOrders::Staged>& answers, const std::optional<Error>& error) {
  std::stable_sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) {
    return a.piece.priority != b.piece.priority ? a.piece.priority > b.piece.priority
                                                : a.piece.partition < b.piece.partition;
  });
  for (auto first = answers.begin(); first != answers.end();) {
    const auto end = std::find_if(first, answers.end(), [&](const auto& other) {
      return other.piece.priority != first->piece.priority;
    });
    add(std::span(first, end), error);
    first = end;
  }
}

void CudaStaging::add(std::span<CudaOrders::Staged> answers, const std::optional<Error>& error) {
  std::string label;
  if (nvtx_.is_on()) label = partitions(answers.front().piece.partition, answers.back().piece.partition);
  CudaCopier::Job job;
  job.priority = answers.front().piece.priority;
  std::vector<CudaThen> thens;
  thens.reserve(answers.size());
  std::vector<LocalPiece> watched;
  for (CudaOrders::Staged& answer : answers) {
    const LocalPiece& piece = answer.piece;
    thens.push_back(std::move(answer.then));
    if (piece.out == nullptr) continue;  // the spread brings it
    append(job.copies,
           copy_of(piece, piece.out, piece.answer, 0, bytes_of(piece), memory_.holds(piece.home)));
    // With other ranks it is for the spread to say, which comes last.
    if (is_alone_ && piece.watch != nullptr) watched.push_back(piece);
  }
  if (error) {
    for (CudaThen& then : thens)
      reports_.tell(std::move(then), error);
    return;
  }
  const std::uint64_t number = next_++;
  staged_[number] = std::move(thens);
  const auto shown = std::make_shared<Nvtx::Range>(nvtx_.range("stage", label));
  job.then = [this, number, shown] {
    auto ended = staged_.extract(number);
    for (CudaThen& then : ended.mapped())
      reports_.tell(std::move(then));
  };
  if (!watched.empty()) {
    job.queued = [watched = std::move(watched)](const CudaEventPool::Event& event) {
      for (const LocalPiece& piece : watched)
        piece.watch->on_queued(bytes_of(piece), event);
    };
  }
  to_device_.add(std::move(job));
}

void CudaStaging::end_all(const std::optional<Error>& error) {
  for (auto& [number, thens] : std::exchange(staged_, {}))
    for (CudaThen& then : thens)
      reports_.tell(std::move(then), error);
}

}  // namespace bps
