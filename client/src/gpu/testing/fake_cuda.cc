#include "client/src/gpu/testing/fake_cuda.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "client/src/gpu/testing/fake_machine.h"

namespace bps {
namespace {

CudaContext context_of(int device) {
  return reinterpret_cast<CudaContext>(static_cast<std::uintptr_t>(device) + 1);
}

}  // namespace

FakeCuda::FakeCuda(EventLoop& clock, Options options)
    : clock_(clock), shared_(std::make_unique<Shared>(Machine(clock, options))) {
  shared_->monitor.update([&](Machine& m) {
    m.retained.resize(static_cast<std::size_t>(options.devices));
    (void)m.make_stream(0);  // the default stream of device 0
  });
}

FakeCuda::~FakeCuda() = default;

void FakeCuda::fail_call(std::uint64_t number, CudaCode code, bool lost) {
  shared_->monitor.update([&](Machine& m) {
    m.faults.push_back({std::nullopt, number - m.order.size(), code, lost});
  });
}

void FakeCuda::fail_next(CudaCall call, std::uint64_t nth, CudaCode code, bool lost) {
  shared_->monitor.update([&](Machine& m) { m.faults.push_back({call, nth, code, lost}); });
}

void FakeCuda::lose_device(CudaCode code) {
  shared_->monitor.update([&](Machine& m) { m.lose(code); });
}

void FakeCuda::begin_capture(CudaStream stream) {
  shared_->monitor.update([&](Machine& m) {
    m.captured = stream;
    m.is_capture_good = true;
  });
}

bool FakeCuda::end_capture() {
  return shared_->monitor.update([&](Machine& m) {
    m.captured.reset();
    return std::exchange(m.is_capture_good, false);
  });
}

void FakeCuda::hang_next(std::uint64_t nth) {
  shared_->monitor.update([&](Machine& m) { m.hang_in = nth; });
}

void FakeCuda::hold_copies(CudaCall direction) {
  shared_->monitor.update([&](Machine& m) { m.held_copies = direction; });
}

void FakeCuda::release_copies() {
  shared_->monitor.update([](Machine& m) { m.held_copies.reset(); });
}

void FakeCuda::block(CudaCall call) {
  shared_->monitor.update([&](Machine& m) {
    m.blocked = call;
    m.holds = false;
  });
}

void FakeCuda::unblock() {
  shared_->monitor.update([](Machine& m) { m.blocked.reset(); });
}

bool FakeCuda::wait_for_blocked(TimePoint deadline) const {
  return shared_->monitor.wait_until(deadline, [](const Machine& m) { return m.holds; });
}

void FakeCuda::pass(CudaCall call) {
  shared_->monitor.update([&](Machine& m) { m.holds = m.holds || m.blocked == call; });
  shared_->monitor.wait_until(TimePoint::max(), [&](const Machine& m) { return m.blocked != call; });
}

std::uint64_t FakeCuda::calls() const {
  return shared_->monitor.read([](const Machine& m) { return m.order.size(); });
}

std::uint64_t FakeCuda::count(CudaCall call) const {
  return shared_->monitor.read([&](const Machine& m) { return m.counts[static_cast<std::size_t>(call)]; });
}

std::vector<CudaCall> FakeCuda::order() const {
  return shared_->monitor.read([](const Machine& m) { return m.order; });
}

FakeCuda::Left FakeCuda::left() const {
  return shared_->monitor.read([](const Machine& m) {
    return Left{static_cast<std::size_t>(std::accumulate(m.retained.begin(), m.retained.end(), 0)),
                m.streams.size() - 1 - m.per_thread.size(),
                m.events.size(),
                m.allocations.size(),
                m.registrations.size(),
                m.modules.size(),
                static_cast<std::size_t>(
                    std::count_if(m.capture_modes.begin(), m.capture_modes.end(),
                                  [](const auto& mode) { return mode.second == CudaCaptureMode::relaxed; }))};
  });
}

bool FakeCuda::is_idle() const {
  return shared_->monitor.update([](Machine& m) {
    m.advance();
    for (const auto& [handle, stream] : m.streams)
      if (!stream->operations.empty()) return false;
    return true;
  });
}

std::vector<std::string> FakeCuda::misuses() const {
  return shared_->monitor.read([](const Machine& m) { return m.misuses; });
}

CudaCode FakeCuda::init() {
  return call(
      CudaCall::init, [](Machine&) { return CudaCode::success; }, false);
}

CudaCode FakeCuda::driver_version(int& version) {
  version = 12040;
  return call(
      CudaCall::driver_version, [](Machine&) { return CudaCode::success; }, false);
}

CudaCode FakeCuda::device_count(int& count) {
  return call(
      CudaCall::device_count,
      [&](Machine& m) {
        count = m.options.devices;
        return CudaCode::success;
      },
      false);
}

CudaCode FakeCuda::device(int& device, int ordinal) {
  return call(
      CudaCall::device,
      [&](Machine& m) {
        device = ordinal;
        return ordinal >= 0 && ordinal < m.options.devices ? CudaCode::success : CudaCode::invalid_device;
      },
      false);
}

CudaCode FakeCuda::device_name(std::string& name, int device) {
  name = "Fake " + std::to_string(device);
  return call(
      CudaCall::device_name, [](Machine&) { return CudaCode::success; }, false);
}

CudaCode FakeCuda::device_id(CudaDeviceId& id, int device) {
  id.fill(0xfa);
  id.back() = static_cast<std::uint8_t>(device);
  return call(
      CudaCall::device_id, [](Machine&) { return CudaCode::success; }, false);
}

CudaCode FakeCuda::retain_context(CudaContext& context, int device) {
  return call(
      CudaCall::retain_context,
      [&](Machine& m) {
        if (m.lost != CudaCode::success) return m.lost;
        context = context_of(device);
        ++m.retained[static_cast<std::size_t>(device)];
        return CudaCode::success;
      },
      false);
}

// What destroys something has done so also when it fails: then it tells of an error of before, as in life.
CudaCode FakeCuda::release_context(int device) {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::release_context, false);
    if (--m.retained[static_cast<std::size_t>(device)] < 0) m.misuse("a context released once too often");
    return decided.value_or(CudaCode::success);
  });
}

CudaCode FakeCuda::push_context(CudaContext context) {
  return call(
      CudaCall::push_context,
      [&](Machine& m) {
        const auto device = reinterpret_cast<std::uintptr_t>(context) - 1;
        if (device >= m.retained.size() || m.retained[device] == 0) {
          m.misuse("a context that is not retained is made current");
          return CudaCode::invalid_context;
        }
        m.stack().push_back(context);
        return CudaCode::success;
      },
      false);
}

CudaCode FakeCuda::pop_context() {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::pop_context, false);
    if (m.stack().empty()) {
      m.misuse("cuCtxPopCurrent without a context");
      return CudaCode::invalid_context;
    }
    m.stack().pop_back();
    return decided.value_or(CudaCode::success);
  });
}

CudaCode FakeCuda::current_device(int& device) {
  return call(
      CudaCall::current_device,
      [&](Machine& m) {
        const int current = m.current_device();
        if (current < 0) return CudaCode::invalid_context;
        device = current;
        return CudaCode::success;
      },
      false);
}

CudaCode FakeCuda::priority_range(int& least, int& greatest) {
  least = 0;
  greatest = -5;
  return call(CudaCall::priority_range, [](Machine&) { return CudaCode::success; });
}

CudaCode FakeCuda::describe_pointer(CudaPointer& pointer, const void* address) {
  return call(CudaCall::describe_pointer, [&](Machine& m) {
    const auto* const start = static_cast<const std::byte*>(address);
    pointer = {};
    const auto* const found = m.allocation_of({start, 1});
    if (found == nullptr) return CudaCode::success;
    const std::size_t size = found->told == 0 ? found->bytes : found->told;
    const auto piece = static_cast<std::size_t>(start - found->memory.get()) / size;
    pointer = {true, found->device, found->memory.get() + piece * size, size,
               found->pieces == Pieces::allocations};
    return CudaCode::success;
  });
}

void FakeCuda::tell_size(const void* memory, std::size_t bytes, Pieces pieces) {
  shared_->monitor.update([&](Machine& m) {
    auto& allocation = m.allocations.at(static_cast<const std::byte*>(memory));
    allocation.told = bytes;
    allocation.pieces = pieces;
  });
}

CudaCode FakeCuda::allocate(void*& memory, std::size_t bytes) {
  return call(CudaCall::allocate, [&](Machine& m) {
    std::size_t used = bytes;
    for (const auto& [start, allocation] : m.allocations)
      if (allocation.device == m.current_device()) used += allocation.bytes;
    if (used > m.options.memory) return CudaCode::out_of_memory;
    Machine::Allocation made{m.current_device(), std::make_unique<std::byte[]>(bytes), bytes};
    memory = made.memory.get();
    m.allocations[made.memory.get()] = std::move(made);
    return CudaCode::success;
  });
}

CudaCode FakeCuda::free(void* memory) {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::free, true);
    const auto found = m.allocations.find(static_cast<const std::byte*>(memory));
    if (found == m.allocations.end()) {
      m.misuse("cuMemFree of what was not allocated");
      return CudaCode::invalid_value;
    }
    if (m.is_in_use({found->first, found->second.bytes}))
      m.misuse("memory of a device is freed while it is in use");
    m.allocations.erase(found);
    return decided.value_or(CudaCode::success);
  });
}

CudaCode FakeCuda::register_host(void* memory, std::size_t bytes) {
  return call(CudaCall::register_host, [&](Machine& m) {
    const Machine::Range range{static_cast<const std::byte*>(memory), bytes};
    for (const auto& [start, other] : m.registrations)
      if (other.overlaps(range)) return CudaCode::already_registered;
    m.registrations[range.start] = range;
    return CudaCode::success;
  });
}

CudaCode FakeCuda::unregister_host(void* memory) {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::unregister_host, true);
    const auto found = m.registrations.find(static_cast<const std::byte*>(memory));
    if (found == m.registrations.end()) {
      m.misuse("cuMemHostUnregister of what was not registered");
      return CudaCode::not_registered;
    }
    if (m.is_in_use(found->second)) m.misuse("memory is unregistered while it is in use");
    m.registrations.erase(found);
    return decided.value_or(CudaCode::success);
  });
}

std::string FakeCuda::describe(CudaCode code) {
  return "fake CUDA error " + std::to_string(static_cast<int>(code));
}

}  // namespace bps
