#include "client/src/gpu/nccl/nccl_api.h"

namespace bps {
namespace {

constexpr std::array<std::string_view, kNcclCallCount> kNames = {
    "ncclGetVersion",   "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
    "ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort",          "ncclReduceScatter",
    "ncclReduce",       "ncclAllGather",   "ncclBroadcast",          "ncclSend",
    "ncclRecv",         "ncclGroupStart",  "ncclGroupEnd",
};

}  // namespace

std::string_view name_of(NcclCall call) {
  const auto index = static_cast<std::size_t>(call);
  return index < kNames.size() ? kNames[index] : "?";
}

}  // namespace bps
