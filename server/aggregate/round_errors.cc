#include "server/aggregate/round_errors.h"

#include <fmt/core.h>

#include "proto/base/call_names.h"

namespace bps {

std::string RoundErrors::describe(Round round) const {
  return "round " + std::to_string(round.value) + " of " + shape_.tensor + " (partition " +
         std::to_string(shape_.partition.value) + ")";
}

std::string RoundErrors::describe(Round round, std::uint64_t number) const {
  const std::string group = describe_group(shape_.tensor);
  return number == 0 || group.empty() ? describe(round) : fmt::format("{}: call number {}", group, number);
}

std::string RoundErrors::describe_rank(std::uint32_t contributor) const {
  return to_string(contributors_[contributor]);
}

Error RoundErrors::length(std::uint32_t contributor, Round round, std::uint64_t bytes,
                          std::uint64_t expected) const {
  return make_error(ErrorCode::protocol,
                    describe(round) + ": " + describe_rank(contributor) + " pushed " + std::to_string(bytes) +
                        " bytes, the partition has " + std::to_string(expected),
                    "use the same bps version on all ranks");
}

Error RoundErrors::weight(std::uint32_t contributor, Round round, std::uint32_t weight) const {
  return make_error(ErrorCode::protocol,
                    describe(round) + ": " + describe_rank(contributor) + " claims a weight of " +
                        std::to_string(weight) + ", the scheduler gave it " +
                        std::to_string(contributors_[contributor].weight),
                    "use the same bps version on all ranks");
}

Error RoundErrors::type(std::uint32_t contributor, Round round, Operation operation) const {
  return make_error(ErrorCode::configuration,
                    describe(round) + ": " + describe_rank(contributor) + " calls " +
                        std::string(name_of(operation)) + ", which " + std::string(name_of(shape_.dtype)) +
                        " does not have",
                    "use an integer tensor");
}

Error RoundErrors::kind(std::uint32_t contributor, Round round, const RoundCall& call) const {
  return make_error(ErrorCode::configuration,
                    describe(round) + ": " + describe_rank(contributor) + " calls " + to_string(call) +
                        ", which an asynchronous tensor does not have",
                    "declare the tensor synchronous, or use push_pull");
}

Error RoundErrors::dtype(std::uint32_t contributor, Round round, DType dtype) const {
  return make_error(ErrorCode::configuration,
                    describe(round) + ": " + describe_rank(contributor) + " pushes " +
                        std::string(name_of(dtype)) + ", declared is " + std::string(name_of(shape_.dtype)),
                    "use the same bps version on all ranks");
}

Error RoundErrors::order(std::uint32_t contributor, Round round, Round expected) const {
  const bool ahead = round > expected;
  return make_error(ErrorCode::protocol,
                    describe(round) + ": " + describe_rank(contributor) +
                        (ahead ? " is ahead: " : " is stale: ") + "round " + std::to_string(expected.value) +
                        (ahead ? " is not complete" : " is under way"),
                    "a worker pushes a round after it has stored the one before; use the same bps version "
                    "on all ranks");
}

Error RoundErrors::differ(Round round, std::uint32_t one, const std::string& calls, std::uint32_t other,
                          const std::string& other_calls) const {
  const std::string group = describe_group(shape_.tensor);
  const std::string where = group.empty() ? describe(round) : group;
  return make_error(ErrorCode::configuration,
                    where + ": " + describe_rank(one) + " calls " + calls + ", " + describe_rank(other) +
                        " calls " + other_calls,
                    "call the same on all ranks, in the same order; " + how_to_go_on(shape_.tensor));
}

void RoundErrors::note_dropped(std::uint32_t contributor) {
  if (contributor >= dropped_.size()) dropped_.resize(contributor + 1);
  dropped_[contributor] = true;
}

Error RoundErrors::left(std::uint32_t contributor, Round round, std::uint64_t number) const {
  const bool drops = has_dropped(contributor);
  return make_error(ErrorCode::configuration,
                    describe(round, number) + " can never complete: " + describe_rank(contributor) +
                        (drops ? " has dropped the tensor" : " has left the job"),
                    std::string("let all ranks push the same number of rounds before one ") +
                        (drops ? "drops it" : "closes its client"));
}

namespace {

// "the root of the broadcast", "the owner of a part of the all_gather"
std::string root_of(const RoundCall& call) {
  return std::string(call.is_of_parts() ? "the owner of a part of the " : "the root of the ") +
         name_of(call.kind);
}

Error lost_root(const RoundCall& call, const std::string& round, const std::string& why) {
  return make_error(
      ErrorCode::peer_lost, round + " can never complete: " + root_of(call) + " is lost: " + why,
      call.is_of_parts() ? "drop the tensor and declare it again without elements for that rank, or start "
                           "the job again"
                         : "use a rank that is there as root, or start the job again");
}

}  // namespace

Error RoundErrors::root_lost(std::uint32_t root, const RoundCall& call, Round round) const {
  return lost_root(call, describe(round), contributors_[root].loss);
}

Error RoundErrors::receiver_lost(std::uint32_t receiver, Round round) const {
  const std::string why =
      receiver == kNobody ? "it is not in the job any more" : contributors_[receiver].loss;
  return make_error(ErrorCode::peer_lost,
                    describe(round) + " can never complete: its receiver is lost: " + why,
                    "send to ranks that are there, or start the job again");
}

Error RoundErrors::root_left(std::uint32_t root, Round round) const {
  const bool drops = has_dropped(root);
  return make_error(
      ErrorCode::configuration,
      describe(round) + " can never complete: its root, " + describe_rank(root) +
          (drops ? ", has dropped the tensor" : ", has left the job"),
      std::string("let the root broadcast before it ") + (drops ? "drops the tensor" : "closes its client"));
}

Error RoundErrors::no_root(const RoundCall& call, Rank root, Round round) const {
  const std::string rank = "rank " + std::to_string(root.value);
  if (shape_.had_losses) return lost_root(call, describe(round), rank + " is not in the job any more");
  return make_error(ErrorCode::configuration,
                    describe(round) + ": " + root_of(call) + ", " + rank + ", is not among the contributors",
                    call.is_of_parts() ? "declare parts for the ranks of this job"
                                       : "use the rank of a worker of this job as root");
}

Error RoundErrors::no_parts(std::uint32_t contributor, Round round, const RoundCall& call) const {
  return make_error(ErrorCode::configuration,
                    describe(round) + ": " + describe_rank(contributor) + " calls " + to_string(call) +
                        " on a tensor that has no parts",
                    "declare it with parts on all ranks");
}

Error RoundErrors::short_call(std::uint32_t contributor, Round round, const RoundCall& call,
                              std::uint64_t count) const {
  return make_error(ErrorCode::configuration,
                    describe(round) + ": " + describe_rank(contributor) + " calls " + to_string(call) +
                        " of " + std::to_string(count) + " elements, which are not all",
                    "use the same bps version on all ranks");
}

Error RoundErrors::scale(std::uint32_t contributor, Round round, std::uint64_t number,
                         const std::string& why) const {
  return make_error(ErrorCode::invalid_argument,
                    describe(round, number) + ": what " + describe_rank(contributor) + " gives " + why,
                    "give weights that are 0 or more, and factors that are finite in the type of the sum");
}

Error RoundErrors::overflow(Round round, std::uint64_t number) const {
  return make_error(ErrorCode::invalid_argument,
                    describe(round, number) + ": the sum of which the average is taken is beyond i64",
                    "average smaller numbers, or f64");
}

Error RoundErrors::no_divisor(Round round, std::uint64_t number, double divisor) const {
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("{}: the weights of the average add up to {}", describe(round, number), divisor),
      "give weights whose sum is above 0, and finite in the type of the sum");
}

Error RoundErrors::nobody_has(Round round) const {
  return make_error(
      ErrorCode::peer_lost,
      describe(round) + " is lost: its server is gone, and whoever has stored it has left the job",
      "close all clients only when the last round is over everywhere");
}

}  // namespace bps
