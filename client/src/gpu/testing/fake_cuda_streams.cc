// What FakeCuda has on streams: events, copies, kernels, the work of others; and captures of streams.
#include <cstring>
#include <utility>

#include "client/src/gpu/testing/fake_machine.h"

namespace bps {

CudaCode FakeCuda::create_stream(CudaStream& stream, int priority) {
  (void)priority;
  return call(CudaCall::create_stream, [&](Machine& m) {
    stream = m.make_stream(m.current_device());
    return CudaCode::success;
  });
}

CudaCode FakeCuda::destroy_stream(CudaStream stream) {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::destroy_stream, true);
    const auto found = m.streams.find(stream);
    if (found == m.streams.end()) {
      m.misuse("cuStreamDestroy of a stream that is none");
      return CudaCode::invalid_value;
    }
    if (!found->second->operations.empty()) m.misuse("a stream is destroyed with operations under way");
    m.forget_stream(stream);
    return decided.value_or(CudaCode::success);
  });
}

CudaCode FakeCuda::query_stream(CudaStream stream) {
  return call(CudaCall::query_stream, [&](Machine& m) {
    const auto* const found = m.stream(CudaCall::query_stream, stream);
    if (found == nullptr) return CudaCode::invalid_value;
    return found->operations.empty() ? CudaCode::success : CudaCode::not_ready;
  });
}

CudaCode FakeCuda::stream_id(std::uint64_t& id, CudaStream stream) {
  return call(CudaCall::stream_id, [&](Machine& m) {
    if (!m.options.has_stream_ids) return CudaCode::not_supported;
    const auto* const found = m.stream(CudaCall::stream_id, stream);
    if (found == nullptr) return CudaCode::invalid_value;
    if (m.captured == stream) return CudaCode::capture_unsupported;
    id = found->id;
    return CudaCode::success;
  });
}

CudaCode FakeCuda::exchange_capture_mode(CudaCaptureMode& mode) {
  return call(
      CudaCall::exchange_capture_mode,
      [&](Machine& m) {
        std::swap(m.capture_mode(), mode);
        return CudaCode::success;
      },
      false);
}

CudaCode FakeCuda::is_capturing(CudaStream stream, bool& captured) {
  return call(CudaCall::is_capturing, [&](Machine& m) {
    captured = m.captured == stream;
    return m.captured && stream == nullptr && !captured ? CudaCode::capture_implicit : CudaCode::success;
  });
}

CudaCode FakeCuda::wait_event(CudaStream stream, CudaEvent event) {
  return call(CudaCall::wait_event, [&](Machine& m) {
    auto* const found = m.stream(CudaCall::wait_event, stream);
    if (found == nullptr || m.event(CudaCall::wait_event, event) == nullptr) return CudaCode::invalid_value;
    m.queue(*found, {.may_start = [event = m.events.at(event), when = m.events.at(event)->recorded] {
      return event->fired >= when;
    }});
    return CudaCode::success;
  });
}

CudaCode FakeCuda::create_event(CudaEvent& event) {
  return call(CudaCall::create_event, [&](Machine& m) {
    auto made = std::make_shared<Machine::Event>();
    made->device = m.current_device();
    event = reinterpret_cast<CudaEvent>(made.get());
    m.events[event] = std::move(made);
    return CudaCode::success;
  });
}

CudaCode FakeCuda::record_event(CudaEvent event, CudaStream stream) {
  return call(CudaCall::record_event, [&](Machine& m) {
    auto* const where = m.stream(CudaCall::record_event, stream);
    auto* const what = m.event(CudaCall::record_event, event);
    if (where == nullptr || what == nullptr) return CudaCode::invalid_value;
    what->is_captured = m.captured == stream;
    if (what->is_captured) {
      m.misuse("cuEventRecord is captured");
      return CudaCode::success;
    }
    const std::uint64_t number = ++what->recorded;
    m.queue(*where, {.finish = [event = m.events.at(event), number] { event->fired = number; }});
    return CudaCode::success;
  });
}

CudaCode FakeCuda::query_event(CudaEvent event) {
  return call(CudaCall::query_event, [&](Machine& m) {
    const auto* const found = m.event(CudaCall::query_event, event);
    if (found == nullptr) return CudaCode::invalid_value;
    if (found->is_captured) return CudaCode::captured_event;
    return found->fired == found->recorded ? CudaCode::success : CudaCode::not_ready;
  });
}

CudaCode FakeCuda::destroy_event(CudaEvent event) {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::destroy_event, true);
    if (m.events.erase(event) == 0) {
      m.misuse("cuEventDestroy of an event that is none");
      return CudaCode::invalid_value;
    }
    return decided.value_or(CudaCode::success);
  });
}

// ---- what is queued ----

CudaCode FakeCuda::copy(CudaCall kind, void* to, const void* from, std::size_t bytes, CudaStream stream) {
  return call(kind, [&](Machine& m) {
    auto* const found = m.stream(kind, stream);
    const Machine::Range source{static_cast<const std::byte*>(from), bytes};
    const Machine::Range target{static_cast<const std::byte*>(to), bytes};
    if (found == nullptr) return CudaCode::invalid_value;
    const auto check = [&](bool is_device, const Machine::Range& range) {
      if (is_device ? m.allocation_of(range) != nullptr : m.is_registered(range)) return;
      m.misuse(std::string(name_of(kind)) +
               (is_device ? " of what is no memory of a device" : " of memory that is not registered"));
    };
    check(kind != CudaCall::copy_to_device, source);
    check(kind != CudaCall::copy_to_host, target);
    m.queue(*found, {.may_start = [&m, kind] { return m.held_copies != kind; },
                     .finish = [to, from, bytes] { std::memcpy(to, from, bytes); },
                     .memory = {source, target}});
    return CudaCode::success;
  });
}

CudaCode FakeCuda::copy_to_host(void* to, const void* from, std::size_t bytes, CudaStream stream) {
  return copy(CudaCall::copy_to_host, to, from, bytes, stream);
}

CudaCode FakeCuda::copy_to_device(void* to, const void* from, std::size_t bytes, CudaStream stream) {
  return copy(CudaCall::copy_to_device, to, from, bytes, stream);
}

void FakeCuda::enqueue(CudaStream stream, Work work) {
  shared_->monitor.update([&](Machine& m) {
    const auto found = m.streams.find(m.resolve(stream));
    if (found == m.streams.end()) return m.misuse("work on a stream that is none");
    if (m.lost != CudaCode::success) return;
    m.queue(*found->second, m.operation_of(std::move(work), "a collective"));
  });
}

void FakeCuda::play(const std::string& kernel, Play play) {
  shared_->monitor.update(
      [&](Machine& m) { m.plays[kernel] = std::make_shared<const Play>(std::move(play)); });
}

CudaCode FakeCuda::load_module(CudaModule& module, const char* text) {
  return call(CudaCall::load_module, [&](Machine& m) {
    Machine::Module made{m.current_device(), {}};
    for (const auto& [name, play] : m.plays) {
      if (std::string_view(text).find(".entry " + name + "(") != std::string_view::npos)
        made.kernels[name] = std::make_unique<Machine::Kernel>(Machine::Kernel{name, play});
    }
    if (made.kernels.empty()) {
      m.misuse("cuModuleLoadData of a text without a kernel that is played");
      return CudaCode::invalid_text;
    }
    auto loaded = std::make_unique<Machine::Module>(std::move(made));
    module = reinterpret_cast<CudaModule>(loaded.get());
    m.modules[module] = std::move(loaded);
    return CudaCode::success;
  });
}

CudaCode FakeCuda::unload_module(CudaModule module) {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::unload_module, true);
    const auto found = m.modules.find(module);
    if (found == m.modules.end()) {
      m.misuse("cuModuleUnload of a module that is none");
      return CudaCode::invalid_value;
    }
    for (const auto& [name, kernel] : found->second->kernels) {
      if (m.is_in_use({reinterpret_cast<const std::byte*>(kernel.get()), 1}))
        m.misuse("a module is unloaded while its kernels run");
    }
    m.modules.erase(found);
    return decided.value_or(CudaCode::success);
  });
}

CudaCode FakeCuda::find_kernel(CudaKernel& kernel, CudaModule module, const char* name) {
  return call(CudaCall::find_kernel, [&](Machine& m) {
    const auto found = m.modules.find(module);
    if (found == m.modules.end()) return CudaCode::invalid_value;
    const auto played = found->second->kernels.find(name);
    if (played == found->second->kernels.end()) return CudaCode::not_found;
    kernel = reinterpret_cast<CudaKernel>(played->second.get());
    return CudaCode::success;
  });
}

CudaCode FakeCuda::launch(CudaKernel handle, const CudaGrid& grid, void** arguments, CudaStream stream) {
  return call(CudaCall::launch, [&](Machine& m) {
    auto* const kernel = m.kernel(handle);
    auto* const where = m.stream(CudaCall::launch, stream);
    if (kernel == nullptr || where == nullptr) return CudaCode::invalid_value;
    auto work = (*kernel->play)(grid, arguments);
    if (!work) return CudaCode::invalid_value;
    Machine::Operation operation = m.operation_of(*std::move(work), kernel->name);
    operation.memory.push_back({reinterpret_cast<const std::byte*>(kernel), 1});
    m.queue(*where, std::move(operation));
    return CudaCode::success;
  });
}

// What another library, or a kernel that is played, does.
FakeCuda::Machine::Operation FakeCuda::Machine::operation_of(Work work, const std::string& what) {
  Operation operation;
  operation.may_start = std::move(work.may_start);
  operation.finish = std::move(work.finish);
  for (const auto& [start, bytes] : work.memory) {
    const Range range{static_cast<const std::byte*>(start), bytes};
    if (allocation_of(range) == nullptr) misuse(what + " on memory that is not a device's");
    operation.memory.push_back(range);
  }
  return operation;
}

}  // namespace bps
