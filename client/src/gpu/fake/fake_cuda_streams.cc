// Streams, events and captures of FakeCuda.
#include <utility>

#include "client/src/gpu/fake/fake_machine.h"

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

}  // namespace bps
