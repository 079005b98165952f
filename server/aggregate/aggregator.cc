#include "server/aggregate/aggregator.h"

#include <utility>

#include "server/aggregate/async_aggregator.h"
#include "server/aggregate/sync_aggregator.h"

namespace bps {

std::uint64_t reserved_bytes(DType dtype, std::uint64_t elements, Mode mode) {
  const auto held = [](std::uint64_t bytes) {
    return BufferPool::class_bytes(std::max<std::uint64_t>(bytes, 1));
  };
  const std::uint64_t slot = held(elements * reduce::accumulator_size(dtype));
  return mode == Mode::sync ? 2 * slot : slot + held(elements * size_of(dtype));
}

SlotReservations reserve_slots(BufferPool& slots, DType dtype, std::uint64_t elements, Mode mode) {
  const auto reserve = [&](std::uint64_t bytes, std::size_t count) {
    return slots.reserve(std::max<std::size_t>(bytes, 1), count);
  };
  SlotReservations reserved;
  const std::uint64_t slot = elements * reduce::accumulator_size(dtype);
  reserved[0] = reserve(slot, mode == Mode::sync ? 2 : 1);
  if (mode == Mode::async) reserved[1] = reserve(elements * size_of(dtype), 1);
  return reserved;
}

std::unique_ptr<Aggregator> Aggregator::create(PartitionShape shape,
                                               std::span<const Contributor> contributors,
                                               AggregatorMemory memory) {
  if (shape.mode == Mode::async) {
    return std::make_unique<AsyncAggregator>(std::move(shape), contributors, memory);
  }
  return std::make_unique<SyncAggregator>(std::move(shape), contributors, memory);
}

std::string to_string(const Contributor& contributor) {
  std::string text = "rank " + std::to_string(contributor.rank.value);
  std::string others;
  for (const Rank member : contributor.members) {
    if (member != contributor.rank) others += (others.empty() ? "" : ", ") + std::to_string(member.value);
  }
  return others.empty() ? text : text + " (with " + others + " of its host)";
}

std::string Aggregator::describe(Round round) const {
  return "round " + std::to_string(round.value) + " of " + shape_.tensor + " (partition " +
         std::to_string(shape_.partition.value) + ")";
}

std::string Aggregator::describe_rank(std::uint32_t contributor) const {
  return to_string(contributors_[contributor]);
}

Error Aggregator::length_error(std::uint32_t contributor, Round round, std::uint64_t bytes,
                               std::uint64_t expected) const {
  return make_error(ErrorCode::protocol,
                    describe(round) + ": " + describe_rank(contributor) + " pushed " + std::to_string(bytes) +
                        " bytes, declared are " + std::to_string(expected),
                    "push as many elements as were declared");
}

Error Aggregator::weight_error(std::uint32_t contributor, Round round, std::uint32_t weight) const {
  return make_error(ErrorCode::protocol,
                    describe(round) + ": " + describe_rank(contributor) + " claims a weight of " +
                        std::to_string(weight) + ", the scheduler gave it " +
                        std::to_string(contributors_[contributor].weight),
                    "use the same bps version on all ranks");
}

Error Aggregator::order_error(std::uint32_t contributor, Round round, Round expected) const {
  const bool ahead = round > expected;
  return make_error(ErrorCode::protocol,
                    describe(round) + ": " + describe_rank(contributor) +
                        (ahead ? " is ahead: " : " is stale: ") + "round " + std::to_string(expected.value) +
                        (ahead ? " is not complete" : " is under way"),
                    "a worker pushes a round after it has stored the one before; use the same bps version "
                    "on all ranks");
}

Error Aggregator::root_lost_error(std::uint32_t root, Round round) const {
  return make_error(
      ErrorCode::peer_lost,
      describe(round) + " can never complete: the root of the broadcast is lost: " + contributors_[root].loss,
      "broadcast from a rank that is there, or start the job again");
}

Error Aggregator::no_root_error(Rank root, Round round) const {
  if (shape_.had_losses) {
    return make_error(ErrorCode::peer_lost,
                      describe(round) + " can never complete: the root of the broadcast is lost: rank " +
                          std::to_string(root.value) + " is not in the job any more",
                      "broadcast from a rank that is there, or start the job again");
  }
  return make_error(ErrorCode::configuration,
                    describe(round) + ": the root of the broadcast, rank " + std::to_string(root.value) +
                        ", is not among the contributors",
                    "use the rank of a worker of this job as root");
}

void Aggregator::emit(Actions& actions, Action::Kind kind, std::uint32_t contributor, Round round,
                      Error error) {
  Action& action = actions.emplace_back();
  action.kind = kind;
  action.contributor = contributor;
  action.round = round;
  action.error = std::move(error);
}

}  // namespace bps
