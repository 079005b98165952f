#include "client/src/gpu/testing/fake_machine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace bps {
namespace {

// Tells threads apart, also those that have ended.
std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> threads = 0;
  thread_local const std::uint64_t number = ++threads;
  return number;
}

// Which the driver refuses a thread while streams are captured.
bool disturbs_captures(CudaCall call) {
  switch (call) {
    case CudaCall::query_stream:
    case CudaCall::query_event:
    case CudaCall::allocate:
    case CudaCall::free:
    case CudaCall::register_host:
    case CudaCall::unregister_host: return true;
    default: return false;
  }
}

}  // namespace

std::optional<CudaCode> FakeCuda::Machine::enter(CudaCall call, bool needs_context) {
  advance();
  order.push_back(call);
  ++counts[static_cast<std::size_t>(call)];
  std::optional<CudaCode> decided;
  for (Fault& fault : faults) {
    if (fault.call && *fault.call != call) continue;
    if (fault.left-- != 0) continue;
    if (fault.lost) lose(fault.code);
    decided = fault.code;
  }
  std::erase_if(faults, [](const Fault& fault) { return fault.left == UINT64_MAX; });
  if (decided) return decided;
  if (!needs_context) return std::nullopt;
  if (lost != CudaCode::success) return lost;
  if (stack().empty()) {
    misuse(std::string(name_of(call)) + " without a context");
    return CudaCode::invalid_context;
  }
  if (captured && disturbs_captures(call) && capture_mode() != CudaCaptureMode::relaxed) {
    misuse(std::string(name_of(call)) + " ends a capture");
    is_capture_good = false;
    return CudaCode::capture_unsupported;
  }
  return std::nullopt;
}

CudaStream FakeCuda::Machine::make_stream(int device) {
  auto made = std::make_unique<Stream>();
  made->device = device;
  made->id = ++next_stream_;
  CudaStream handle = nullptr;
  if (!free_handles_.empty()) {
    handle = free_handles_.back();
    free_handles_.pop_back();
  } else if (!streams.empty()) {  // the first is the default stream
    handle = reinterpret_cast<CudaStream>(next_handle_ += 16);
  }
  streams[handle] = std::move(made);
  return handle;
}

CudaStream FakeCuda::Machine::resolve(CudaStream handle) {
  if (handle != kCudaStreamPerThread) return handle;
  const auto [at, is_new] = per_thread.try_emplace(this_thread());
  if (is_new) at->second = make_stream(std::max(current_device(), 0));
  return at->second;
}

void FakeCuda::Machine::forget_stream(CudaStream handle) {
  if (streams.erase(handle) == 1) free_handles_.push_back(handle);
}

void FakeCuda::Machine::advance() {
  const TimePoint now = clock_.now();
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [handle, stream] : streams) {
      auto& operations = stream->operations;
      if (operations.empty()) continue;
      Operation& first = operations.front();
      if (!first.ends && (!first.may_start || first.may_start())) {
        first.ends = now + first.takes;
        moved = true;
      }
      if (first.ends && *first.ends <= now && !first.hangs) {
        if (first.finish) first.finish();
        operations.pop_front();
        moved = true;
      }
    }
  }
}

void FakeCuda::Machine::lose(CudaCode code) {
  lost = code;
  for (auto& [handle, stream] : streams)
    stream->operations.clear();
}

std::vector<CudaContext>& FakeCuda::Machine::stack() { return stacks_[this_thread()]; }

CudaCaptureMode& FakeCuda::Machine::capture_mode() {
  return capture_modes.emplace(this_thread(), CudaCaptureMode::global).first->second;
}

int FakeCuda::Machine::current_device() const {
  const auto found = stacks_.find(this_thread());
  if (found == stacks_.end() || found->second.empty()) return -1;
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(found->second.back())) - 1;
}

FakeCuda::Machine::Stream* FakeCuda::Machine::stream(CudaCall call, CudaStream handle) {
  const auto found = streams.find(resolve(handle));
  if (found == streams.end()) {
    misuse(std::string(name_of(call)) + " of a stream that is none");
    return nullptr;
  }
  if (found->second->device != current_device()) {
    misuse(std::string(name_of(call)) + " of a stream in another context");
    return nullptr;
  }
  return found->second.get();
}

FakeCuda::Machine::Event* FakeCuda::Machine::event(CudaCall call, CudaEvent handle) {
  const auto found = events.find(handle);
  if (found == events.end()) {
    misuse(std::string(name_of(call)) + " of an event that is none");
    return nullptr;
  }
  if (found->second->device != current_device()) {
    misuse(std::string(name_of(call)) + " of an event in another context");
    return nullptr;
  }
  return found->second.get();
}

FakeCuda::Machine::Kernel* FakeCuda::Machine::kernel(CudaKernel handle) {
  for (const auto& [module, loaded] : modules) {
    for (const auto& [name, kernel] : loaded->kernels) {
      if (reinterpret_cast<CudaKernel>(kernel.get()) != handle) continue;
      if (loaded->device == current_device()) return kernel.get();
    }
  }
  misuse("cuLaunchKernel of a kernel that is none, or in another context");
  return nullptr;
}

void FakeCuda::Machine::queue(Stream& stream, Operation operation) {
  const auto longest = static_cast<std::uint64_t>(options.longest.count());
  operation.takes = Duration(longest == 0 ? 0 : static_cast<std::int64_t>(random_() % (longest + 1)));
  if (hang_in && (*hang_in)-- == 0) {
    operation.hangs = true;
    hang_in.reset();
  }
  stream.operations.push_back(std::move(operation));
}

bool FakeCuda::Machine::is_in_use(const Range& range) const {
  for (const auto& [handle, stream] : streams) {
    for (const Operation& operation : stream->operations) {
      for (const Range& used : operation.memory)
        if (used.overlaps(range)) return true;
    }
  }
  return false;
}

bool FakeCuda::Machine::is_registered(const Range& range) const {
  const auto after = registrations.upper_bound(range.start);
  return after != registrations.begin() && std::prev(after)->second.holds(range);
}

const FakeCuda::Machine::Allocation* FakeCuda::Machine::allocation_of(const Range& range) const {
  const auto after = allocations.upper_bound(range.start);
  if (after == allocations.begin()) return nullptr;
  const auto& [start, allocation] = *std::prev(after);
  return Range{start, allocation.bytes}.holds(range) ? &allocation : nullptr;
}

}  // namespace bps
