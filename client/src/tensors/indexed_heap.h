// A heap of things that live elsewhere and know where they are in it: any of them can be taken out, or put
// right when its order has changed, in logarithmic time. std::priority_queue can only take out the first.
//
// Order: Key, which is compared by before(a, b); key(item); and where an item keeps its position:
// position(item) -> uint32_t&. Keys are copied into the heap, and each node has four children: with thousands
// of things each look at one, and each new position, is a cache miss. Pure. Owner: whoever orders things.
// Limits: allocates only beyond what `reserve` said; a thing is in one heap at most, and is taken out before
// it dies.
#pragma once

#include <algorithm>
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
  bool empty() const { return nodes_.empty(); }
  T& front() const { return *nodes_.front().item; }
  const typename Order::Key& front_key() const { return nodes_.front().key; }
  std::size_t capacity() const { return nodes_.capacity(); }
  void reserve(std::size_t items) { nodes_.reserve(items); }

  void push(T& item) {
    BPS_ASSERT(Order::position(item) == kNotInHeap);
    nodes_.push_back({Order::key(item), &item});
    sift_up(nodes_.size() - 1);
  }

  void remove(T& item) {
    const std::size_t hole = std::exchange(Order::position(item), kNotInHeap);
    BPS_ASSERT(hole < nodes_.size() && nodes_[hole].item == &item);
    const Node last = nodes_.back();
    nodes_.pop_back();
    if (last.item == &item) return;
    nodes_[hole] = last;
    sift(hole);
  }

  // Its key has changed.
  void reordered(T& item) {
    const std::size_t position = Order::position(item);
    nodes_[position].key = Order::key(item);
    sift(position);
  }

 private:
  static constexpr std::size_t kChildren = 4;

  struct Node {
    typename Order::Key key;
    T* item;
  };

  void put(std::size_t position, const Node& node) {
    nodes_[position] = node;
    Order::position(*node.item) = static_cast<std::uint32_t>(position);
  }

  void sift(std::size_t position) {
    const bool is_early =
        position > 0 && Order::before(nodes_[position].key, nodes_[(position - 1) / kChildren].key);
    is_early ? sift_up(position) : sift_down(position);
  }

  void sift_up(std::size_t position) {
    const Node node = nodes_[position];
    while (position > 0) {
      const std::size_t parent = (position - 1) / kChildren;
      if (!Order::before(node.key, nodes_[parent].key)) break;
      put(position, nodes_[parent]);
      position = parent;
    }
    put(position, node);
  }

  void sift_down(std::size_t position) {
    const Node node = nodes_[position];
    while (true) {
      const std::size_t first = kChildren * position + 1;
      if (first >= nodes_.size()) break;
      const std::size_t end = std::min(first + kChildren, nodes_.size());
      std::size_t best = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (Order::before(nodes_[child].key, nodes_[best].key)) best = child;
      }
      if (!Order::before(nodes_[best].key, node.key)) break;
      put(position, nodes_[best]);
      position = best;
    }
    put(position, node);
  }

  std::vector<Node> nodes_;
};

}  // namespace bps
