// Tensors that this worker has declared and the scheduler has not answered yet.
//
// A declaration of many tensors is asked in pieces of legal size, one after the other. A scheduler that takes
// over is asked again what the one before has not answered.
//
// Owner: ClientEngine. Lives on: client loop. Failure: an error of on_declared() ends the job for this
// worker; a tensor that fails, here or at the scheduler, is the error of its declaration only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/src/engine/scheduler_link.h"
#include "client/src/lanes/data_plane.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class Declarations {
 public:
  using Done = std::function<void(Result<std::vector<TensorId>>)>;

  // Both outlive it.
  Declarations(DataPlane& data, SchedulerLink& link) : data_(data), link_(link) {}
  Declarations(const Declarations&) = delete;
  Declarations& operator=(const Declarations&) = delete;

  // At least one tensor.
  void declare(std::vector<TensorDeclaration> tensors, Done done, TimePoint now);
  // A declaration that has ended, if one has: the caller calls `done`.
  struct Ended {
    Done done;
    Result<std::vector<TensorId>> result;
  };
  Result<std::optional<Ended>> on_declared(Declared& declared);
  // The tensor has failed on this worker: tells the scheduler, once, which fails it on all.
  void tell_failed(TensorId tensor, const Error& error);
  // All ranks have dropped it.
  void forget(TensorId tensor) { failed_.erase(tensor); }
  // The scheduler is there again: the tensors that have failed here, and what it has not answered.
  void send_failed() const;
  void ask_again() const;
  // Calls all that are pending.
  void fail(const Error& error);

  bool empty() const { return pending_.empty(); }
  struct Open {
    std::uint64_t request = 0;
    TimePoint since;
  };
  std::vector<Open> requests() const;
  // The first tensor of one of requests().
  const std::string& name_of(std::uint64_t request) const {
    return pending_.at(request).tensors.front().name;
  }

 private:
  struct Pending {
    std::vector<TensorDeclaration> tensors;
    std::vector<TensorId> ids;
    std::size_t asked = 0;     // tensors sent
    std::size_t answered = 0;  // tensors answered
    TimePoint since;
    std::optional<Error> error;
    Done done;
  };

  void ask_next(std::uint64_t request, Pending& pending);

  DataPlane& data_;
  SchedulerLink& link_;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, Pending> pending_;
  std::map<TensorId, TensorFailed> failed_;  // what was told
};

}  // namespace bps
