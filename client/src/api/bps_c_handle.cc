// The C API of one operation: its end, its answer that is read in place, what waits for it.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "client/src/api/c_client.h"
#include "client/src/api/c_error.h"

namespace bps {
namespace {

// May the answer be read in place?
Status viewable(const bps_handle* handle) {
  if (Status status = usable(handle); !status.ok()) return status;
  if (!handle->has_view) {
    return invalid("the operation was given an `out`, or has none, so there is no view of its answer",
                   "give bps_push_pull, bps_group_all_gather or bps_all_to_all a NULL `out`");
  }
  if (!handle->record->done()) return invalid("the operation has not ended yet", "wait for it first");
  return handle->record->result();
}

Error no_view() { return invalid("the view has been released already"); }

void give_back(const bps_handle& handle, std::shared_ptr<const AnswerView> view) {
  if (view == nullptr || handle.on_group) return;
  if (const auto client = handle.client.lock()) client->release(handle.tensor, std::move(view));
}

// The client is kept no longer than the thread runs its loop.
bool wait_until(const bps_handle& handle, TimePoint deadline) {
  OperationRecord& record = *handle.record;
  if (!record.done()) {
    if (const auto client = handle.client.lock()) client->run_loop_for(record, deadline);
  }
  if (!record.wait_until(deadline)) return false;
  if (const auto client = handle.client.lock()) client->on_waited();
  return true;
}

}  // namespace
}  // namespace bps

using namespace bps;

extern "C" {

bps_status bps_poll(bps_handle* handle, int* done) {
  return guarded(nullptr, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (done == nullptr) return invalid("done is NULL");
    *done = handle->record->over() ? 1 : 0;
    return {};
  });
}

bps_status bps_wait(bps_handle* handle, int64_t timeout_ms, bps_error* error) {
  bool is_deadlock = false;
  const bps_status result = guarded(error, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (Status status = may_wait("bps_wait"); !status.ok()) return status;
    const Duration timeout = duration_of(timeout_ms, handle->default_timeout);
    OperationRecord& record = *handle->record;
    if (wait_until(*handle, std::chrono::steady_clock::now() + timeout)) return record.result();
    // Nobody reads the cause, for which the loop is asked.
    if (error == nullptr) return make_error(ErrorCode::deadline, "");
    const auto client = handle->client.lock();
    WaitCause what{"a client that is gone"};
    if (client != nullptr && !record.done()) {
      what = handle->on_group ? client->describe_call(record, timeout)
                              : client->describe(handle->tensor, timeout);
    }
    // It may have ended meanwhile, and what it waited for is no longer true.
    if (record.over()) return record.result();
    const double waited = std::chrono::duration<double>(timeout).count();
    if (record.done()) {
      return make_error(ErrorCode::deadline,
                        fmt::format("waited {:.3g} s for a callback of an operation that has ended", waited),
                        "see whether a callback of the program's does not return, then wait again");
    }
    const std::string text = fmt::format("waited {:.3g} s for {}", waited, what.text);
    is_deadlock = what.is_deadlock;
    return make_error(
        ErrorCode::deadline, text,
        is_deadlock ? Client::kOneOrder : "the operation goes on: wait again, or look at the other workers");
  });
  if (is_deadlock) forbid_restart(error);
  return result;
}

bps_status bps_handle_wait_stream(bps_handle* handle, void* stream, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (Status status = may_wait("bps_handle_wait_stream"); !status.ok()) return status;
    if (handle->memory == MemoryKind::host) {
      return invalid("the operation is not on memory of a GPU, and no stream waits for that",
                     "wait for it with bps_wait, then queue what needs it");
    }
    if (handle->record->done()) return {};
    const auto client = handle->client.lock();
    if (client == nullptr) return make_error(ErrorCode::closed, "the client is gone");
    return client->wait_stream(*handle->record, handle->tensor, stream);
  });
}

bps_status bps_then(bps_handle* handle, bps_callback callback, void* user, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (callback == nullptr) return invalid("callback is NULL");
    return handle->record->then([callback, user](const Error& failure) {
      if (failure.code == ErrorCode::ok) return callback(nullptr, user);
      bps_error told = BPS_ERROR_INIT;
      (void)report(failure, &told);
      callback(&told, user);
    });
  });
}

bps_status bps_handle_fd(bps_handle* handle, int* fd, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = usable(handle); !status.ok()) return status;
    if (fd == nullptr) return invalid("fd is NULL");
    auto result = handle->record->fd();
    if (!result) return result.error();
    *fd = *result;
    return {};
  });
}

uint32_t bps_handle_ranks(const bps_handle* handle) {
  return usable(handle).ok() && !handle->is_join ? handle->record->weight() : 0;
}

int32_t bps_handle_last_joined(const bps_handle* handle) {
  if (!usable(handle).ok() || !handle->is_join || !handle->record->done()) return -1;
  return handle->record->result().ok() ? static_cast<std::int32_t>(handle->record->weight()) : -1;
}

bps_status bps_handle_view(bps_handle* handle, size_t index, bps_view* view, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (view == nullptr) return invalid("view is NULL: there is no place for the result");
    if (view->struct_size < sizeof view->struct_size) {
      return invalid(fmt::format("struct_size of the view is {}", view->struct_size),
                     "begin with BPS_VIEW_INIT");
    }
    if (Status status = viewable(handle); !status.ok()) return status;
    const auto answer = handle->record->view();
    if (answer == nullptr) return no_view();
    const auto& pieces = answer->pieces();
    if (index > pieces.size())
      return invalid(fmt::format("there is no piece {}: the answer has {}", index, pieces.size()));
    bps_view full{view->struct_size, nullptr, 0, 0, pieces.size()};
    if (index < pieces.size()) {
      full.pointer = pieces[index].bytes.data();
      full.bytes = pieces[index].bytes.size();
      full.offset = pieces[index].offset;
    }
    std::memcpy(view, &full, std::min(view->struct_size, sizeof full));
    return {};
  });
}

bps_status bps_handle_release(bps_handle* handle, bps_error* error) {
  return guarded(error, [&]() -> Status {
    if (Status status = viewable(handle); !status.ok()) return status;
    auto answer = handle->record->take_view();
    if (answer == nullptr) return no_view();
    give_back(*handle, std::move(answer));
    return {};
  });
}

void bps_handle_free(bps_handle* handle) {
  if (handle == nullptr) return;
  // A forked child must not take locks that its parent may have held.
  if (handle->fork_mark->in_child()) return;
  (void)guarded(nullptr, [&]() -> Status {
    if (handle->has_view) give_back(*handle, handle->record->abandon());
    return {};
  });
  handle->record->close_fd();
  delete handle;
}

}  // extern "C"
