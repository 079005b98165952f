// A binary heap of things that live elsewhere and know where they are in it: any of them can be taken out, or
// put right when its order has changed, in logarithmic time. std::priority_queue can only take out the first.
//
// Order: how they are compared and where they keep their position: before(a, b), position(item) -> uint32_t&.
// Pure. Owner: whoever orders things. Limits: allocates only beyond what `reserve` said; a thing is in one
// heap at most, and is taken out before it dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "proto/base/assert.h"

namespace bps {

inline constexpr std::uint32_t kNotInHeap = 0xffffffff;

template <class T, class Order>
class IndexedHeap {
 public:
  bool empty() const { return items_.empty(); }
  T& front() const { return *items_.front(); }
  std::size_t capacity() const { return items_.capacity(); }
  void reserve(std::size_t items) { items_.reserve(items); }

  void push(T& item) {
    BPS_ASSERT(Order::position(item) == kNotInHeap);
    items_.push_back(&item);
    sift_up(items_.size() - 1);
  }

  void remove(T& item) {
    const std::size_t hole = std::exchange(Order::position(item), kNotInHeap);
    BPS_ASSERT(hole < items_.size() && items_[hole] == &item);
    T* const last = items_.back();
    items_.pop_back();
    if (last == &item) return;
    put(hole, last);
    reordered(*last);
  }

  // It goes earlier or later than before.
  void reordered(T& item) {
    sift_down(Order::position(item));
    sift_up(Order::position(item));
  }

 private:
  void put(std::size_t position, T* item) {
    items_[position] = item;
    Order::position(*item) = static_cast<std::uint32_t>(position);
  }

  void sift_up(std::size_t position) {
    T* const item = items_[position];
    while (position > 0) {
      const std::size_t parent = (position - 1) / 2;
      if (!Order::before(*item, *items_[parent])) break;
      put(position, items_[parent]);
      position = parent;
    }
    put(position, item);
  }

  void sift_down(std::size_t position) {
    T* const item = items_[position];
    while (true) {
      std::size_t child = 2 * position + 1;
      if (child >= items_.size()) break;
      if (child + 1 < items_.size() && Order::before(*items_[child + 1], *items_[child])) ++child;
      if (!Order::before(*items_[child], *item)) break;
      put(position, items_[child]);
      position = child;
    }
    put(position, item);
  }

  std::vector<T*> items_;
};

}  // namespace bps
