#include "client/local/cuda/stream_words.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>

namespace bps {
namespace {

constexpr std::size_t kBytes = StreamWords::kWords * sizeof(std::uint32_t);

}  // namespace

StreamWords::Word::~Word() {
  set();
  words_->state_.update([&](State& state) { state.free.push_back({index_, value_, state.events[index_]}); });
}

void StreamWords::Word::set() {
  std::atomic_ref(words_->words_[index_]).store(value_, std::memory_order_release);
}

Result<std::shared_ptr<StreamWords>> StreamWords::create(std::shared_ptr<CudaDevice> device) {
  CudaApi& api = device->api();
  const CudaDevice::Current current(*device);
  if (!current.status().ok()) return current.status().error();
  // Not a Region: it may have to stay when this has gone.
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) return os_error("memory for streams to wait on", errno);
  // A child would make the next write here go to another page than the one that the GPU has.
  if (::madvise(memory, kBytes, MADV_DONTFORK) != 0) {
    const Error error = os_error("memory that children do not get", errno);
    ::munmap(memory, kBytes);
    return error;
  }
  CudaCode code = api.register_host(memory, kBytes);
  if (code != CudaCode::success) {
    ::munmap(memory, kBytes);
    return device->error(CudaCall::register_host, code);
  }
  std::uint64_t address = 0;
  code = api.device_address(address, memory);
  if (code != CudaCode::success) {
    (void)api.unregister_host(memory);
    ::munmap(memory, kBytes);
    return device->error(CudaCall::device_address, code);
  }
  return std::make_shared<StreamWords>(std::move(device), static_cast<std::uint32_t*>(memory), address);
}

StreamWords::~StreamWords() {
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) return;
  bool is_passed = true;
  state_.update([&](State& state) {
    is_passed = state.is_followed;
    for (CudaEvent& event : state.events) {
      if (event == nullptr) continue;
      is_passed = is_passed && device_->api().query_event(event) != CudaCode::not_ready;
      (void)device_->api().destroy_event(event);
    }
  });
  if (!is_passed) return;
  (void)device_->api().unregister_host(words_);
  ::munmap(words_, kBytes);
}

// The word that has been free the longest, if the stream that waited for it has gone on; else a new one.
Result<StreamWords::Free> StreamWords::take() {
  return state_.update([&](State& state) -> Result<Free> {
    if (!state.free.empty()) {
      const Free first = state.free.front();
      if (first.passed == nullptr || device_->api().query_event(first.passed) == CudaCode::success) {
        state.free.pop_front();
        return Free{first.index, first.value + 1, first.passed};
      }
    }
    if (state.used < kWords) return Free{state.used++, 1, nullptr};
    return make_error(ErrorCode::out_of_memory, "more streams wait for operations than there is room for",
                      "wait on the host for some of them");
  });
}

Result<std::shared_ptr<StreamWords::Word>> StreamWords::wait(CudaStream stream) {
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) return current.status().error();
  if (const Status status = device_->check_not_captured(stream); !status.ok()) return status.error();
  auto taken = take();
  if (!taken) return taken.error();
  // From here on its destructor gives the word back.
  auto made = std::make_shared<Word>(shared_from_this(), taken->index, taken->value);
  CudaApi& api = device_->api();
  CudaEvent passed = taken->passed;
  if (passed == nullptr) {
    if (const CudaCode code = api.create_event(passed); code != CudaCode::success)
      return device_->error(CudaCall::create_event, code);
    state_.update([&](State& state) { state.events[taken->index] = passed; });
  }
  const std::uint64_t address = address_ + taken->index * sizeof(std::uint32_t);
  if (const CudaCode code = api.wait_value(stream, address, taken->value); code != CudaCode::success) {
    if (code == CudaCode::not_supported) state_.update([](State& state) { state.is_supported = false; });
    return device_->error(CudaCall::wait_value, code);
  }
  if (const CudaCode code = api.record_event(passed, stream); code != CudaCode::success) {
    state_.update([](State& state) { state.is_followed = false; });
    return device_->error(CudaCall::record_event, code);
  }
  return made;
}

void StreamWords::all_gone_on() {
  state_.update([](State& state) { state.is_followed = true; });
}

bool StreamWords::is_supported() const {
  return state_.read([](const State& state) { return state.is_supported; });
}

}  // namespace bps
