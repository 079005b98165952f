// Lets a stream of the program wait for an operation's end, while the host goes on.
//
// The problem: an operation ends when the network says so, which no event of the device can stand for. So the
// stream is made to wait for a word in host memory, which is written when the operation has ended, well or
// not. But a stream that waits holds up every stream that shares a hardware queue with it; if one of ours is
// among them, the operation's copies wait for the operation's end. Which queue a stream has is not told. So a
// stream waits for a word only when it has been tried out: the first wait for it is left to the host, and
// meanwhile the stream is held for a moment, in which CudaPipeline sees whether its own streams go on
// (stream_trial.h). Where that cannot be seen, it is tried again later, and the host waits until then. That a
// stream keeps its queue as long as it lives is how drivers are known to work, not what they promise; and
// streams that wait for this one are held, too, and have not been tried. Therefore CudaPipeline also breaks
// the group when its copies do not move while streams wait, and then no stream waits any more.
//
// A word's value only grows, and a stream waits until it has been passed; a word is used again when the
// stream that waited for it has gone on.
//
// Calls of the driver that may wait for all streams must not be made while one waits here, by who is needed
// to end that: shut() keeps new ones away, until reopen().
//
// Owner: by shared_ptr, CudaPipeline and whoever waits. Any thread. Limits: kWords waits at a time, one
// trial. Failure: wait() says so. A stream that has not gone on at the end still reads its word: the page is
// left to the process then.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "client/src/gpu/cuda_device.h"
#include "client/src/gpu/stream_verdicts.h"
#include "proto/base/loop/completion.h"

namespace bps {

class StreamWords : public std::enable_shared_from_this<StreamWords> {
 public:
  static constexpr std::uint32_t kWords = 1024;

  // What a stream waits for. set() ends that, at the latest the destructor.
  class Word {
   public:
    Word(std::shared_ptr<StreamWords> words, std::uint32_t index, std::uint32_t value)
        : words_(std::move(words)), index_(index), value_(value) {}
    ~Word();
    Word(const Word&) = delete;
    Word& operator=(const Word&) = delete;
    void set();

   private:
    friend class StreamWords;
    const std::shared_ptr<StreamWords> words_;
    const std::uint32_t index_;
    const std::uint32_t value_;
    std::atomic<bool> is_set_{false};
  };
  using WordPtr = std::shared_ptr<Word>;
  using Verdict = StreamVerdicts::Verdict;

  // A stream that has been asked to wait, for nothing but to be looked at.
  struct Trial {
    std::uint64_t stream = 0;     // id
    CudaEvent arrived = nullptr;  // it has come to the wait
    WordPtr word;
  };

  // `on_trial`: there is one for take_trial(); from any thread, perhaps within wait().
  static Result<std::shared_ptr<StreamWords>> create(std::shared_ptr<CudaDevice> device,
                                                     std::function<void()> on_trial);
  // `words`: kWords of them, in pages of their own that are registered.
  StreamWords(std::shared_ptr<CudaDevice> device, std::function<void()> on_trial, std::uint32_t* words,
              std::uint64_t address)
      : device_(std::move(device)), on_trial_(std::move(on_trial)), words_(words), address_(address) {}
  ~StreamWords();
  StreamWords(const StreamWords&) = delete;
  StreamWords& operator=(const StreamWords&) = delete;

  // What is queued on the stream from now on waits for the word. Null: the host has to wait, because the
  // stream holds up others, or has not been tried, or the driver cannot wait so. In the program's thread:
  // null, the default stream, and that of each thread, mean what they mean there.
  Result<WordPtr> wait(CudaStream stream);

  // The CUDA thread. Each trial that is taken ends with tried(), or with release().
  std::optional<Trial> take_trial();
  // How often this stream has been tried by now.
  std::uint32_t tried(const Trial& trial, Verdict verdict);
  // Streams that wait, but for the one on trial.
  std::uint32_t waiting() const;
  // Any thread: a stream waits, be it the one on trial.
  bool is_waited_for() const;
  // Nobody waits; and nobody begins to before reopen(), also if somebody still does.
  bool shut();
  void reopen();
  // For good: no stream waits any more.
  void release();

 private:
  struct Free {
    std::uint32_t index = 0;
    std::uint32_t value = 0;
    CudaEvent passed = nullptr;  // behind the stream's last wait for it
  };
  struct State {
    std::deque<Free> free;  // the one that was freed first is first
    std::array<CudaEvent, kWords> events{};
    std::array<std::uint32_t, kWords> values{};  // the last that were given
    std::uint32_t used = 0;                      // words that ever were
    std::uint32_t open = 0;                      // not set
    bool is_supported = true;
    bool is_followed = true;  // it is known of all streams when they have gone on
    bool is_shut = false;
    bool is_released = false;
    bool is_trying = false;
    std::optional<Trial> trial;
    StreamVerdicts verdicts;
  };
  struct Place {
    WordPtr word;
    bool is_trial = false;
  };
  static bool may_wait(const State& state, std::uint64_t stream);
  Result<Place> take(std::uint64_t stream);
  Status queue(Word& word, CudaStream stream, bool is_trial);
  Status make_event(CudaEvent& event);

  const std::shared_ptr<CudaDevice> device_;
  const std::function<void()> on_trial_;
  std::uint32_t* const words_;
  const std::uint64_t address_;  // on the device
  CudaEvent arrived_ = nullptr;  // of the trial: there is but one
  Monitor<State> state_;
};

}  // namespace bps
