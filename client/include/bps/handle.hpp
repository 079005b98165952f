// handle.hpp - an operation of the C++ wrapper that is under way. Part of client.hpp; see there.
#ifndef BPS_HANDLE_HPP_
#define BPS_HANDLE_HPP_

#include <bps/bps.h>

#include <bps/values.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace bps {
inline namespace v0 {

// One operation, or drop. It goes on after the end of its handle, so its memory must stay valid until it is
// done.
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(bps_handle* raw) noexcept : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      bps_handle_free(raw_);
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }
  ~Handle() { bps_handle_free(raw_); }

  explicit operator bool() const noexcept { return raw_ != nullptr; }
  bps_handle* raw() const noexcept { return raw_; }

  // Returns when the operation is done and the callbacks that then() was given have run; throws its error.
  // After Code::deadline it goes on: wait again.
  void wait(Timeout timeout = {}) const {
    Status status;
    wait(timeout, status);
    detail::throw_if_failed(status);
  }
  void wait(Timeout timeout, Status& status) const {
    if (raw_ == nullptr) return void(status = detail::no_handle());
    detail::Call call;
    status = call.status(bps_wait(raw_, timeout.milliseconds(), call.error()));
  }
  void wait(Status& status) const { wait(Timeout{}, status); }

  // Of an operation on CudaMemory: what is queued on `stream` from now on finds its output; how it ended is
  // still to be asked for. Waits until the last copy has been queued. See bps_handle_wait_stream.
  void wait_stream(void* stream) const {
    Status status;
    wait_stream(stream, status);
    detail::throw_if_failed(status);
  }
  void wait_stream(void* stream, Status& status) const {
    if (raw_ == nullptr) return void(status = detail::no_handle());
    detail::Call call;
    status = call.status(bps_handle_wait_stream(raw_, stream, call.error()));
  }

  // True when the operation has ended, with success or not, and its callbacks have run; inside a callback
  // when it has ended. False for an empty handle.
  bool poll() const noexcept {
    int done = 0;
    return raw_ != nullptr && bps_poll(raw_, &done) == BPS_OK && done != 0;
  }

  // Runs on the client's callback thread when the operation has ended, even if it has already. The callback
  // must not wait and must not throw. It may capture locals of a function that then calls wait(): that
  // returns after the callback, unless it expires. A handle may have several.
  void then(std::function<void(const Status&)> callback) const {
    Status status;
    then(std::move(callback), status);
    detail::throw_if_failed(status);
  }
  void then(std::function<void(const Status&)> callback, Status& status) const {
    if (raw_ == nullptr) return void(status = detail::no_handle());
    if (callback == nullptr) {
      return void(status = Status(Code::invalid_argument, 64, "the callback is empty"));
    }
    auto owned = std::make_unique<detail::Callback>(std::move(callback));
    detail::Call call;
    status = call.status(bps_then(raw_, &detail::run_callback, owned.get(), call.error()));
    if (status.ok()) (void)owned.release();
  }

  // A file descriptor that becomes readable when the operation has ended and its callbacks have run. The
  // handle owns it: do not close or read it.
  int fd() const {
    Status status;
    const int result = fd(status);
    detail::throw_if_failed(status);
    return result;
  }
  int fd(Status& status) const {
    int result = -1;
    if (raw_ == nullptr) return status = detail::no_handle(), result;
    detail::Call call;
    status = call.status(bps_handle_fd(raw_, &result, call.error()));
    return result;
  }

  // Of a join that is done: the rank that has joined last. Else -1.
  int last_joined() const noexcept { return bps_handle_last_joined(raw_); }

  // Of a successful Client::push_pull_view: the pieces of the answer, in the order of the tensor. Readable
  // until release() or the end of the handle.
  std::vector<Piece> view() const {
    Status status;
    auto pieces = view(status);
    detail::throw_if_failed(status);
    return pieces;
  }
  std::vector<Piece> view(Status& status) const {
    std::vector<Piece> pieces;
    if (raw_ == nullptr) return status = detail::no_handle(), pieces;
    bps_view piece = BPS_VIEW_INIT;
    do {
      detail::Call call;
      status = call.status(bps_handle_view(raw_, pieces.size(), &piece, call.error()));
      if (!status.ok() || piece.pieces == 0) break;
      pieces.reserve(piece.pieces);
      pieces.push_back({piece.pointer, piece.bytes, piece.offset});
    } while (pieces.size() < piece.pieces);
    return pieces;
  }

  // Ends the reading. Code::peer_lost: what was read may be wrong; discard what was computed from it.
  void release() const {
    Status status;
    release(status);
    detail::throw_if_failed(status);
  }
  void release(Status& status) const {
    if (raw_ == nullptr) return void(status = detail::no_handle());
    detail::Call call;
    status = call.status(bps_handle_release(raw_, call.error()));
  }

  // Number of ranks in the answer; 0 until the operation has succeeded, and of a drop.
  std::uint32_t ranks() const noexcept { return raw_ == nullptr ? 0 : bps_handle_ranks(raw_); }

 private:
  bps_handle* raw_ = nullptr;
};

}  // namespace v0
}  // namespace bps

#endif  // BPS_HANDLE_HPP_
