#include "client/src/gpu/nccl/testing/fake_world.h"

#include <fmt/format.h>

#include <cstring>

#include "proto/reduce/reduce.h"

namespace bps {
namespace {

using Step = FakeNccl::Step;
using Shared = FakeNcclWorld::Shared;

DType dtype_of(NcclType type) {
  switch (type) {
    case NcclType::i8: return DType::i8;
    case NcclType::u8: return DType::u8;
    case NcclType::i32: return DType::i32;
    case NcclType::i64: return DType::i64;
    case NcclType::f16: return DType::f16;
    case NcclType::f32: return DType::f32;
    case NcclType::f64: return DType::f64;
    case NcclType::bf16: return DType::bf16;
  }
  return DType::f32;
}

Operation operation_of(NcclOperation operation) {
  switch (operation) {
    case NcclOperation::sum: return Operation::sum;
    case NcclOperation::product: return Operation::product;
    case NcclOperation::max: return Operation::max;
    case NcclOperation::min: return Operation::min;
  }
  return Operation::sum;
}

std::size_t bytes_of(const Step& step) { return step.count * size_of(dtype_of(step.type)); }

const std::byte* at(const void* memory, std::size_t offset) {
  return static_cast<const std::byte*>(memory) + offset;
}
std::byte* at(void* memory, std::size_t offset) { return static_cast<std::byte*>(memory) + offset; }

bool is_nan(DType dtype, const std::byte* element) {
  const auto bits = [&](auto kind) {
    std::memcpy(&kind, element, sizeof(kind));
    return kind;
  };
  switch (dtype) {
    case DType::f16: return (bits(std::uint16_t()) & 0x7fff) > 0x7c00;
    case DType::bf16: return (bits(std::uint16_t()) & 0x7fff) > 0x7f80;
    case DType::f32: return (bits(std::uint32_t()) & 0x7fffffff) > 0x7f800000;
    case DType::f64: return (bits(std::uint64_t()) & 0x7fffffffffffffff) > 0x7ff0000000000000;
    default: return false;
  }
}

// Of one element of each rank; a NaN counts where there is nothing else.
void compare(DType dtype, Operation operation, std::vector<const std::byte*> inputs, std::byte* out) {
  const std::byte* const first = inputs.front();
  std::erase_if(inputs, [&](const std::byte* input) { return is_nan(dtype, input); });
  if (inputs.empty()) inputs.push_back(first);
  std::byte memory[8] = {};
  const std::vector<const std::byte*> others(inputs.begin() + 1, inputs.end());
  reduce::finish(dtype, operation, memory, nullptr, others, 1, 1, inputs.front());
  std::memcpy(out, memory, size_of(dtype));
}

// Of the elements at `offset`, of all ranks, into `out`.
void sum(const Shared::Slot& slot, std::size_t offset, void* out) {
  const Step& first = *slot.came.front();
  const DType dtype = dtype_of(first.type);
  if (first.operation == NcclOperation::min || first.operation == NcclOperation::max) {
    std::vector<std::byte> all(bytes_of(first));
    for (std::size_t i = 0; i < all.size(); i += size_of(dtype)) {
      std::vector<const std::byte*> elements;
      for (const auto& came : slot.came)
        elements.push_back(at(came->in, offset + i));
      compare(dtype, operation_of(first.operation), std::move(elements), all.data() + i);
    }
    return void(std::memcpy(out, all.data(), all.size()));
  }
  std::vector<const std::byte*> inputs;
  for (std::size_t rank = 1; rank < slot.came.size(); ++rank)
    inputs.push_back(at(slot.came[rank]->in, offset));
  std::vector<std::byte> memory(bytes_of(first));
  reduce::finish(dtype, operation_of(first.operation), memory.data(), nullptr, inputs, first.count, 1,
                 at(first.in, offset));
  std::memcpy(out, memory.data(), memory.size());
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from) std::memcpy(to, from, bytes);
}

void execute(Shared::Slot& slot) {
  const Step& first = *slot.came.front();
  const std::size_t bytes = bytes_of(first);
  const auto root = static_cast<std::size_t>(first.root);
  switch (first.call) {
    case NcclCall::reduce_scatter: {
      std::vector<std::vector<std::byte>> sums(slot.came.size(), std::vector<std::byte>(bytes));
      for (std::size_t rank = 0; rank < slot.came.size(); ++rank)
        sum(slot, rank * bytes, sums[rank].data());
      for (std::size_t rank = 0; rank < slot.came.size(); ++rank)
        copy(slot.came[rank]->out, sums[rank].data(), bytes);
      break;
    }
    case NcclCall::reduce: sum(slot, 0, slot.came[root]->out); break;
    case NcclCall::all_gather:
      for (std::size_t from = 0; from < slot.came.size(); ++from)
        for (const auto& to : slot.came)
          copy(at(to->out, from * bytes), slot.came[from]->in, bytes);
      break;
    case NcclCall::broadcast:
      for (const auto& to : slot.came)
        copy(to->out, slot.came[root]->in, bytes);
      break;
    default: break;
  }
  slot.is_done = true;
}

bool is_alike(const Step& a, const Step& b) {
  return a.call == b.call && a.count == b.count && a.type == b.type && a.operation == b.operation &&
         a.root == b.root && a.group == b.group;
}

std::string describe(const Step& step) {
  return fmt::format("{} of {} elements of type {}, operation {}, root {}, in group {}", name_of(step.call),
                     step.count, static_cast<int>(step.type), static_cast<int>(step.operation), step.root,
                     step.group);
}

}  // namespace

FakeNcclWorld::FakeNcclWorld() : shared_(std::make_unique<Shared>()) {}
FakeNcclWorld::~FakeNcclWorld() = default;

std::vector<std::string> FakeNcclWorld::differences() const {
  return shared_->monitor.read([](const Shared::State& state) { return state.differences; });
}

Shared::Ticket FakeNcclWorld::Shared::arrive(State& state, Clique& clique, int rank, const Step& step) {
  if (step.call == NcclCall::send || step.call == NcclCall::receive) {
    const bool sends = step.call == NcclCall::send;
    const std::pair pair = sends ? std::pair(rank, step.root) : std::pair(step.root, rank);
    Channel& channel = clique.channels[pair];
    auto& mine = sends ? channel.sent : channel.received;
    mine.push_back(step);
    while (channel.done < channel.sent.size() && channel.done < channel.received.size()) {
      const Step& from = channel.sent[channel.done];
      const Step& to = channel.received[channel.done];
      if (bytes_of(from) != bytes_of(to)) {
        state.differences.push_back(
            fmt::format("rank {} sends what rank {} does not expect", pair.first, pair.second));
        break;
      }
      copy(to.out, from.in, bytes_of(from));
      ++channel.done;
    }
    return {std::nullopt, pair, mine.size() - 1};
  }
  const std::uint64_t number = clique.next[static_cast<std::size_t>(rank)]++;
  Slot& slot = clique.slots[number];
  slot.came.resize(static_cast<std::size_t>(clique.size));
  for (std::size_t other = 0; other < slot.came.size() && !slot.differs; ++other) {
    if (!slot.came[other] || is_alike(*slot.came[other], step)) continue;
    slot.differs = true;
    state.differences.push_back(fmt::format("collective {}: rank {} has come to {}, rank {} to {}", number,
                                            other, describe(*slot.came[other]), rank, describe(step)));
  }
  slot.came[static_cast<std::size_t>(rank)] = step;
  if (++slot.count == slot.came.size() && !slot.differs) execute(slot);
  return {number, {}, 0};
}

bool FakeNcclWorld::Shared::is_done(const Clique& clique, const Ticket& ticket) {
  if (ticket.slot) return clique.slots.at(*ticket.slot).is_done;
  return clique.channels.at(ticket.channel).done > ticket.place;
}

}  // namespace bps
