// Groups of ranks, and what a program calls on one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/src/tensors/request.h"
#include "proto/base/ids.h"

namespace bps {

// A client's number for a group; 0: all ranks of the job.
using GroupId = Id<struct GroupTag, std::uint32_t>;

inline constexpr std::uint32_t kFirstChannel = 1u << 31;  // those above a client's programs do not know

// Parts that have arrived in library memory, because only their givers knew how long they are.
struct GivenParts {
  std::vector<std::uint64_t> bytes;  // by place of the giver
  std::shared_ptr<std::byte[]> memory;
};

struct GroupSpec {
  std::string name;
  std::vector<Rank> ranks;  // in the order of sums, in the shortest form (RankList); empty: all of the job
  std::int32_t priority = 0;
};

// What a program calls: the request is of no tensor yet.
struct GroupRequest {
  GroupId group;
  DType dtype = DType::f32;               // of a copy u8
  std::vector<std::uint64_t> parts = {};  // of a call of parts: elements, in the shortest form (Parts)
  std::uint64_t ticket = 0;               // chosen by the caller, to describe it
  Request request;
  // As many calls after it, of the same kind: their buffers. All end together.
  std::vector<Request> more = {};
  // Of messages (GroupMessages).
  Rank peer = {};         // of one: the other end
  bool receives = false;  // of one
  std::uint64_t tag = 0;  // of one
  std::vector<std::uint64_t> out_parts =
      {};  // of an all_to_all: bytes that this rank takes, by place of the giver
  std::shared_ptr<GivenParts> given = {};  // where only givers know the lengths: the answer
  // Of the whole.
  std::uint64_t count() const { return count(request); }
  std::uint64_t count(const Request& one) const {
    const bool gathers = one.call.kind == RoundKind::all_gather;
    return (gathers ? one.out : one.source()).bytes.size() / size_of(dtype);
  }
};

}  // namespace bps
