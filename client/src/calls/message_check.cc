#include "client/src/calls/message_check.h"

#include <fmt/core.h>

#include <cstring>
#include <functional>
#include <utility>

#include "proto/base/parts.h"

namespace bps {
namespace {

using Lengths = std::vector<std::uint64_t>;

// The parts of a whole, and this rank's own one where that is apart.
struct Whole {
  const char* name;  // of the buffer: "in", "out"
  OperationBuffer& buffer;
  Lengths& parts;
};

class Check {
 public:
  Check(GroupRequest& request, const std::string& group, const RankList& ranks, const RequestRules& rules)
      : request_(request), group_(group), ranks_(ranks), rules_(rules) {}

  Status run() {
    const RoundCall& call = request_.request.call;
    if (rules_.local_group != LocalGrouping::off)
      return refuse("the ranks of a host sum first", "set local-group off (BPS_LOCAL_GROUP) on all ranks");
    for (const auto& [name, buffer] :
         {std::pair("in", &request_.request.in), std::pair("out", &request_.request.out)}) {
      if (buffer->memory != MemoryKind::host)
        return refuse(fmt::format("'{}' is CUDA memory", name), "copy it to host memory first");
      if (buffer->bytes.data() == nullptr && !buffer->bytes.empty())
        return refuse(fmt::format("'{}' is a null pointer, {} bytes are needed", name, buffer->bytes.size()));
    }
    if (call.kind == RoundKind::message) return check_end("the other end", request_.peer, false);
    if (call.has_root()) {
      if (Status status = check_end("the root", call.root, true); !status.ok()) return status;
      if (call.root != rules_.self) {  // only the root needs lengths
        request_.parts.clear();
        request_.out_parts.clear();
        return {};
      }
    }
    Whole in{"in", request_.request.in, request_.parts};
    Whole out{"out", request_.request.out, request_.out_parts};
    if (call.kind == RoundKind::scatter) return check_root(in, out.buffer);
    if (call.kind == RoundKind::gather) return check_root(out, in.buffer);
    if (call.kind == RoundKind::all_gather) return {};  // any length will do
    if (Status status = check_parts(in); !status.ok()) return status;
    return request_.given ? Status() : check_exchange(in, out);
  }

 private:
  Status refuse(const std::string& what, const std::string& advice = {}) const {
    const RoundCall& call = request_.request.call;
    std::string text = to_string(call);
    if (call.kind == RoundKind::message) {
      text = fmt::format("message {} rank {} with tag {}", request_.receives ? "from" : "to",
                         request_.peer.value, request_.tag);
    }
    return make_error(ErrorCode::invalid_argument, fmt::format("{} in group '{}': {}", text, group_, what),
                      advice);
  }

  Status check_end(const char* what, Rank rank, bool may_be_self) const {
    if (rank.value >= rules_.world_size || !ranks_.has(rank)) {
      // The C API's ranks are signed.
      return refuse(fmt::format("{}, rank {}, is none of the group's ranks", what,
                                static_cast<std::int32_t>(rank.value)),
                    "give one of the group's ranks, as a rank of the job");
    }
    if (may_be_self || rank != rules_.self) return {};
    return refuse(fmt::format("{} is this rank itself", what), "copy the buffer, or give another rank");
  }

  // One for each rank, together the whole.
  Status check_parts(Whole& whole) const {
    const std::uint64_t bytes = whole.buffer.bytes.size();
    const std::uint32_t size = ranks_.size(rules_.world_size);
    if (whole.parts.empty()) {
      if (bytes % size != 0) {
        return refuse(
            fmt::format("'{}' has {} bytes, which {} ranks cannot divide equally", whole.name, bytes, size),
            "give the length of each rank's part");
      }
      whole.parts.assign(size, bytes / size);
      return {};
    }
    if (whole.parts.size() != size) {
      return refuse(
          fmt::format("'{}' has {} parts, the group has {} ranks", whole.name, whole.parts.size(), size),
          "give the length of one part for each rank of the group, in their order");
    }
    if (Parts::fit(whole.parts, size, bytes)) return {};
    return refuse(fmt::format("'{}' has {} bytes, and its parts have not the same sum", whole.name, bytes),
                  "give lengths that together are the buffer");
  }

  std::uint32_t place() const { return *ranks_.place_of(rules_.self); }

  // The root's own part is apart, or where the whole has it.
  Status check_root(Whole whole, const OperationBuffer& part) const {
    if (Status status = check_parts(whole); !status.ok()) return status;
    const std::uint64_t own = whole.parts[place()];
    const char* const name = &part == &request_.request.in ? "in" : "out";
    if (part.bytes.size() != own) {
      return refuse(fmt::format("'{}' has {} bytes, and this rank's part of '{}' has {}", name,
                                part.bytes.size(), whole.name, own),
                    "give a buffer of this rank's part alone");
    }
    const std::byte* const there = whole.buffer.bytes.data() + Parts(whole.parts).begin(Rank{place()});
    if (own == 0 || part.bytes.data() == there || are_apart(part, whole.buffer)) return {};
    return refuse("'in' and 'out' overlap",
                  "give the part where the whole has it, or memory that does not overlap");
  }

  Status check_exchange(const Whole& in, Whole& out) const {
    if (Status status = check_parts(out); !status.ok()) return status;
    if (in.parts[place()] != out.parts[place()]) {
      return refuse(fmt::format("this rank gives itself {} bytes, and takes {} from itself",
                                in.parts[place()], out.parts[place()]),
                    "give the own part one length in 'in' and 'out'");
    }
    if (are_apart(in.buffer, out.buffer)) return {};
    return refuse("'in' and 'out' overlap", "use memory that does not overlap");
  }

  static bool are_apart(const OperationBuffer& a, const OperationBuffer& b) {
    const std::less_equal<const std::byte*> is_before;
    return a.bytes.empty() || b.bytes.empty() || is_before(a.bytes.data() + a.bytes.size(), b.bytes.data()) ||
           is_before(b.bytes.data() + b.bytes.size(), a.bytes.data());
  }

  GroupRequest& request_;
  const std::string& group_;
  const RankList& ranks_;
  const RequestRules& rules_;
};

std::span<std::byte> part_of(const OperationBuffer& whole, const Lengths& lengths, std::uint32_t place) {
  return whole.bytes.subspan(Parts(lengths).begin(Rank{place}), lengths[place]);
}

}  // namespace

Status prepare_message(GroupRequest& request, const std::string& group, const RankList& ranks,
                       const RequestRules& rules) {
  return Check(request, group, ranks, rules).run();
}

void copy_own_part(const GroupRequest& request, std::uint32_t place) {
  const OperationBuffer& in = request.request.in;
  const OperationBuffer& out = request.request.out;
  const bool is_whole_in = !request.parts.empty();
  const bool is_whole_out = !request.out_parts.empty();
  if (!request.request.call.is_exchange() || (!is_whole_in && !is_whole_out)) return;
  const std::span<std::byte> from = is_whole_in ? part_of(in, request.parts, place) : in.bytes;
  const std::span<std::byte> to = is_whole_out ? part_of(out, request.out_parts, place) : out.bytes;
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace bps
