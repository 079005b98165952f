#include "bench/engines/messages.h"

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("messages: what arrives of a send, a scatter, and a gather") {
  const MessageRound send{ExchangeUse::send, {8, 4, 4}};
  CHECK(arrivals(send, 0, 0) == std::vector<Arrival>{{2, 0, 0, 16}});
  CHECK(arrivals(send, 2, 0) == std::vector<Arrival>{{1, 0, 0, 16}});
  const MessageRound scatter{ExchangeUse::scatter, {8, 4, 4}};
  CHECK(arrivals(scatter, 1, 2) == std::vector<Arrival>{{2, 8, 8, 4}});
  CHECK(arrivals(scatter, 2, 2) == std::vector<Arrival>{{2, 12, 12, 4}});
  const MessageRound gather{ExchangeUse::gather, {8, 4, 4}};
  CHECK(arrivals(gather, 1, 2).empty());
  CHECK(arrivals(gather, 2, 2) == std::vector<Arrival>{{0, 0, 0, 8}, {1, 8, 8, 4}, {2, 12, 12, 4}});
}

TEST_CASE("messages: all_to_all gives and takes whole tensors of unequal parts") {
  const MessageRound round{ExchangeUse::all_to_all, {8, 4, 12}};
  CHECK(lengths_at(round, 1) == std::vector<std::uint64_t>{4, 12, 8});
  CHECK(arrivals(round, 1, 0) == std::vector<Arrival>{{0, 8, 0, 4}, {1, 4, 4, 12}, {2, 12, 16, 8}});
  for (std::uint32_t taker = 0; taker < 3; ++taker) {
    std::uint64_t bytes = 0;
    for (const Arrival& arrival : arrivals(round, taker, 0)) {
      CHECK(arrival.at_taker == bytes);
      CHECK(arrival.bytes == lengths_at(round, arrival.giver)[taker]);
      bytes += arrival.bytes;
    }
    CHECK(bytes == 24);
  }
}

}  // namespace bps::bench
