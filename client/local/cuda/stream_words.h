// Lets a stream of the program wait for an operation's end, while the host goes on.
//
// The problem: an operation ends when the network says so, which no event of the device can stand for. So the
// stream is made to wait for a word in host memory, which is written when the operation has ended, well or
// not.
//
// A word's value only grows, and a stream waits until it has been passed; a word is used again when the
// stream that waited for it has gone on. Streams must not wait so where that holds up other streams (one
// hardware queue): the copies that the operation needs would wait for its end. CudaPipeline tries that out
// with streams of ours when it begins. Which queue a stream of the program's has is not told: where it shares
// one with ours all the same, neither goes on until the word is set.
//
// Owner: by shared_ptr, CudaPipeline and whoever waits. Any thread. Limits: kWords waits at a time. Failure:
// wait() says so, and the host has to wait. A stream that has not gone on at the end still reads its word:
// the page is left to the process then.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "client/local/cuda/cuda_device.h"
#include "proto/base/completion.h"

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
    const std::shared_ptr<StreamWords> words_;
    const std::uint32_t index_;
    const std::uint32_t value_;
  };

  static Result<std::shared_ptr<StreamWords>> create(std::shared_ptr<CudaDevice> device);
  // `words`: kWords of them, in pages of their own that are registered.
  StreamWords(std::shared_ptr<CudaDevice> device, std::uint32_t* words, std::uint64_t address)
      : device_(std::move(device)), words_(words), address_(address) {}
  ~StreamWords();
  StreamWords(const StreamWords&) = delete;
  StreamWords& operator=(const StreamWords&) = delete;

  // What is queued on the stream from now on waits for the word; null: the default stream.
  Result<std::shared_ptr<Word>> wait(CudaStream stream);
  // False: the driver has said that it cannot.
  bool is_supported() const;
  // All streams that have waited so far are known to have gone on, or to be lost.
  void all_gone_on();

 private:
  struct Free {
    std::uint32_t index = 0;
    std::uint32_t value = 0;
    CudaEvent passed = nullptr;  // behind the stream's last wait for it
  };
  struct State {
    std::deque<Free> free;  // the one that was freed first is first
    std::deque<CudaEvent> events = std::deque<CudaEvent>(kWords, nullptr);
    std::uint32_t used = 0;  // words that ever were
    bool is_supported = true;
    bool is_followed = true;  // it is known of all streams when they have gone on
  };
  Result<Free> take();

  const std::shared_ptr<CudaDevice> device_;
  std::uint32_t* const words_;
  const std::uint64_t address_;  // on the device
  Monitor<State> state_;
};

}  // namespace bps
