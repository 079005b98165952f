// Which contribution goes next.
//
// Of the lanes of one data thread; with one, which is the rule, of all.
//
// The problem: priority must hold over all lanes, yet a full lane must not stop the others; and what has been
// handed to the network cannot be overtaken any more, so only little of it may be under way. One order for
// all of them is kept: items without payload, then priority, then the turn. In rounds, whose ranks should all
// send the same at the same time, that is the earlier declared tensor, then the order of its partitions;
// messages come after them (MessageTurns). A receive has no payload: sent first, its answer arrives while
// this rank sends. There is one heap per lane, and a heap of the lanes that can take more and have something,
// by their best. The best of all is released, however many lanes there are in logarithmic time, paced by a
// credit: payload bytes sent and not yet reported as taken by the servers. Credit paces and never blocks: it
// comes back when a server has taken or refused the payload, never with an answer, and one partition may
// always be under way, however small the credit. A rank that waits for messages has up to four times as much:
// what others send fills the way to it, and the servers' reports wait behind that. (An all_to_all of 4 ranks
// at 500 Mbit/s takes 1.5 times the least possible without this, 1.05 times with it.)
//
// Pure. Owner: LaneSet. Lives on: client loop. Limits: heaps are as large as `reserve` said; items are
// linked, not copied, and must be removed before they die.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "client/src/tensors/indexed_heap.h"
#include "proto/base/ids.h"
#include "proto/wire/limits.h"

namespace bps {

struct SendItem {
  std::int32_t priority = 0;  // higher goes first
  std::uint64_t turn = 0;     // then lower
  LaneIndex lane;
  std::uint32_t cost = 0;               // payload bytes of the contribution
  std::uint32_t position = kNotInHeap;  // in its lane's heap

  bool queued() const { return position != kNotInHeap; }
};

constexpr std::uint64_t round_turn(TensorId tensor) { return std::uint64_t{tensor.value} << 32; }
inline constexpr std::uint64_t kMessageTurns = round_turn(TensorId{kMaxTensorsPerJob});

class ContributionQueue {
 public:
  explicit ContributionQueue(std::uint64_t credit_bytes = 0) : credit_bytes_(credit_bytes) {}

  // Before anything is queued.
  void set_credit(std::uint64_t bytes) { credit_bytes_ = bytes; }

  // Lanes begin not ready. Before anything else; later there may be more, never fewer.
  void set_lane_count(std::size_t lanes);
  // Room for `more` items of the lane, so that push does not allocate.
  void reserve(LaneIndex lane, std::size_t more);
  // They come no more.
  void release(LaneIndex lane, std::size_t fewer) { at(lane).reserved -= fewer; }

  void push(SendItem& item);
  // Fine if it is not queued.
  void remove(SendItem& item);

  // A lane that is not ready keeps its items.
  void set_ready(LaneIndex lane, bool ready);

  // The next item to send, removed from the queue and its cost counted as under way; nullptr when no
  // ready lane has one or the best of them does not fit the credit.
  // `awaited_bytes`: of messages to this rank.
  SendItem* pop(std::uint64_t awaited_bytes = 0);

  // What pop() gave last is not sent: its cost does not count, and it is not in the queue.
  void take_back(const SendItem& item);

  // Payload that goes out on the lane without having been queued here.
  void count_sent(LaneIndex lane, std::uint64_t bytes);

  // The server has taken or refused `taken` payload bytes in this session of the lane. False if that is less
  // than it said before or more than was sent: the peer is broken.
  [[nodiscard]] bool on_taken(LaneIndex lane, std::uint64_t taken);

  // The lane's session is over: what was under way on it no longer counts. The next session counts from 0.
  void end_session(LaneIndex lane);

  std::uint64_t under_way_bytes() const { return under_way_bytes_; }
  bool empty() const { return queued_ == 0; }

 private:
  struct Key {
    bool has_payload = false;
    std::int32_t priority = 0;
    std::uint64_t turn = 0;
  };
  struct ItemOrder {
    using Key = ContributionQueue::Key;
    static Key key(const SendItem& item) { return {item.cost > 0, item.priority, item.turn}; }
    static bool before(const Key& a, const Key& b) {
      if (a.has_payload != b.has_payload) return !a.has_payload;
      if (a.priority != b.priority) return a.priority > b.priority;
      return a.turn < b.turn;
    }
    static std::uint32_t& position(SendItem& item) { return item.position; }
  };
  struct Lane {
    IndexedHeap<SendItem, ItemOrder> heap;
    std::size_t reserved = 0;
    bool ready = false;
    std::uint32_t position = kNotInHeap;  // among those that are ready and have something
    std::uint64_t sent = 0;               // payload bytes, this session
    std::uint64_t taken = 0;              // of them
  };
  struct LaneOrder {
    using Key = ContributionQueue::Key;
    static Key key(const Lane& lane) { return lane.heap.front_key(); }
    static bool before(const Key& a, const Key& b) { return ItemOrder::before(a, b); }
    static std::uint32_t& position(Lane& lane) { return lane.position; }
  };

  Lane& at(LaneIndex lane) { return lanes_[lane.value]; }
  // Its first item is another one, or it has become ready.
  void put_right(Lane& lane);
  void leave(Lane& lane);

  static constexpr std::uint64_t kMostMore = 3;  // credits for a rank that waits for messages

  std::uint64_t credit_bytes_;
  std::uint64_t under_way_bytes_ = 0;
  std::size_t queued_ = 0;
  std::deque<Lane> lanes_;  // they stay where they are
  IndexedHeap<Lane, LaneOrder> ready_;
};

}  // namespace bps
