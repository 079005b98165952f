// The streams, events and memory of FakeCuda, without its lock. Inside FakeCuda only.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/src/gpu/testing/fake_cuda.h"
#include "proto/base/loop/completion.h"

namespace bps {

class FakeCuda::Machine {
 public:
  struct Range {
    const std::byte* start = nullptr;
    std::size_t bytes = 0;
    bool overlaps(const Range& other) const {
      return start < other.start + other.bytes && other.start < start + bytes;
    }
    bool holds(const Range& other) const {
      return start <= other.start && other.start + other.bytes <= start + bytes;
    }
  };
  struct Operation {
    Duration takes{0};
    std::function<bool()> may_start;  // none: at once
    std::function<void()> finish;
    std::vector<Range> memory;
    bool hangs = false;
    std::optional<TimePoint> ends;  // it has started
  };
  struct Stream {
    int device = 0;
    std::uint64_t id = 0;
    std::deque<Operation> operations;
  };
  struct Event {
    int device = 0;
    std::uint64_t recorded = 0;  // times
    bool is_captured = false;    // it was last
    std::uint64_t fired = 0;
  };
  struct Allocation {
    int device = 0;
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
    std::size_t told = 0;  // see tell_size(); 0: as it is
    Pieces pieces = Pieces::allocations;
  };
  struct Kernel {
    std::string name;
    std::shared_ptr<const Play> play;
  };
  struct Module {
    int device = 0;
    std::map<std::string, std::unique_ptr<Kernel>> kernels;
  };
  struct Fault {
    std::optional<CudaCall> call;  // none: counts all calls
    std::uint64_t left = 0;
    CudaCode code = CudaCode::unknown;
    bool lost = false;
  };

  Machine(EventLoop& clock, const Options& wanted) : options(wanted), clock_(clock), random_(wanted.seed) {}

  // Counts the call; its result, if that is decided already.
  std::optional<CudaCode> enter(CudaCall call, bool needs_context);
  void advance();
  void lose(CudaCode code);
  void misuse(const std::string& what) { misuses.push_back(what); }

  CudaStream make_stream(int device);
  // What this thread means by it.
  CudaStream resolve(CudaStream handle);
  void forget_stream(CudaStream handle);
  // Null, and a misuse: it is none, or not of the current context.
  Stream* stream(CudaCall call, CudaStream handle);
  Event* event(CudaCall call, CudaEvent handle);
  // Null, and a misuse: it is none, or not of the current context.
  Kernel* kernel(CudaKernel handle);
  void queue(Stream& stream, Operation operation);
  Operation operation_of(Work work, const std::string& what);
  bool is_in_use(const Range& range) const;
  bool is_registered(const Range& range) const;
  const Allocation* allocation_of(const Range& range) const;
  int current_device() const;
  CudaCaptureMode& capture_mode();  // of this thread
  std::vector<CudaContext>& stack();

  const Options options;
  std::map<CudaStream, std::unique_ptr<Stream>> streams;
  std::map<std::uint64_t, CudaStream> per_thread;  // default streams, made when they are used
  std::map<CudaEvent, std::shared_ptr<Event>> events;
  std::map<const std::byte*, Allocation> allocations;
  std::map<const std::byte*, Range> registrations;
  std::map<CudaModule, std::unique_ptr<Module>> modules;
  std::map<std::string, std::shared_ptr<const Play>> plays;  // by kernel
  std::vector<int> retained;                                 // by device
  std::vector<CudaCall> order;
  std::array<std::uint64_t, kCudaCallCount> counts{};
  std::vector<Fault> faults;
  std::optional<std::uint64_t> hang_in;
  std::optional<CudaCall> held_copies;
  std::optional<CudaCall> blocked;
  bool holds = false;  // a thread in that call
  CudaCode lost = CudaCode::success;
  std::optional<CudaStream> captured;
  bool is_capture_good = false;
  std::map<std::uint64_t, CudaCaptureMode> capture_modes;  // by thread
  std::vector<std::string> misuses;

 private:
  EventLoop& clock_;
  std::mt19937_64 random_;
  std::uint64_t next_stream_ = 0;
  std::vector<CudaStream> free_handles_;  // the last given back is the next
  std::uintptr_t next_handle_ = 0x1000;
  std::map<std::uint64_t, std::vector<CudaContext>> stacks_;  // by thread
};

struct FakeCuda::Shared {
  explicit Shared(Machine machine) : monitor(std::move(machine)) {}
  Monitor<Machine> monitor;
};

template <class Do>
CudaCode FakeCuda::call(CudaCall call, Do&& act, bool needs_context) {
  pass(call);
  return shared_->monitor.update([&](Machine& m) {
    if (const auto decided = m.enter(call, needs_context)) return *decided;
    return act(m);
  });
}

}  // namespace bps
