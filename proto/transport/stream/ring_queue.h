// A FIFO that keeps its memory: std::deque allocates and frees a block every few elements.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "proto/base/assert.h"

namespace bps {

template <class T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }

  T& front() { return (*this)[0]; }
  T& operator[](std::size_t i) { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  const T& operator[](std::size_t i) const { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  T& back() { return (*this)[size_ - 1]; }

  void push(T value) {
    if (size_ == slots_.size()) grow();
    ++size_;
    back() = std::move(value);
  }

  void pop() {
    BPS_ASSERT(size_ > 0);
    head_ = (head_ + 1) & (slots_.size() - 1);
    --size_;
  }

  void clear() { head_ = size_ = 0; }

 private:
  void grow() {
    std::vector<T> bigger(slots_.empty() ? 16 : slots_.size() * 2);
    for (std::size_t i = 0; i < size_; ++i)
      bigger[i] = std::move((*this)[i]);
    slots_ = std::move(bigger);
    head_ = 0;
  }

  std::vector<T> slots_;  // a power of two, or none
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace bps
