// values.hpp - the small values of the C++ wrapper: codes and errors, tensors, and the memory that an
// operation is given. Part of client.hpp; see there.
#ifndef BPS_VALUES_HPP_
#define BPS_VALUES_HPP_

#include <bps/bps.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

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

enum class Op {
  sum = BPS_SUM,
  average = BPS_AVERAGE,
  min = BPS_MIN,
  max = BPS_MAX,
  product = BPS_PRODUCT,
  bit_and = BPS_AND,  // bit by bit, of integers only
  bit_or = BPS_OR,
  bit_xor = BPS_XOR
};

// Of a tensor; unset: the job's.
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
    if (!(duration > duration.zero())) return 0;  // also what is not a number
    if (std::chrono::duration_cast<Seconds>(duration).count() > 9e15) return INT64_MAX;
    return static_cast<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
  }

  std::int64_t milliseconds_ = -1;
};

// The value of a setting, as text: a text, a whole number, true or false.
class SettingValue {
 public:
  SettingValue(std::string text) : text_(std::move(text)) {}
  SettingValue(const char* text) : text_(text) {}
  template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
  SettingValue(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      text_ = value ? "true" : "false";
    } else {
      text_ = std::to_string(value);
    }
  }

  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

// A declared tensor of one client. A small value: copy it freely.
class Tensor {
 public:
  Tensor() = default;
  Tensor(bps_tensor id, DType dtype, std::uint64_t count, std::uint64_t part = 0) noexcept
      : id_(id), dtype_(dtype), count_(count), part_(part) {}

  bps_tensor id() const noexcept { return id_; }
  DType dtype() const noexcept { return dtype_; }
  std::uint64_t count() const noexcept { return count_; }
  std::uint64_t part() const noexcept { return part_; }  // elements of this rank's part; 0 without parts
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(count_) * size_of(dtype_); }

 private:
  bps_tensor id_ = ~bps_tensor{0};
  DType dtype_ = DType::f32;
  std::uint64_t count_ = 0;
  std::uint64_t part_ = 0;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::uint64_t count = 0;                       // elements
  std::int32_t priority = BPS_PRIORITY_DEFAULT;  // higher goes first; equal: the earlier declared goes first
  Mode mode = Mode::unset;
  std::int64_t staleness = -1;  // of async tensors; -1 = the job's
  // Elements of each rank's part, or one number for all; empty: no parts. See bps_tensor_spec.
  std::vector<std::uint64_t> parts = {};
  // A group: the ranks of the job that share the tensor, in the order of their sums. Empty: all of them.
  std::vector<std::int32_t> ranks = {};
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
class AnyBuffer {
 public:
  AnyBuffer(void* pointer, std::size_t bytes, bool sized, Holds holds) noexcept
      : raw_{sizeof(bps_buffer), pointer, bytes, BPS_MEMORY_HOST, 0, nullptr, nullptr},
        sized_(sized),
        holds_(holds) {}
  explicit AnyBuffer(const bps_buffer& raw) noexcept : raw_(raw), sized_(true), holds_(nullptr) {}

  bool fits(DType dtype) const noexcept { return holds_ == nullptr || holds_(dtype); }
  bool fits(const Tensor& tensor) const noexcept { return fits(tensor.dtype()); }
  bool is_sized() const noexcept { return sized_; }
  bps_buffer raw() const noexcept { return raw_of(Tensor(), 0); }  // of one that is sized
  bps_buffer raw(const Tensor& tensor) const noexcept { return raw_of(tensor, tensor.count()); }
  bps_buffer raw_part(const Tensor& tensor) const noexcept { return raw_of(tensor, tensor.part()); }

 protected:
  void set_scale(const bps_scale& scale) noexcept {
    scale_ = scale;
    scaled_ = true;
  }

 private:
  bps_buffer raw_of(const Tensor& tensor, std::uint64_t count) const noexcept {
    bps_buffer result = raw_;
    if (scaled_) result.scale = &scale_;
    if (!sized_) result.bytes = static_cast<std::size_t>(count) * size_of(tensor.dtype());
    return result;
  }

  bps_buffer raw_;
  bps_scale scale_ = BPS_SCALE_INIT;
  bool scaled_ = false;
  bool sized_;
  Holds holds_;
};

}  // namespace detail

// Memory that an operation writes (and, in place, reads).
class Buffer : public detail::AnyBuffer {
 public:
  template <class T, class = std::enable_if_t<detail::is_element<T> && !std::is_const_v<T>>>
  Buffer(T* elements) noexcept : AnyBuffer(elements, 0, false, &detail::holds<T>) {}

  template <class C, class T = std::remove_reference_t<decltype(*std::declval<C&>().data())>,
            class = std::enable_if_t<detail::is_container<C> && detail::is_element<T> && !std::is_const_v<T>>>
  Buffer(C&& elements) noexcept
      : AnyBuffer(elements.data(), elements.size() * sizeof(T), true, &detail::holds<T>) {}

  Buffer(void* pointer, std::size_t bytes) noexcept : AnyBuffer(pointer, bytes, true, nullptr) {}
  explicit Buffer(const bps_buffer& raw) noexcept : AnyBuffer(raw) {}
};

// How an input counts in a sum or an average of floats, see bps_scale.
struct Scale {
  double weight = 1;
  double prescale = 1;
  double postscale = 1;
};

// Memory that an operation only reads.
class ConstBuffer : public detail::AnyBuffer {
 public:
  template <class T, class = std::enable_if_t<detail::is_element<std::remove_const_t<T>>>>
  ConstBuffer(T* elements) noexcept
      : AnyBuffer(const_cast<std::remove_const_t<T>*>(elements), 0, false,
                  &detail::holds<std::remove_const_t<T>>) {}

  template <class C,
            class T = std::remove_cv_t<std::remove_reference_t<decltype(*std::declval<const C&>().data())>>,
            class = std::enable_if_t<detail::is_container<const C> && detail::is_element<T>>>
  ConstBuffer(const C& elements) noexcept
      : AnyBuffer(const_cast<T*>(elements.data()), elements.size() * sizeof(T), true, &detail::holds<T>) {}

  ConstBuffer(const void* pointer, std::size_t bytes) noexcept
      : AnyBuffer(const_cast<void*>(pointer), bytes, true, nullptr) {}
  ConstBuffer(const Buffer& buffer) noexcept : AnyBuffer(buffer) {}
  explicit ConstBuffer(const bps_buffer& raw) noexcept : AnyBuffer(raw) {}

  // The same memory, of which every element counts so in a sum or an average.
  ConstBuffer scaled(const Scale& scale) const noexcept {
    ConstBuffer result = *this;
    result.set_scale({sizeof(bps_scale), scale.weight, scale.prescale, scale.postscale});
    return result;
  }
};

// Memory of a GPU, see bps_buffer: {pointer, bytes, device, stream}. What is queued on the stream comes
// first.
struct CudaMemory {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  void* stream = nullptr;

  bps_buffer raw() const noexcept {
    return {sizeof(bps_buffer),
            pointer,
            bytes,
            BPS_MEMORY_CUDA,
            static_cast<std::int32_t>(device),
            stream,
            nullptr};
  }
  operator Buffer() const noexcept { return Buffer(raw()); }
  operator ConstBuffer() const noexcept { return ConstBuffer(raw()); }
};

// What Client::allocate gives: memory that every transport moves without copying it first. It may go while an
// operation uses it, and may outlive its client. As a whole it is a buffer of {pointer, bytes}.
class Memory {
 public:
  Memory() noexcept = default;
  Memory(bps_client* client, void* pointer, std::size_t bytes) noexcept
      : client_(client), pointer_(pointer), bytes_(bytes) {}
  Memory(Memory&& other) noexcept
      : client_(other.client_),
        pointer_(std::exchange(other.pointer_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    if (this != &other) {
      (void)bps_deallocate(client_, pointer_);
      client_ = other.client_;
      pointer_ = std::exchange(other.pointer_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~Memory() { (void)bps_deallocate(client_, pointer_); }

  explicit operator bool() const noexcept { return pointer_ != nullptr; }
  void* pointer() const noexcept { return pointer_; }
  std::size_t bytes() const noexcept { return bytes_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(pointer_);
  }
  operator Buffer() const noexcept { return {pointer_, bytes_}; }
  operator ConstBuffer() const noexcept { return {pointer_, bytes_}; }

 private:
  bps_client* client_ = nullptr;
  void* pointer_ = nullptr;
  std::size_t bytes_ = 0;
};

// A piece of an answer that is read in place.
struct Piece {
  const void* pointer = nullptr;
  std::size_t bytes = 0;
  std::uint64_t offset = 0;  // in the tensor, in bytes

  template <class T>
  const T* as() const noexcept {
    return static_cast<const T*>(pointer);
  }
};

namespace detail {

// Turns the C way of telling errors into a Status, and a Status into an exception.
class Call {
 public:
  bps_error* error() noexcept { return &error_; }
  Status status(bps_status result) const {
    if (result == BPS_OK) return {};
    if (error_.status == result) return Status(error_);
    return Status(static_cast<Code>(result), 70, bps_status_string(result));
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
inline Status no_length(const char* what) {
  return Status(Code::invalid_argument, 64,
                std::string("`") + what + "` is a pointer, and a call on a group needs a length",
                "give {pointer, bytes}, or anything with data() and size()");
}
inline Status wrong_type(const char* what) {
  return Status(Code::invalid_argument, 64,
                std::string("the element type of `") + what + "` is not the dtype of the tensor or call",
                "use the type of the memory, or pass {pointer, bytes} to reinterpret it");
}

using Callback = std::function<void(const Status&)>;

inline void run_callback(const bps_error* error, void* user) noexcept {
  std::unique_ptr<Callback> callback(static_cast<Callback*>(user));
  (*callback)(error == nullptr ? Status() : Status(*error));
}

}  // namespace detail

}  // namespace v0
}  // namespace bps

#endif  // BPS_VALUES_HPP_
