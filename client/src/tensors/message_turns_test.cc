#include "client/src/tensors/message_turns.h"

#include <catch2/catch.hpp>
#include <deque>
#include <vector>

#include "client/src/tensors/contribution_queue.h"

namespace bps {
namespace {

// Messages of one rank, which go out over one lane.
struct OneLane {
  struct Sent {
    std::uint32_t to;
    int message;
    friend bool operator==(const Sent&, const Sent&) = default;
  };
  struct Item : SendItem {
    Sent what;
  };

  OneLane() {
    queue.set_lane_count(1);
    queue.set_ready(LaneIndex{0}, true);
  }

  void begin(std::uint32_t to, int message, std::size_t partitions) {
    const std::uint64_t first = turns.begin(Rank{to}, partitions);
    for (std::size_t i = 0; i < partitions; ++i) {
      Item& item = items.emplace_back();
      item.turn = kMessageTurns + first + i;
      item.cost = 1;
      item.what = {to, message};
      queue.push(item);
    }
  }

  std::vector<Sent> send(std::size_t count) {
    std::vector<Sent> out;
    while (out.size() < count) {
      const auto* item = static_cast<const Item*>(queue.pop());
      if (item == nullptr) break;
      turns.on_going(item->turn - kMessageTurns);
      out.push_back(item->what);
    }
    return out;
  }

  std::vector<int> counts(std::size_t count, std::uint32_t ranks) {
    std::vector<int> out(ranks);
    for (const Sent& sent : send(count))
      ++out[sent.to];
    return out;
  }

  MessageTurns turns;
  ContributionQueue queue{~0ull};
  std::deque<Item> items;
};

}  // namespace

TEST_CASE("message turns: all receivers are given to at the same time, each one message after the other") {
  OneLane w;
  w.begin(0, 1, 100);
  w.begin(0, 2, 100);
  w.begin(1, 3, 150);
  w.begin(2, 4, 100);
  CHECK(w.counts(150, 3) == std::vector<int>{50, 50, 50});
  CHECK(w.counts(150, 3) == std::vector<int>{50, 50, 50});
  // Rank 2 has all of its message.
  CHECK(w.counts(100, 3) == std::vector<int>{50, 50, 0});
  std::vector<OneLane::Sent> last = w.send(1000);
  CHECK(last == std::vector<OneLane::Sent>(50, {0, 2}));
}

TEST_CASE(
    "message turns: a short message to another rank does not wait for a long one, and not the reverse") {
  OneLane w;
  w.begin(0, 1, 1000);
  CHECK(w.send(500).size() == 500);
  for (int i = 0; i < 100; ++i) {
    w.begin(1, 2 + i, 1);
    const std::vector<int> counts = w.counts(2, 2);
    CHECK(counts == std::vector<int>{1, 1});
  }
}

TEST_CASE("message turns: a rank that was given nothing for long is owed nothing") {
  OneLane w;
  w.begin(1, 1, 1);
  w.begin(0, 2, 1000);
  CHECK(w.send(801).size() == 801);
  w.begin(1, 3, 100);
  CHECK(w.counts(100, 2) == std::vector<int>{50, 50});
}

}  // namespace bps
