// client.hpp - the C++17 face of libbpsclient: header-only, so that compilers and C++ runtimes never meet
// across the library's border, which is the C API of bps.h. Link bps::client (CMake) or `pkg-config
// bpsclient`.
//
//   std::vector<float> gradient(n), sum(n);                   // before the client: they must outlive it
//   bps::Client client{bps::Options{}.job("resnet50")};       // rank, size, scheduler: from the environment
//   bps::Tensor weight = client.declare("layer1.weight", bps::DType::f32, gradient.size());
//   client.broadcast(weight, parameters, 0).wait();
//   bps::Handle handle = client.push_pull(weight, gradient, sum, bps::Op::average);
//   handle.wait(30s);
//   client.close();
//
// Failures throw bps::Error (code, message, advice, exit_code). Every function also has an overload that
// takes a `bps::Status&` as last argument, sets it and does not throw.
//
// Memory is given as a typed pointer (as long as the tensor), as anything with data() and size() (the length
// is checked), or as {pointer, bytes}. It must stay valid until the operation is done; only a finished wait,
// a callback or Client::close says so, not the end of a Handle.
//
// All functions may be called from any thread, except that a callback must not wait.
#ifndef BPS_CLIENT_HPP_
#define BPS_CLIENT_HPP_

#include <bps/bps.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace bps {
// Its own name for the linker: a program of this project may also carry the library's internals.
inline namespace v0 {

enum class DType {
  f32 = BPS_F32,
  f64 = BPS_F64,
  f16 = BPS_F16,
  bf16 = BPS_BF16,
  i8 = BPS_I8,
  u8 = BPS_U8,
  i32 = BPS_I32,
  i64 = BPS_I64
};

enum class Op { sum = BPS_SUM, average = BPS_AVERAGE, min = BPS_MIN, max = BPS_MAX, product = BPS_PRODUCT };

// unset: of a tensor the job's, of a job sync.
enum class Mode { unset = BPS_MODE_DEFAULT, sync = BPS_MODE_SYNC, async = BPS_MODE_ASYNC };

enum class LogLevel {
  error = BPS_LOG_ERROR,
  warn = BPS_LOG_WARN,
  info = BPS_LOG_INFO,
  debug = BPS_LOG_DEBUG
};

enum class Code {
  ok = BPS_OK,
  invalid_argument = BPS_INVALID_ARGUMENT,
  unreachable = BPS_UNREACHABLE,
  os = BPS_OS,
  deadline = BPS_DEADLINE,
  peer_lost = BPS_PEER_LOST,
  protocol = BPS_PROTOCOL,
  unauthorised = BPS_UNAUTHORISED,
  configuration = BPS_CONFIGURATION,
  out_of_memory = BPS_OUT_OF_MEMORY,
  cancelled = BPS_CANCELLED,
  closed = BPS_CLOSED,
  internal = BPS_INTERNAL
};

inline constexpr std::int64_t kUnboundedStaleness = BPS_STALENESS_UNBOUNDED;

inline std::size_t size_of(DType dtype) noexcept { return bps_dtype_size(static_cast<bps_dtype>(dtype)); }

// The version of the library that is loaded.
inline std::string version() { return bps_version(); }

// ---- errors ----

// The result of a call that does not throw.
class Status {
 public:
  Status() = default;
  explicit Status(const bps_error& error)
      : code_(static_cast<Code>(error.status)),
        exit_code_(error.exit_code),
        message_(error.message),
        advice_(error.advice) {}
  Status(Code code, int exit_code, std::string message, std::string advice = {})
      : code_(code), exit_code_(exit_code), message_(std::move(message)), advice_(std::move(advice)) {}

  bool ok() const noexcept { return code_ == Code::ok; }
  explicit operator bool() const noexcept { return ok(); }
  Code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }  // the exact cause
  const std::string& advice() const noexcept { return advice_; }    // what to do next; may be empty
  // What a program that ends because of this should return (sysexits.h); 0 when ok.
  int exit_code() const noexcept { return exit_code_; }

 private:
  Code code_ = Code::ok;
  int exit_code_ = 0;
  std::string message_;
  std::string advice_;
};

// what() is "message; advice".
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.advice().empty() ? status.message()
                                                   : status.message() + "; " + status.advice()),
        status_(std::make_shared<const Status>(std::move(status))) {}

  Code code() const noexcept { return status_->code(); }
  const std::string& message() const noexcept { return status_->message(); }
  const std::string& advice() const noexcept { return status_->advice(); }
  int exit_code() const noexcept { return status_->exit_code(); }
  const Status& status() const noexcept { return *status_; }

 private:
  std::shared_ptr<const Status> status_;  // shared: copying an exception must not throw
};

// ---- small values ----

// A std::chrono duration, rounded up to milliseconds; default: the client's operation_timeout.
class Timeout {
 public:
  constexpr Timeout() noexcept = default;
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> duration) noexcept
      : milliseconds_(rounded(duration)) {}

  constexpr std::int64_t milliseconds() const noexcept { return milliseconds_; }

 private:
  template <class Rep, class Period>
  static constexpr std::int64_t rounded(std::chrono::duration<Rep, Period> duration) noexcept {
    using Seconds = std::chrono::duration<double>;
    if (duration <= duration.zero()) return 0;
    if (std::chrono::duration_cast<Seconds>(duration).count() > 9e15) return INT64_MAX;
    return static_cast<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
  }

  std::int64_t milliseconds_ = -1;
};

// A declared tensor of one client. A small value: copy it freely.
class Tensor {
 public:
  Tensor() = default;
  Tensor(bps_tensor id, DType dtype, std::uint64_t count) noexcept : id_(id), dtype_(dtype), count_(count) {}

  bps_tensor id() const noexcept { return id_; }
  DType dtype() const noexcept { return dtype_; }
  std::uint64_t count() const noexcept { return count_; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(count_) * size_of(dtype_); }

 private:
  bps_tensor id_ = ~bps_tensor{0};
  DType dtype_ = DType::f32;
  std::uint64_t count_ = 0;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::uint64_t count = 0;                       // elements
  std::int32_t priority = BPS_PRIORITY_DEFAULT;  // higher goes first; equal: the earlier declared goes first
  Mode mode = Mode::unset;
  std::int64_t staleness = -1;  // of async tensors; -1 = the job's
};

namespace detail {

// Which tensors a T may hold. f16 and bf16 have no common C++ type: any two-byte type without a dtype of its
// own does.
template <class T>
constexpr bool holds(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return std::is_same_v<T, float>;
    case DType::f64: return std::is_same_v<T, double>;
    case DType::f16:
    case DType::bf16: return sizeof(T) == 2 && std::is_trivially_copyable_v<T>;
    case DType::i8: return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 1;
    case DType::u8:
      return (std::is_integral_v<T> && std::is_unsigned_v<T> && sizeof(T) == 1) ||
             std::is_same_v<T, std::byte>;
    case DType::i32: return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 4;
    case DType::i64: return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8;
  }
  return false;
}

using Holds = bool (*)(DType) noexcept;

template <class T>
inline constexpr bool is_element =
    holds<T>(DType::f32) || holds<T>(DType::f64) || holds<T>(DType::f16) || holds<T>(DType::i8) ||
    holds<T>(DType::u8) || holds<T>(DType::i32) || holds<T>(DType::i64);

template <class C, class = void>
inline constexpr bool is_container = false;
template <class C>
inline constexpr bool
    is_container<C, std::void_t<decltype(*std::declval<C&>().data()), decltype(std::declval<C&>().size())>> =
        true;

// bps_buffer of a tensor, or a refusal that names what does not fit.
class Memory {
 public:
  Memory(void* pointer, std::size_t bytes, bool sized, Holds holds) noexcept
      : raw_{sizeof(bps_buffer), pointer, bytes, BPS_MEMORY_HOST, 0, nullptr}, sized_(sized), holds_(holds) {}
  explicit Memory(const bps_buffer& raw) noexcept : raw_(raw), sized_(true), holds_(nullptr) {}

  bool fits(const Tensor& tensor) const noexcept { return holds_ == nullptr || holds_(tensor.dtype()); }
  bps_buffer raw(const Tensor& tensor) const noexcept {
    bps_buffer result = raw_;
    if (!sized_) result.bytes = tensor.bytes();
    return result;
  }

 private:
  bps_buffer raw_;
  bool sized_;
  Holds holds_;
};

}  // namespace detail

// Memory that an operation writes (and, in place, reads).
class Buffer : public detail::Memory {
 public:
  template <class T, class = std::enable_if_t<detail::is_element<T> && !std::is_const_v<T>>>
  Buffer(T* elements) noexcept : Memory(elements, 0, false, &detail::holds<T>) {}

  template <class C, class T = std::remove_reference_t<decltype(*std::declval<C&>().data())>,
            class = std::enable_if_t<detail::is_container<C> && detail::is_element<T> && !std::is_const_v<T>>>
  Buffer(C&& elements) noexcept
      : Memory(elements.data(), elements.size() * sizeof(T), true, &detail::holds<T>) {}

  Buffer(void* pointer, std::size_t bytes) noexcept : Memory(pointer, bytes, true, nullptr) {}
  explicit Buffer(const bps_buffer& raw) noexcept : Memory(raw) {}
};

// Memory that an operation only reads.
class ConstBuffer : public detail::Memory {
 public:
  template <class T, class = std::enable_if_t<detail::is_element<std::remove_const_t<T>>>>
  ConstBuffer(T* elements) noexcept
      : Memory(const_cast<std::remove_const_t<T>*>(elements), 0, false,
               &detail::holds<std::remove_const_t<T>>) {}

  template <class C,
            class T = std::remove_cv_t<std::remove_reference_t<decltype(*std::declval<const C&>().data())>>,
            class = std::enable_if_t<detail::is_container<const C> && detail::is_element<T>>>
  ConstBuffer(const C& elements) noexcept
      : Memory(const_cast<T*>(elements.data()), elements.size() * sizeof(T), true, &detail::holds<T>) {}

  ConstBuffer(const void* pointer, std::size_t bytes) noexcept
      : Memory(const_cast<void*>(pointer), bytes, true, nullptr) {}
  ConstBuffer(const Buffer& buffer) noexcept : Memory(buffer) {}
  explicit ConstBuffer(const bps_buffer& raw) noexcept : Memory(raw) {}
};

namespace detail {

// Turns the C way of telling errors into a Status, and a Status into an exception.
class Call {
 public:
  bps_error* error() noexcept { return &error_; }
  Status status(bps_status result) const {
    if (result == BPS_OK) return {};
    if (error_.status == result) return Status(error_);
    return Status(static_cast<Code>(result), 70, "libbpsclient gave status " + std::to_string(result));
  }

 private:
  bps_error error_ = BPS_ERROR_INIT;
};

inline void throw_if_failed(Status& status) {
  if (!status.ok()) throw Error(std::move(status));
}

inline Status no_client() {
  return Status(Code::closed, 64, "this bps::Client is empty (failed to open, or moved from)");
}
inline Status no_handle() {
  return Status(Code::invalid_argument, 64,
                "this bps::Handle is empty (the operation failed to start, or it was moved)");
}
inline Status wrong_type(const char* what) {
  return Status(Code::invalid_argument, 64,
                std::string("the element type of `") + what + "` is not the tensor's dtype",
                "declare the tensor with the type of the memory, or pass {pointer, bytes} to reinterpret it");
}

using Callback = std::function<void(const Status&)>;

inline void run_callback(const bps_error* error, void* user) noexcept {
  std::unique_ptr<Callback> callback(static_cast<Callback*>(user));
  (*callback)(error == nullptr ? Status() : Status(*error));
}

}  // namespace detail

// ---- options ----

// What is not set here comes from BPS_* variables, then the config file, then the default (see bps.h).
class Options {
 public:
  using Log = std::function<void(LogLevel, std::string_view)>;

  Options() { bps_options_init(&raw_, sizeof raw_); }

  Options& scheduler(std::string value) {
    return set(scheduler_, std::move(value));
  }  // "HOST:PORT" or "embedded:"
  Options& job(std::string value) { return set(job_, std::move(value)); }
  Options& config_file(std::string value) { return set(config_file_, std::move(value)); }
  Options& congestion_control(std::string value) { return set(congestion_control_, std::move(value)); }
  Options& rank(int value) { return raw_.rank = value, *this; }
  Options& world_size(int value) { return raw_.world_size = value, *this; }
  Options& local_rank(int value) { return raw_.local_rank = value, *this; }
  Options& local_size(int value) { return raw_.local_size = value, *this; }
  Options& join_timeout(Timeout value) { return raw_.join_timeout_ms = value.milliseconds(), *this; }
  Options& operation_timeout(Timeout value) {
    return raw_.operation_timeout_ms = value.milliseconds(), *this;
  }
  Options& partition_bytes(std::int64_t value) { return raw_.partition_bytes = value, *this; }
  Options& credit_bytes(std::int64_t value) { return raw_.credit_bytes = value, *this; }
  Options& retain(bool value) { return raw_.retain = value ? 1 : 0, *this; }
  Options& mode(Mode value) { return raw_.mode = static_cast<std::int32_t>(value), *this; }
  Options& staleness(std::int64_t value) { return raw_.staleness = value, *this; }
  Options& bandwidth_bps(std::int64_t value) { return raw_.bandwidth_bps = value, *this; }
  // Called on a library thread; must not call the library and must not throw.
  Options& log(Log value) { return log_ = std::make_shared<Log>(std::move(value)), *this; }

  // For bps_open: points into this object.
  bps_options raw() const noexcept {
    bps_options result = raw_;
    result.scheduler = pointer(scheduler_);
    result.job = pointer(job_);
    result.config_file = pointer(config_file_);
    result.congestion_control = pointer(congestion_control_);
    if (log_ != nullptr && *log_ != nullptr) {
      result.log = [](bps_log_level level, const char* text, void* user) {
        (*static_cast<const Log*>(user))(static_cast<LogLevel>(level), text);
      };
      result.log_user = log_.get();
    }
    return result;
  }
  const std::shared_ptr<Log>& log_function() const noexcept { return log_; }

 private:
  struct Text {
    std::string value;
    bool given = false;
  };
  Options& set(Text& text, std::string value) { return text = Text{std::move(value), true}, *this; }
  static const char* pointer(const Text& text) noexcept { return text.given ? text.value.c_str() : nullptr; }

  bps_options raw_{};
  Text scheduler_, job_, config_file_, congestion_control_;
  std::shared_ptr<Log> log_;
};

// ---- operations ----

// One operation. The end of a handle is not the end of the operation: its memory must stay valid until that.
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

  // Returns when the operation is done, throws its error. Code::deadline: it goes on and may be waited for
  // again.
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

  // True when the operation has ended, well or not. False for an empty handle.
  bool poll() const noexcept {
    int done = 0;
    return raw_ != nullptr && bps_poll(raw_, &done) == BPS_OK && done != 0;
  }

  // Runs on the client's callback thread when the operation has ended, also if it has already; must not wait
  // there, and must not throw. A handle may have several.
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

  // Becomes readable when the operation ends. Owned by the handle: neither close it nor read from it.
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

  // Number of ranks really summed; 0 until the operation has ended well.
  std::uint32_t weight() const noexcept { return raw_ == nullptr ? 0 : bps_handle_weight(raw_); }

 private:
  bps_handle* raw_ = nullptr;
};

// ---- client ----

// A member of a job. The destructor closes at once: call close() to let operations under way finish.
class Client {
 public:
  struct Stats {
    std::uint64_t pushed_bytes = 0;  // payload sent, resends included
    std::uint64_t pulled_bytes = 0;  // payload received
    std::uint64_t rounds = 0;        // operations completed
    std::uint64_t resent = 0;        // contributions sent again
  };

  Client() noexcept = default;  // empty; every call fails with Code::closed
  explicit Client(const Options& options) {
    Status status;
    open(options, status);
    detail::throw_if_failed(status);
  }
  // On failure the client is empty.
  Client(const Options& options, Status& status) { open(options, status); }

  Client(Client&& other) noexcept : log_(std::move(other.log_)), raw_(std::exchange(other.raw_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    if (this != &other) {
      bps_free(raw_);
      raw_ = std::exchange(other.raw_, nullptr);
      log_ = std::move(other.log_);
    }
    return *this;
  }
  ~Client() { bps_free(raw_); }

  explicit operator bool() const noexcept { return raw_ != nullptr; }
  bps_client* raw() const noexcept { return raw_; }

  int rank() const noexcept { return raw_ == nullptr ? -1 : bps_rank(raw_); }
  int world_size() const noexcept { return raw_ == nullptr ? 0 : bps_world_size(raw_); }
  int local_rank() const noexcept { return raw_ == nullptr ? -1 : bps_local_rank(raw_); }
  int local_size() const noexcept { return raw_ == nullptr ? 0 : bps_local_size(raw_); }

  Tensor declare(std::string name, DType dtype, std::uint64_t count,
                 std::int32_t priority = BPS_PRIORITY_DEFAULT) {
    return declare(TensorSpec{std::move(name), dtype, count, priority});
  }
  Tensor declare(std::string name, DType dtype, std::uint64_t count, Status& status) {
    return declare(TensorSpec{std::move(name), dtype, count}, Timeout{}, status);
  }
  Tensor declare(const TensorSpec& spec, Timeout timeout = {}) {
    return one(declare(std::vector<TensorSpec>{spec}, timeout));
  }
  Tensor declare(const TensorSpec& spec, Timeout timeout, Status& status) {
    return one(declare(std::vector<TensorSpec>{spec}, timeout, status));
  }
  Tensor declare(const TensorSpec& spec, Status& status) { return declare(spec, Timeout{}, status); }

  // Many at once: one round trip to the scheduler. In the order of `specs`; empty on failure.
  std::vector<Tensor> declare(const std::vector<TensorSpec>& specs, Timeout timeout = {}) {
    Status status;
    auto result = declare(specs, timeout, status);
    detail::throw_if_failed(status);
    return result;
  }
  std::vector<Tensor> declare(const std::vector<TensorSpec>& specs, Timeout timeout, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), std::vector<Tensor>{};
    std::vector<bps_tensor_spec> raw_specs(specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      raw_specs[i] = {
          sizeof(bps_tensor_spec), specs[i].name.c_str(), static_cast<bps_dtype>(specs[i].dtype),
          specs[i].count,          specs[i].priority,     static_cast<std::int32_t>(specs[i].mode),
          specs[i].staleness};
    }
    std::vector<bps_tensor> ids(specs.size());
    detail::Call call;
    status = call.status(
        bps_declare(raw_, raw_specs.data(), specs.size(), ids.data(), timeout.milliseconds(), call.error()));
    std::vector<Tensor> result;
    if (!status.ok()) return result;
    result.reserve(specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i)
      result.emplace_back(ids[i], specs[i].dtype, specs[i].count);
    return result;
  }
  std::vector<Tensor> declare(const std::vector<TensorSpec>& specs, Status& status) {
    return declare(specs, Timeout{}, status);
  }

  // Starts to reduce `in` of all workers into `out` of all workers; they may be the same memory.
  Handle push_pull(const Tensor& tensor, ConstBuffer in, Buffer out, Op op = Op::sum) {
    Status status;
    Handle handle = push_pull(tensor, in, out, op, status);
    detail::throw_if_failed(status);
    return handle;
  }
  Handle push_pull(const Tensor& tensor, ConstBuffer in, Buffer out, Op op, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Handle{};
    if (!in.fits(tensor)) return status = detail::wrong_type("in"), Handle{};
    if (!out.fits(tensor)) return status = detail::wrong_type("out"), Handle{};
    const bps_buffer raw_in = in.raw(tensor);
    const bps_buffer raw_out = out.raw(tensor);
    bps_handle* handle = nullptr;
    detail::Call call;
    status = call.status(bps_push_pull(raw_, tensor.id(), &raw_in, &raw_out, static_cast<bps_operation>(op),
                                       &handle, call.error()));
    return Handle(handle);
  }
  // In place.
  Handle push_pull(const Tensor& tensor, Buffer buffer, Op op = Op::sum) {
    return push_pull(tensor, buffer, buffer, op);
  }
  Handle push_pull(const Tensor& tensor, Buffer buffer, Op op, Status& status) {
    return push_pull(tensor, buffer, buffer, op, status);
  }

  // Starts to copy the root's buffer to all other workers.
  Handle broadcast(const Tensor& tensor, Buffer buffer, int root) {
    Status status;
    Handle handle = broadcast(tensor, buffer, root, status);
    detail::throw_if_failed(status);
    return handle;
  }
  Handle broadcast(const Tensor& tensor, Buffer buffer, int root, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Handle{};
    if (!buffer.fits(tensor)) return status = detail::wrong_type("buffer"), Handle{};
    const bps_buffer raw_buffer = buffer.raw(tensor);
    bps_handle* handle = nullptr;
    detail::Call call;
    status = call.status(bps_broadcast(raw_, tensor.id(), &raw_buffer, root, &handle, call.error()));
    return Handle(handle);
  }

  // Returns when every worker of the job has called it as often as this one.
  void barrier(Timeout timeout = {}) {
    Status status;
    barrier(timeout, status);
    detail::throw_if_failed(status);
  }
  void barrier(Timeout timeout, Status& status) {
    if (raw_ == nullptr) return void(status = detail::no_client());
    detail::Call call;
    status = call.status(bps_barrier(raw_, timeout.milliseconds(), call.error()));
  }
  void barrier(Status& status) { barrier(Timeout{}, status); }

  Stats stats() const noexcept {
    bps_stats raw_stats{};
    raw_stats.struct_size = sizeof raw_stats;
    if (raw_ == nullptr || bps_get_stats(raw_, &raw_stats) != BPS_OK) return {};
    return {raw_stats.pushed_bytes, raw_stats.pulled_bytes, raw_stats.rounds, raw_stats.resent};
  }

  // Finishes operations under way until the timeout, cancels the rest, leaves the job. After it no memory of
  // the caller is touched. A second close does nothing.
  void close(Timeout timeout = {}) {
    Status status;
    close(timeout, status);
    detail::throw_if_failed(status);
  }
  void close(Timeout timeout, Status& status) {
    if (raw_ == nullptr) return void(status = Status());
    detail::Call call;
    status = call.status(bps_close(raw_, timeout.milliseconds(), call.error()));
  }
  void close(Status& status) { close(Timeout{}, status); }

 private:
  void open(const Options& options, Status& status) {
    log_ = options.log_function();
    const bps_options raw_options = options.raw();
    detail::Call call;
    status = call.status(bps_open(&raw_options, &raw_, call.error()));
  }
  static Tensor one(const std::vector<Tensor>& tensors) {
    return tensors.empty() ? Tensor() : tensors.front();
  }

  std::shared_ptr<Options::Log> log_;  // outlives the client that calls it
  bps_client* raw_ = nullptr;
};

}  // namespace v0
}  // namespace bps

#endif  // BPS_CLIENT_HPP_
