// What the workers of a job that shrinks may see: the sum over as many ranks as the weight says, of all who
// live and perhaps of some who are lost, the same for all who live.
//
// Owner: JobContext. Asked by all its workers; pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/error.h"
#include "tests/sim/workload.h"

namespace bps::sim {

class ShrunkAnswers {
 public:
  explicit ShrunkAnswers(const JobPlan& job) : job_(job) {}

  // From now on its contributions may be missing, and those of the ranks that it is one contributor with.
  // Nobody asks what they have seen.
  void note_lost(Rank rank);
  bool is_lost(Rank rank) const { return lost_.count(rank.value) != 0; }

  // Empty if the answer is right, else what is wrong with it. Weight: of the lightest partition.
  // `actual`: of a reduce_scatter the rank's part.
  std::string check(std::size_t tensor, std::uint64_t round, Rank rank, std::span<const std::byte> actual,
                    std::uint32_t weight);
  // A round without its root or the owner of a part, or a sum whose parts are of different ranks.
  bool may_fail(std::size_t tensor, std::uint64_t round, const Error& error) const;
  void note_failed(std::size_t tensor, std::uint64_t round, Rank rank);

  // Between those who live. Of a confirmed round some may have had the answer before its root was lost.
  std::vector<std::string> differences() const;

 private:
  struct Seen {
    std::uint64_t hash = 0;  // of the answer; 0: failed
    std::uint32_t weight = 0;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  using Key = std::pair<std::size_t, std::uint64_t>;

  using Contributors = std::vector<std::vector<std::uint32_t>>;
  std::vector<Contributors> candidates(std::size_t tensor) const;
  std::string check_sum(std::size_t tensor, std::uint64_t round, const RoundCall& how, std::size_t begin,
                        std::span<const std::byte> actual, std::uint32_t weight) const;

  const JobPlan& job_;
  std::set<std::uint32_t> lost_;
  std::map<Key, std::map<std::uint32_t, Seen>> seen_;
};

}  // namespace bps::sim
