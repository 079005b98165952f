#include "client/src/gpu/stream_words.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace bps {
namespace {

constexpr std::size_t kBytes = StreamWords::kWords * sizeof(std::uint32_t);

void store(std::uint32_t& word, std::uint32_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

StreamWords::Word::~Word() {
  set();
  words_->state_.update([&](State& state) { state.free.push_back({index_, value_, state.events[index_]}); });
}

void StreamWords::Word::set() {
  if (is_set_.exchange(true)) return;
  store(words_->words_[index_], value_);
  words_->state_.update([](State& state) { --state.open; });
}

Result<std::shared_ptr<StreamWords>> StreamWords::create(std::shared_ptr<CudaDevice> device,
                                                         std::function<void()> on_trial) {
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
  return std::make_shared<StreamWords>(std::move(device), std::move(on_trial),
                                       static_cast<std::uint32_t*>(memory), address);
}

StreamWords::~StreamWords() {
  if (device_->is_left_behind()) return;
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
  if (arrived_ != nullptr) (void)device_->api().destroy_event(arrived_);
  if (!is_passed) return;
  (void)device_->api().unregister_host(words_);
  ::munmap(words_, kBytes);
}

// Whether the stream may be made to wait now, to try it out or because it is harmless.
bool StreamWords::may_wait(const State& state, std::uint64_t stream) {
  if (!state.is_supported || state.is_shut || state.is_released) return false;
  return state.verdicts.of(stream) == Verdict::harmless ||
         (state.verdicts.is_due(stream) && !state.is_trying);
}

// The word that has been free the longest, if the stream that waited for it has gone on; else a new one.
// Null: the stream may not wait. From here on the word's destructor gives it back. The driver is asked
// between two looks at what is known: it may take its time, and the CUDA thread must not wait for that.
Result<StreamWords::Place> StreamWords::take(std::uint64_t stream) {
  std::optional<Free> taken;
  const bool may = state_.update([&](State& state) {
    if (!may_wait(state, stream)) {
      state.verdicts.passed(stream);
      return false;
    }
    if (state.free.empty()) return true;
    taken = state.free.front();
    state.free.pop_front();
    return true;
  });
  if (!may) return Place{};
  const bool is_passed =
      taken && (taken->passed == nullptr || device_->api().query_event(taken->passed) == CudaCode::success);
  return state_.update([&](State& state) -> Result<Place> {
    // Meanwhile somebody may have forbidden it, or begun a trial.
    const bool still_may = may_wait(state, stream);
    if (taken && (!is_passed || !still_may)) {
      state.free.push_front(*taken);
      taken.reset();
    }
    if (!still_may) return Place{};
    if (!taken && state.used < kWords) taken = Free{state.used++, 0, nullptr};
    if (!taken)
      return make_error(ErrorCode::out_of_memory, "more streams wait for operations than there is room for",
                        "wait on the host for some of them");
    const bool is_trial = state.verdicts.of(stream) == Verdict::unknown;
    state.is_trying = state.is_trying || is_trial;
    ++state.open;
    state.values[taken->index] = taken->value + 1;
    return Place{std::make_shared<Word>(shared_from_this(), taken->index, taken->value + 1), is_trial};
  });
}

Status StreamWords::make_event(CudaEvent& event) {
  if (event != nullptr) return {};
  return device_->check(CudaCall::create_event, device_->api().create_event(event));
}

Status StreamWords::queue(Word& word, CudaStream stream, bool is_trial) {
  CudaApi& api = device_->api();
  CudaEvent passed = state_.read([&](const State& state) { return state.events[word.index_]; });
  if (const Status status = make_event(passed); !status.ok()) return status;
  state_.update([&](State& state) { state.events[word.index_] = passed; });
  if (is_trial) {
    if (const Status status = make_event(arrived_); !status.ok()) return status;
    if (const CudaCode code = api.record_event(arrived_, stream); code != CudaCode::success)
      return device_->error(CudaCall::record_event, code);
  }
  const std::uint64_t address = address_ + word.index_ * sizeof(std::uint32_t);
  if (const CudaCode code = api.wait_value(stream, address, word.value_); code != CudaCode::success) {
    if (code == CudaCode::not_supported) state_.update([](State& state) { state.is_supported = false; });
    return device_->error(CudaCall::wait_value, code);
  }
  if (const CudaCode code = api.record_event(passed, stream); code != CudaCode::success) {
    state_.update([](State& state) { state.is_followed = false; });
    return device_->error(CudaCall::record_event, code);
  }
  return {};
}

Result<StreamWords::WordPtr> StreamWords::wait(CudaStream stream) {
  const CudaDevice::Current current(*device_);
  if (!current.status().ok()) return current.status().error();
  if (const Status status = device_->check_not_captured(stream); !status.ok()) return status.error();
  std::uint64_t id = 0;
  // Without ids a handle may be that of another stream than the one that was tried.
  const CudaCode code = device_->api().stream_id(id, stream);
  if (code == CudaCode::not_supported) return WordPtr();
  if (code != CudaCode::success) return device_->error(CudaCall::stream_id, code);
  auto taken = take(id);
  if (!taken) return taken.error();
  const Place place = std::move(taken).value();
  if (place.word == nullptr) return WordPtr();
  const Status queued = queue(*place.word, stream, place.is_trial);
  const bool is_supported = state_.read([](const State& state) { return state.is_supported; });
  if (!place.is_trial) {
    if (!queued.ok() && is_supported) return queued.error();
    return queued.ok() ? place.word : WordPtr();
  }
  // A group that has been released meanwhile tries nothing.
  const bool is_offered = state_.update([&](State& state) {
    state.is_trying = queued.ok() && !state.is_released;
    if (state.is_trying) state.trial = Trial{id, arrived_, place.word};
    return state.is_trying;
  });
  if (!queued.ok() && is_supported) return queued.error();
  if (is_offered) on_trial_();
  return WordPtr();
}

std::optional<StreamWords::Trial> StreamWords::take_trial() {
  return state_.update([](State& state) { return std::exchange(state.trial, std::nullopt); });
}

std::uint32_t StreamWords::tried(const Trial& trial, Verdict verdict) {
  // Who sees the stream go on may ask for the next wait.
  const std::uint32_t trials = state_.update([&](State& state) {
    state.is_trying = false;
    return state.verdicts.tried(trial.stream, verdict);
  });
  trial.word->set();
  return trials;
}

std::uint32_t StreamWords::waiting() const {
  return state_.read([](const State& state) { return state.open - (state.is_trying ? 1 : 0); });
}

bool StreamWords::is_waited_for() const {
  return state_.read([](const State& state) { return state.open > 0 && !state.is_released; });
}

bool StreamWords::shut() {
  return state_.update([](State& state) {
    state.is_shut = true;
    return state.open == 0 || state.is_released;
  });
}

void StreamWords::reopen() {
  state_.update([](State& state) { state.is_shut = false; });
}

void StreamWords::release() {
  // Its word comes back here, which must not be under the lock.
  const auto trial = state_.update([&](State& state) {
    state.is_released = true;
    for (std::uint32_t index = 0; index < state.used; ++index)
      store(words_[index], state.values[index]);
    return std::exchange(state.trial, std::nullopt);
  });
}

}  // namespace bps
