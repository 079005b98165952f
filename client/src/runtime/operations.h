// The operations that a program starts on its tensors, from the API threads to the loop and back.
//
// The problem: programs start thousands of small operations in a row, and what each costs (a task, a wake-up,
// an allocation that one thread makes and another frees) soon is more than what it moves. Here a thread
// claims the tensor, leaves a note in one queue, and wakes the loop only for the first note of a burst; the
// loop finds all it has to know of an operation under way in the tensor. Threads that wait are woken when the
// loop has worked through what had come: who is woken for one operation finds the next ones done, and does
// not sleep for each. In a series of lone ones (lone_series.h) the threads of the program run the loop
// themselves.
//
// A drop is the last operation of its tensor. When it has ended nothing is kept of the tensor but that there
// was one.
//
// Owner: Client; outlives what it posts to the loop. Any thread, except what says otherwise. Limits: one
// operation per tensor, so never more notes than tensors, and as many releases. Failure: end_left() ends
// each operation that the loop has not begun or has not ended. The error is `closed`. If the GPU has not come
// to rest, operations that have begun in its memory end with the GPU's error. Starting an operation without
// memory throws, and changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/src/engine/client_engine.h"
#include "client/src/runtime/lone_series.h"
#include "client/src/runtime/operation_record.h"
#include "client/src/tensors/request.h"
#include "proto/base/loop/completion.h"

namespace bps {

Error closed_error();  // of whatever is begun after close

class Operations {
 public:
  // `callbacks`: of all operations.
  Operations(EventLoop& loop, std::shared_ptr<CallbackThread> callbacks);
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  // Known already: nothing happens.
  void add(TensorId tensor, TensorShape shape);
  // Error: not declared here, or dropped.
  Result<std::shared_ptr<const TensorShape>> find(TensorId tensor) const;

  // Of a tensor that is known, and checked. Its `done` and `watch` are set here.
  Result<std::shared_ptr<OperationRecord>> start(Request&& request);
  // A call on a group, which has been checked. Its `done` and `ticket` are set here: it is described by its
  // record.
  Result<std::shared_ptr<OperationRecord>> start_call(GroupRequest&& request);
  // False: the client is closed. In the order of these the engine counts its groups.
  bool add_group(GroupSpec spec);
  Result<std::shared_ptr<OperationRecord>> drop_group(GroupId group);
  // The record's weight is the rank that joins last.
  Result<std::shared_ptr<OperationRecord>> join_group(GroupId group);
  static std::uint64_t ticket_of(const OperationRecord& record) {
    return reinterpret_cast<std::uintptr_t>(&record);
  }

  // Of a tensor that is known and has nothing under way. The tensor takes no operation any more, and the
  // record ends when it has ended on all ranks.
  Result<std::shared_ptr<OperationRecord>> drop(TensorId tensor);
  // What was read in place is no longer needed: the tensor may have its next operation. The last holder of a
  // view lets go of it on the loop.
  void release(TensorId tensor, std::shared_ptr<const AnswerView> view);

  // Of all of them.
  LoneSeries& series() { return series_; }

  // Loop. Before the first operation; the engine outlives them all.
  void attach(ClientEngine& engine) { engine_ = &engine; }
  // Loop. Begins all that has been started before, in order; comes by itself, too.
  void begin_noted();

  // Loop. Nothing can be started any more, and the engine may go.
  void stop();
  // Loop, after stop(), when the engine is gone. Ends what is left. `gpu`: whether it has come to rest; if
  // not, what has begun in its memory ends with that error. Gives it if there was any such.
  Status end_left(const Status& gpu = {});

 private:
  // What the API threads know of a tensor.
  enum class Use : std::uint8_t { idle, under_way, viewed, dropped };
  struct Tensor {
    TensorId id;
    TensorShape shape;
    std::atomic<Use> use{Use::idle};
    // Loop. Of the operation under way.
    std::shared_ptr<OperationRecord> record;
    bool view = false;
    bool on_gpu = false;
  };
  // What is asked of a group: a call if it has a request, else to add it, to join it, or to drop it.
  struct GroupNote {
    std::optional<GroupRequest> request;
    std::optional<GroupSpec> spec;
    GroupId group;
    bool is_join = false;
  };
  struct OnGroup {
    std::shared_ptr<OperationRecord> record;
    std::shared_ptr<const GivenParts> given;  // null: of the caller's memory
  };
  struct Note {
    Tensor* tensor = nullptr;                 // which stays until then; null: `group` has it
    std::shared_ptr<OperationRecord> record;  // null: nothing is begun, `view` is released
    Request request;
    std::shared_ptr<const AnswerView> view;
    bool is_drop = false;  // in place of the request
    std::unique_ptr<GroupNote> group = {};
  };

  std::shared_ptr<Tensor> at(TensorId tensor) const;
  Error refusal(const Tensor& tensor, TensorId id, Use use) const;
  Status claim(TensorId tensor, Use use, Note&& note);
  bool leave(Note&& note);
  static std::size_t bytes_of(const Note& note);
  void begin(Note& note);
  void begin_drop(TensorId tensor);
  Result<std::shared_ptr<OperationRecord>> start_on_group(GroupNote&& note);
  void begin_on_group(Note& note);
  void end_on_group(const OperationRecord* record, const Result<std::uint32_t>& weight);
  void wake_later(std::shared_ptr<OperationRecord> record);
  // The caller keeps the tensor.
  void end(Tensor& tensor, const Result<std::uint32_t>& weight);
  void wake_waiters();

  EventLoop& loop_;
  const std::shared_ptr<CallbackThread> callbacks_;
  ClientEngine* engine_ = nullptr;
  Monitor<std::vector<std::shared_ptr<Tensor>>> tensors_;  // by TensorId
  const std::shared_ptr<Tensor> ended_;                    // in the place of each that has been dropped
  MpscQueue<Note> notes_;
  LoneSeries series_;
  // Loop. On groups, under way.
  std::unordered_map<const OperationRecord*, OnGroup> on_groups_;
  std::vector<Note> noted_;                                // loop: its memory is used again
  std::vector<std::shared_ptr<OperationRecord>> to_wake_;  // loop: they have ended, and a thread waits
  std::atomic<bool> is_unheard_{false};                    // a note has found no memory to wake the loop
  bool is_stopped_ = false;                                // loop
};

}  // namespace bps
