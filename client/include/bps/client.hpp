// client.hpp - the C++17 wrapper of libbpsclient. It is header-only, so that compilers and C++ runtimes never
// meet across the library's border, the C API of bps.h. Link bps::client (CMake) or `pkg-config bpsclient`.
//
//   int main(int, char** argv) {
//     return bps::run_main(argv[0], [] {                      // prints an error, returns its exit code
//       std::vector<float> gradient(n), sum(n);               // before the client: they must outlive it
//       bps::Client client{bps::Options{}.job("resnet50")};   // rank, size, scheduler: from outside
//       bps::Tensor weight = client.declare("layer1.weight", bps::DType::f32, gradient.size());
//       client.broadcast(weight, parameters, 0).wait();
//       bps::Handle handle = client.push_pull(weight, gradient, sum, bps::Op::average);
//       handle.wait(30s);
//       client.close();
//     });
//   }
//
// Failures throw bps::Error (code, message, advice, exit_code). Every function of a class has an overload
// with a `bps::Status&` as last argument, which it sets instead of throwing.
//
// Memory is a typed pointer (as long as the tensor), anything with data() and size() (the length is checked),
// {pointer, bytes}, or CudaMemory for a GPU. It must stay valid until the operation is done: after a finished
// wait, in a callback, or after Client::close; the end of a Handle is not enough. Memory of Client::allocate
// may be freed at any time.
//
// Any thread may call any function. A callback must not wait. A wait returns after the callbacks of its
// handle.
#ifndef BPS_CLIENT_HPP_
#define BPS_CLIENT_HPP_

#include <bps/bps.h>

#include <algorithm>
#include <bps/group.hpp>
#include <bps/handle.hpp>
#include <bps/values.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace bps {
inline namespace v0 {

// ---- options ----

// What is not set here comes from BPS_* variables, then the config file, then the default. client/README.md,
// "Settings", lists all.
class Options {
 public:
  using Log = std::function<void(LogLevel, std::string_view)>;

  Options() { bps_options_init(&raw_, sizeof raw_); }

  Options& scheduler(std::string value) {
    return keep(scheduler_, std::move(value));
  }  // "HOST:PORT" or "embedded:"
  Options& job(std::string value) { return keep(job_, std::move(value)); }
  Options& config_file(std::string value) { return keep(config_file_, std::move(value)); }
  Options& rank(int value) { return raw_.rank = value, *this; }
  Options& world_size(int value) { return raw_.world_size = value, *this; }
  Options& local_rank(int value) { return raw_.local_rank = value, *this; }
  Options& local_size(int value) { return raw_.local_size = value, *this; }
  Options& join_timeout(Timeout value) { return raw_.join_timeout_ms = value.milliseconds(), *this; }
  Options& operation_timeout(Timeout value) {
    return raw_.operation_timeout_ms = value.milliseconds(), *this;
  }
  // Called on a library thread; must not call the library and must not throw.
  Options& log(Log value) { return log_ = std::make_shared<Log>(std::move(value)), *this; }

  // Any setting by its name: set("transport", "tcp"), set("rdma-tclass", 104), set("retain", false),
  // set("scheduler-grace", "30s"). The last call for a name counts, and it beats the functions above.
  Options& set(const std::string& name, const SettingValue& value) {
    Status status;
    set(name, value, status);
    detail::throw_if_failed(status);
    return *this;
  }
  Options& set(const std::string& name, const SettingValue& value, Status& status) {
    detail::Call call;
    status = call.status(bps_options_set(&raw_, name.c_str(), value.text().c_str(), call.error()));
    return *this;
  }

  // For bps_open: points into this object.
  bps_options raw() const noexcept {
    bps_options result = raw_;
    result.scheduler = pointer(scheduler_);
    result.job = pointer(job_);
    result.config_file = pointer(config_file_);
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
  Options& keep(Text& text, std::string value) { return text = Text{std::move(value), true}, *this; }
  static const char* pointer(const Text& text) noexcept { return text.given ? text.value.c_str() : nullptr; }

  bps_options raw_{};
  Text scheduler_, job_, config_file_;
  std::shared_ptr<Log> log_;
};

// ---- client ----

// A member of a job. The destructor closes at once, so call close() to let operations finish. If an exception
// destroys the client, it gives the job up (bps_abandon).
class Client {
 public:
  struct Stats {
    std::uint64_t pushed_bytes = 0;  // payload sent, resends included
    std::uint64_t pulled_bytes = 0;  // payload received
    std::uint64_t rounds = 0;        // operations completed
    std::uint64_t resent = 0;        // contributions sent again
    std::uint64_t lanes = 0;         // connections to servers that are up now
    std::uint64_t shm_lanes = 0;     // of these, over shared memory
    std::uint64_t workers = 0;       // of the job that are not lost
    std::uint64_t rdma_lanes = 0;    // of the lanes, over RDMA
    // Costs of RDMA; see bps_stats.
    std::uint64_t rdma_registrations = 0;
    std::uint64_t rdma_sends = 0;
    std::uint64_t rdma_signalled_sends = 0;
    std::uint64_t rdma_reads = 0;
    std::uint64_t rdma_read_bytes = 0;
    std::uint64_t rdma_failed_requests = 0;
    std::uint64_t rdma_unanswered_requests = 0;
    std::uint64_t rdma_unready_receivers = 0;
  };

  // Its settings; see bps_client_info.
  struct Info {
    std::string local_group;
    int cuda_device = -1;  // -1: none yet
    std::chrono::milliseconds operation_timeout{0};
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
      exceptions_ = std::uncaught_exceptions();
    }
    return *this;
  }
  ~Client() {
    if (raw_ != nullptr && std::uncaught_exceptions() > exceptions_) bps_abandon(raw_, nullptr);
    bps_free(raw_);
  }

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
      raw_specs[i] = {sizeof(bps_tensor_spec),
                      specs[i].name.c_str(),
                      static_cast<bps_dtype>(specs[i].dtype),
                      specs[i].count,
                      specs[i].priority,
                      static_cast<std::int32_t>(specs[i].mode),
                      specs[i].staleness,
                      specs[i].parts.empty() ? nullptr : specs[i].parts.data(),
                      specs[i].parts.size(),
                      specs[i].ranks.empty() ? nullptr : specs[i].ranks.data(),
                      specs[i].ranks.size()};
    }
    std::vector<bps_tensor> ids(specs.size());
    detail::Call call;
    status = call.status(
        bps_declare(raw_, raw_specs.data(), specs.size(), ids.data(), timeout.milliseconds(), call.error()));
    std::vector<Tensor> result;
    if (!status.ok()) return result;
    result.reserve(specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i)
      result.emplace_back(ids[i], specs[i].dtype, specs[i].count, part_of(specs[i]));
    return result;
  }
  std::vector<Tensor> declare(const std::vector<TensorSpec>& specs, Status& status) {
    return declare(specs, Timeout{}, status);
  }

  // Ends the tensor for this rank, which makes no later calls on it, and returns at once. The name may then
  // be declared again, and means another tensor. The handle is done when all ranks have dropped the tensor,
  // and servers have freed its memory; nobody need wait for it. See bps_drop.
  Handle drop(const Tensor& tensor) {
    Status status;
    Handle handle = drop(tensor, status);
    detail::throw_if_failed(status);
    return handle;
  }
  Handle drop(const Tensor& tensor, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Handle{};
    bps_handle* handle = nullptr;
    detail::Call call;
    status = call.status(bps_drop(raw_, tensor.id(), &handle, call.error()));
    return Handle(handle);
  }

  // All ranks of the job, to be called on without tensors.
  Group world() const noexcept { return Group(raw_, BPS_WORLD); }
  // Some of them, in the order of their sums; empty: all. Returns at once, see bps_declare_group.
  Group group(const std::string& name, const std::vector<std::int32_t>& ranks = {},
              std::int32_t priority = BPS_PRIORITY_DEFAULT) {
    Status status;
    const Group made = group(name, ranks, priority, status);
    detail::throw_if_failed(status);
    return made;
  }
  Group group(const std::string& name, const std::vector<std::int32_t>& ranks, std::int32_t priority,
              Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Group{};
    bps_group_spec spec = BPS_GROUP_SPEC_INIT;
    spec.name = name.c_str();
    spec.ranks = ranks.empty() ? nullptr : ranks.data();
    spec.rank_count = ranks.size();
    spec.priority = priority;
    bps_group id = BPS_WORLD;
    detail::Call call;
    status = call.status(bps_declare_group(raw_, &spec, &id, call.error()));
    return status.ok() ? Group(raw_, id) : Group{};
  }

  // Starts to reduce `in` of all workers into `out` of all workers. Both may be the same memory.
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
    status = call.status(bps_push_pull(raw_, tensor.id(), &raw_in, &raw_out, static_cast<bps_reduce_op>(op),
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

  // The answer is read in place: Handle::view(), then Handle::release() before the tensor's next operation.
  Handle push_pull_view(const Tensor& tensor, ConstBuffer in, Op op = Op::sum) {
    Status status;
    Handle handle = push_pull_view(tensor, in, op, status);
    detail::throw_if_failed(status);
    return handle;
  }
  Handle push_pull_view(const Tensor& tensor, ConstBuffer in, Op op, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Handle{};
    if (!in.fits(tensor)) return status = detail::wrong_type("in"), Handle{};
    const bps_buffer raw_in = in.raw(tensor);
    bps_handle* handle = nullptr;
    detail::Call call;
    status = call.status(bps_push_pull(raw_, tensor.id(), &raw_in, nullptr, static_cast<bps_reduce_op>(op),
                                       &handle, call.error()));
    return Handle(handle);
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

  // Starts to reduce `in` of all workers into `out` of the root; elsewhere `out` is ignored.
  Handle reduce(const Tensor& tensor, ConstBuffer in, Buffer out, int root, Op op = Op::sum) {
    Status status;
    Handle handle = reduce(tensor, in, out, root, op, status);
    detail::throw_if_failed(status);
    return handle;
  }
  Handle reduce(const Tensor& tensor, ConstBuffer in, Buffer out, int root, Op op, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Handle{};
    if (!in.fits(tensor)) return status = detail::wrong_type("in"), Handle{};
    if (root == rank() && !out.fits(tensor)) return status = detail::wrong_type("out"), Handle{};
    const bps_buffer raw_in = in.raw(tensor);
    const bps_buffer raw_out = out.raw(tensor);
    bps_handle* handle = nullptr;
    detail::Call call;
    status = call.status(bps_reduce(raw_, tensor.id(), &raw_in, &raw_out, static_cast<bps_reduce_op>(op),
                                    root, &handle, call.error()));
    return Handle(handle);
  }

  // Starts to reduce `in` of all workers, of which each takes its part (TensorSpec::parts) into `out`.
  // `exact_order`: with the bits of push_pull, see bps_reduce_scatter.
  Handle reduce_scatter(const Tensor& tensor, ConstBuffer in, Buffer out, Op op = Op::sum,
                        bool exact_order = false) {
    Status status;
    Handle handle = reduce_scatter(tensor, in, out, op, exact_order, status);
    detail::throw_if_failed(status);
    return handle;
  }
  Handle reduce_scatter(const Tensor& tensor, ConstBuffer in, Buffer out, Op op, bool exact_order,
                        Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Handle{};
    if (!in.fits(tensor)) return status = detail::wrong_type("in"), Handle{};
    if (!out.fits(tensor)) return status = detail::wrong_type("out"), Handle{};
    const bps_buffer raw_in = in.raw(tensor);
    const bps_buffer raw_out = out.raw_part(tensor);
    bps_handle* handle = nullptr;
    detail::Call call;
    status =
        call.status(bps_reduce_scatter(raw_, tensor.id(), &raw_in, &raw_out, static_cast<bps_reduce_op>(op),
                                       exact_order ? 1 : 0, &handle, call.error()));
    return Handle(handle);
  }

  // Starts to copy the parts of all workers, each in its `in`, into `out` of all workers.
  Handle all_gather(const Tensor& tensor, ConstBuffer in, Buffer out) {
    Status status;
    Handle handle = all_gather(tensor, in, out, status);
    detail::throw_if_failed(status);
    return handle;
  }
  Handle all_gather(const Tensor& tensor, ConstBuffer in, Buffer out, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Handle{};
    if (!in.fits(tensor)) return status = detail::wrong_type("in"), Handle{};
    if (!out.fits(tensor)) return status = detail::wrong_type("out"), Handle{};
    const bps_buffer raw_in = in.raw_part(tensor);
    const bps_buffer raw_out = out.raw(tensor);
    bps_handle* handle = nullptr;
    detail::Call call;
    status = call.status(bps_all_gather(raw_, tensor.id(), &raw_in, &raw_out, &handle, call.error()));
    return Handle(handle);
  }

  // Memory that every transport moves without a copy.
  Memory allocate(std::size_t bytes) {
    Status status;
    Memory memory = allocate(bytes, status);
    detail::throw_if_failed(status);
    return memory;
  }
  Memory allocate(std::size_t bytes, Status& status) {
    if (raw_ == nullptr) return status = detail::no_client(), Memory{};
    void* pointer = nullptr;
    detail::Call call;
    status = call.status(bps_allocate(raw_, bytes, &pointer, call.error()));
    return Memory(raw_, pointer, pointer == nullptr ? 0 : bytes);
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
    return {raw_stats.pushed_bytes,
            raw_stats.pulled_bytes,
            raw_stats.rounds,
            raw_stats.resent,
            raw_stats.lanes,
            raw_stats.shm_lanes,
            raw_stats.workers,
            raw_stats.rdma_lanes,
            raw_stats.rdma_registrations,
            raw_stats.rdma_sends,
            raw_stats.rdma_signalled_sends,
            raw_stats.rdma_reads,
            raw_stats.rdma_read_bytes,
            raw_stats.rdma_failed_requests,
            raw_stats.rdma_unanswered_requests,
            raw_stats.rdma_unready_receivers};
  }

  Info info() const {
    bps_client_info raw_info{};
    raw_info.struct_size = sizeof raw_info;
    if (raw_ == nullptr || bps_get_client_info(raw_, &raw_info) != BPS_OK) return {};
    return {raw_info.local_group, raw_info.cuda_device,
            std::chrono::milliseconds(raw_info.operation_timeout_ms)};
  }

  // Finishes operations until the timeout, cancels the rest, leaves the job. Afterwards the library touches
  // no memory of the caller, except with Code::os (see bps_close). A second close ends as the first.
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

  // Gives the job up: this worker is lost to the others. Waits for no operation; see bps_abandon.
  void abandon() noexcept {
    if (raw_ != nullptr) bps_abandon(raw_, nullptr);
  }

 private:
  std::uint64_t part_of(const TensorSpec& spec) const noexcept {
    std::size_t index = spec.parts.size() > 1 ? static_cast<std::size_t>(rank()) : 0;
    if (spec.parts.size() > 1 && !spec.ranks.empty()) {
      const auto place = std::find(spec.ranks.begin(), spec.ranks.end(), rank());
      index = static_cast<std::size_t>(place - spec.ranks.begin());
    }
    return index < spec.parts.size() ? spec.parts[index] : 0;
  }
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
  int exceptions_ = std::uncaught_exceptions();  // that this client has not seen begin
};

// ---- programs ----

// For main(): return bps::run_main(argv[0], [] { ... }). Runs `body` and returns its result, 0 if it has
// none. After a bps::Error it returns the error's exit code (75: start again from the last checkpoint), after
// another exception 1, and writes what happened to stderr. An exception that leaves main() ends the program
// with 134 (SIGABRT) instead, and perhaps without the destructor that reports this worker lost to the others.
template <class Body>
int run_main(const char* program, Body&& body) {
  const auto failed = [program](const char* what, int exit_code) {
    std::string name = program == nullptr ? "error" : program;
    name.erase(0, name.rfind('/') + 1);  // its folders, if any
    std::fprintf(stderr, "%s: %s\n", name.c_str(), what);
    return exit_code;
  };
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      std::forward<Body>(body)();
      return 0;
    } else {
      return std::forward<Body>(body)();
    }
  } catch (const Error& error) {
    return failed(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    return failed(error.what(), 1);
  } catch (...) {
    return failed("an exception of a type that is not std::exception", 1);
  }
}

}  // namespace v0
}  // namespace bps

#endif  // BPS_CLIENT_HPP_
