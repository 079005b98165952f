#include "server/tensor_admission.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/config/units.h"

namespace bps {
namespace {

constexpr Duration kRoomIsGood = std::chrono::milliseconds(100);

}  // namespace

void TensorAdmission::handle(Message message) {
  deferred_.push_back(std::move(message));
  run_deferred();
}

void TensorAdmission::run_deferred() {
  for (auto next = deferred_.begin(); next != deferred_.end() && !waits_for_freed_;) {
    const auto* const drop_tensors = std::get_if<DropTensors>(&*next);
    const JobRun job =
        drop_tensors != nullptr ? drop_tensors->job_run : std::get<DeclareSlices>(*next).job_run;
    if (granting_.contains(job)) {
      ++next;
      continue;
    }
    if (drop_tensors != nullptr) {
      drop(*drop_tensors);
    } else if (!declare(std::get<DeclareSlices>(*next))) {
      waits_for_freed_ = true;
      return;
    }
    next = deferred_.erase(next);
  }
}

// The scheduler asks again for what waits for memory. What it drops it asks again if it wants an answer.
void TensorAdmission::taken_up() {
  std::erase_if(deferred_, [](const Message& m) { return std::holds_alternative<DeclareSlices>(m); });
  for (Message& message : deferred_)
    std::get<DropTensors>(message).request = 0;
  waits_for_freed_ = false;
  run_deferred();
}

void TensorAdmission::end(const JobEnded& ended) {
  const std::uint64_t bytes = ledger_.end(ended.job_run);
  if (const auto found = granting_.find(ended.job_run); found != granting_.end()) found->second.ended = true;
  const auto shared = std::make_shared<const JobEnded>(ended);
  shards_.until_all_have(
      [shared](Shard& shard, std::uint32_t, std::function<void()> finished) {
        shard.end_job(shared->job_run, shared->error, std::move(finished));
      },
      [this, bytes] { on_freed(bytes); });
  waits_for_freed_ = false;  // a declaration of this job waits in vain
  run_deferred();
}

void TensorAdmission::on_freed(std::uint64_t bytes) {
  ledger_.freed(bytes);
  owner_.on_reserved();
  waits_for_freed_ = false;
  run_deferred();
}

// What the system has left, and what has been taken of it already: at least so much, and without asking
// shards. What this server takes changes nothing in the sum, so it stays good for a while.
const MemoryRoom& TensorAdmission::estimate_room() {
  const bool is_fresh = room_.has_value() && loop_.now() - room_seen_ < kRoomIsGood;
  if (is_fresh) return *room_;
  std::uint64_t taken = ledger_.own_bytes();
  for (const auto& [run, granting] : granting_)
    taken -= std::min(taken, granting.own_bytes);
  room_ = headroom_ ? MemoryRoom::of(taken, headroom_()) : MemoryRoom{};
  room_seen_ = loop_.now();
  return *room_;
}

// False: it waits for memory that is being freed.
bool TensorAdmission::declare(const DeclareSlices& declare) {
  JobLedger::Declaration declaration = ledger_.declare(declare, estimate_room());
  if (declaration.for_room) {
    measure_room(declare);
    return true;
  }
  if (declaration.verdict == JobLedger::Verdict::waits) return false;
  settle(asked(declare.request), std::move(declaration), 0);
  return true;
}

// Pools keep what they may need again, and have memory of jobs that have just ended.
void TensorAdmission::measure_room(const DeclareSlices& declare) {
  granting_[declare.job_run] = {};
  const auto held = std::make_shared<std::vector<Held>>(shards_.size());
  shards_.on_all(
      [held](Shard& shard, std::uint32_t index) {
        (*held)[index] = {shard.bytes_in_use() + shard.bytes_idle(), shard.bytes_to_grant()};
      },
      [this, held, declare, grants = grants_, request = asked(declare.request)] {
        const bool has_ended = granting_.extract(declare.job_run).mapped().ended;
        Held sum;
        for (const Held& of_shard : *held) {
          sum.taken += of_shard.taken;
          sum.to_grant += of_shard.to_grant;
        }
        // Those that shards did not know when they were asked.
        for (const auto& [run, granting] : granting_)
          sum.to_grant += granting.number > grants ? granting.own_bytes : 0;
        if (has_ended) {
          owner_.acknowledge(request, {});  // nobody needs it any more
        } else {
          declare_in(sum, declare, request);
        }
        run_deferred();
      });
}

void TensorAdmission::declare_in(const Held& held, const DeclareSlices& declare, Request request) {
  const MemoryBound left = headroom_();
  JobLedger::Declaration declaration = ledger_.declare(declare, MemoryRoom::of(held.taken, left));
  if (declaration.verdict == JobLedger::Verdict::waits) {
    if (request.connection != owner_.connection_number()) return;  // the scheduler asks again
    deferred_.push_front(declare);
    waits_for_freed_ = true;
    return;
  }
  const std::uint64_t needed = MemoryRoom::kKeptFree + declaration.own_bytes + held.to_grant;
  settle(request, std::move(declaration), needed - std::min(needed, left.bytes));
}

void TensorAdmission::settle(Request request, JobLedger::Declaration declaration,
                             std::uint64_t to_give_back) {
  if (declaration.verdict == JobLedger::Verdict::refused) {
    log_.info("declaration refused: {}", declaration.error.message);
    return owner_.acknowledge(request, declaration.error);
  }
  owner_.on_reserved();
  const DeclareSlices& added = declaration.added;
  if (added.moved && !added.tensors.empty()) {
    log_.info("job '{}', epoch {}: partitions of {} tensors move here", ledger_.name_of_job(added.job_run),
              added.epoch.value, added.tensors.size());
  }
  granting_[added.job_run] = Granting{declaration.own_bytes};
  if (to_give_back == 0) return grant(request, std::move(declaration));
  shards_.trim(to_give_back, [this, request, declaration = std::move(declaration)] {
    const auto granting = granting_.find(declaration.added.job_run);
    if (!granting->second.ended) return grant(request, declaration);
    // The same run may be open again: its shards must not get what the ledger has forgotten.
    granting_.erase(granting);
    owner_.acknowledge(request, {});
    run_deferred();
  });
}

void TensorAdmission::grant(Request request, JobLedger::Declaration declaration) {
  const DeclareSlices& added = declaration.added;
  granting_.at(added.job_run).number = ++grants_;
  const auto slices = std::make_shared<std::vector<DeclareSlices>>(
      shards_.size(), DeclareSlices{added.request, added.job_run, added.epoch, added.moved, {}});
  for (const TensorSlices& tensor : added.tensors) {
    std::vector<TensorSlices*> parts(shards_.size());
    for (const PartitionSlice& slice : tensor.partitions) {
      TensorSlices*& part = parts[slice.shard];
      if (part == nullptr) part = &(*slices)[slice.shard].tensors.emplace_back(without_partitions(tensor));
      part->partitions.push_back(slice);
    }
  }
  struct Result {
    Status status;
    std::uint64_t replaced = 0;
  };
  const auto results = std::make_shared<std::vector<Result>>(shards_.size());
  shards_.until_all_have(
      [slices, results](Shard& shard, std::uint32_t index, const std::function<void()>& finished) {
        shard.declare((*slices)[index],
                      [results, index, finished](const Status& status, std::uint64_t replaced) {
                        (*results)[index] = {status, replaced};
                        finished();
                      });
      },
      [this, request, results, declaration = std::move(declaration)] {
        Status status;
        std::uint64_t replaced = 0;
        for (const Result& result : *results) {
          if (status) status = result.status;
          replaced += result.replaced;
        }
        end_grant(request, declaration, status, replaced);
      });
}

void TensorAdmission::end_grant(Request request, const JobLedger::Declaration& declaration,
                                const Status& status, std::uint64_t replaced) {
  const JobRun job = declaration.added.job_run;
  const bool has_ended = granting_.extract(job).mapped().ended;
  if (status || has_ended) {
    if (!has_ended) {
      ledger_.granted(job, replaced);
      await_replaced(job, replaced);
    }
    owner_.on_reserved();
    owner_.acknowledge(request, {});
    return run_deferred();
  }
  const std::vector<TensorSlices>& tensors = declaration.added.tensors;
  const Error error =
      make_error(status.error().code,
                 fmt::format("{} tensors of job '{}' from '{}' on need {}; {}", tensors.size(),
                             ledger_.name_of_job(job), tensors.empty() ? "" : tensors.front().name,
                             rounded(ByteSize{declaration.bytes}), status.error().message),
                 "free memory on the server's machine, raise its limit, or start servers on other machines");
  log_.info("declaration refused: {}", error.message);
  drop(ledger_.take_back(declaration, replaced));
  await_replaced(job, replaced);
  owner_.acknowledge(request, error);
  run_deferred();
}

// Whatever waits for memory does not wait for this: rounds have it, perhaps until a drop that is behind.
void TensorAdmission::await_replaced(JobRun job, std::uint64_t bytes) {
  if (bytes == 0) return;
  shards_.until_all_have(
      [job](Shard& shard, std::uint32_t, std::function<void()> finished) {
        shard.when_replaced_are_gone(job, std::move(finished));
      },
      [this, bytes] {
        ledger_.replaced_gone(bytes);
        owner_.on_reserved();
        waits_for_freed_ = false;
        run_deferred();
      });
}

void TensorAdmission::drop(const DropTensors& drop) {
  const std::uint64_t bytes = ledger_.drop(drop);
  const auto shared = std::make_shared<const DropTensors>(drop);
  // Workers give back what they were lent when they hear of it: that is after the answer.
  shards_.on_all([shared](Shard& shard, std::uint32_t) { shard.drop(*shared); },
                 [this, bytes, request = asked(drop.request)] {
                   on_freed(bytes);
                   if (request.number != 0) owner_.acknowledge(request, {});
                 });
}

}  // namespace bps
