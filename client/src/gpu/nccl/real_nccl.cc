#include "client/src/gpu/nccl/real_nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

#include "client/src/gpu/nccl/nccl_functions.h"

namespace bps {
namespace {

constexpr int kOldestVersion = 21400;  // the first that need not block
constexpr const char* kGetNccl =
    "install NVIDIA's NCCL 2.14 or newer (libnccl2, or the nvidia-nccl packages of Python), and put it where "
    "the "
    "loader finds it";

class RealNccl final : public NcclApi {
 public:
  explicit RealNccl(const NcclFunctions& functions) : nccl_(functions) {}

  NcclCode version(int& version) override { return NcclCode(nccl_.version(&version)); }
  NcclCode unique_id(NcclId& id) override {
    NcclFunctions::Id made{};
    const auto code = NcclCode(nccl_.unique_id(&made));
    id = made.bytes;
    return code;
  }
  NcclCode init_rank(NcclComm& comm, int size, const NcclId& id, int rank) override {
    NcclFunctions::Config config;
    // Up to 2.17 its thread reads and writes it after this call, too.
    return NcclCode(nccl_.init_rank(reinterpret_cast<void**>(&comm), size, {id}, rank, &config));
  }
  NcclCode async_error(NcclComm comm, NcclCode& state) override {
    int found = 0;
    const auto code = NcclCode(nccl_.async_error(comm, &found));
    state = NcclCode(found);
    return code;
  }
  NcclCode finalize(NcclComm comm) override { return NcclCode(nccl_.finalize(comm)); }
  NcclCode destroy(NcclComm comm) override { return NcclCode(nccl_.destroy(comm)); }
  NcclCode abort(NcclComm comm) override { return NcclCode(nccl_.abort(comm)); }

  NcclCode reduce_scatter(const void* in, void* out, std::size_t count, NcclType type,
                          NcclOperation operation, NcclComm comm, CudaStream stream) override {
    return NcclCode(nccl_.reduce_scatter(in, out, count, int(type), int(operation), comm, stream));
  }
  NcclCode reduce(const void* in, void* out, std::size_t count, NcclType type, NcclOperation operation,
                  int root, NcclComm comm, CudaStream stream) override {
    return NcclCode(nccl_.reduce(in, out, count, int(type), int(operation), root, comm, stream));
  }
  NcclCode all_gather(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                      CudaStream stream) override {
    return NcclCode(nccl_.all_gather(in, out, count, int(type), comm, stream));
  }
  NcclCode broadcast(const void* in, void* out, std::size_t count, NcclType type, int root, NcclComm comm,
                     CudaStream stream) override {
    return NcclCode(nccl_.broadcast(in, out, count, int(type), root, comm, stream));
  }
  NcclCode send(const void* in, std::size_t count, NcclType type, int peer, NcclComm comm,
                CudaStream stream) override {
    return NcclCode(nccl_.send(in, count, int(type), peer, comm, stream));
  }
  NcclCode receive(void* out, std::size_t count, NcclType type, int peer, NcclComm comm,
                   CudaStream stream) override {
    return NcclCode(nccl_.receive(out, count, int(type), peer, comm, stream));
  }
  NcclCode group_start() override { return NcclCode(nccl_.group_start()); }
  NcclCode group_end() override { return NcclCode(nccl_.group_end()); }

  std::string describe(NcclCode code, NcclComm comm) override {
    const char* const text = nccl_.error_text(int(code));
    const char* const last = nccl_.last_error(comm);
    std::string all = text != nullptr ? text : fmt::format("NCCL error {}", int(code));
    if (last != nullptr && *last != '\0') all += fmt::format(" ({})", last);
    return all;
  }

 private:
  const NcclFunctions nccl_;
};

Result<NcclFunctions> load_nccl(const char* library) {
  void* const nccl = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (nccl == nullptr) {
    const char* const why = ::dlerror();
    return make_error(ErrorCode::configuration, fmt::format("no NCCL: {}", why != nullptr ? why : library),
                      kGetNccl);
  }
  NcclFunctions functions{};
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(nccl, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  find("ncclGetVersion", functions.version);
  find("ncclGetUniqueId", functions.unique_id);
  find("ncclCommInitRankConfig", functions.init_rank);
  find("ncclCommGetAsyncError", functions.async_error);
  find("ncclCommFinalize", functions.finalize);
  find("ncclCommDestroy", functions.destroy);
  find("ncclCommAbort", functions.abort);
  find("ncclReduceScatter", functions.reduce_scatter);
  find("ncclReduce", functions.reduce);
  find("ncclAllGather", functions.all_gather);
  find("ncclBroadcast", functions.broadcast);
  find("ncclSend", functions.send);
  find("ncclRecv", functions.receive);
  find("ncclGroupStart", functions.group_start);
  find("ncclGroupEnd", functions.group_end);
  find("ncclGetErrorString", functions.error_text);
  find("ncclGetLastError", functions.last_error);
  if (missing != nullptr)
    return make_error(ErrorCode::configuration,
                      fmt::format("no NCCL: {} has no {}: too old, or another library", library, missing),
                      kGetNccl);
  return functions;
}

}  // namespace

Result<std::shared_ptr<NcclApi>> open_nccl(const char* library) {
  auto functions = load_nccl(library);
  if (!functions) return std::move(functions).error();
  const auto nccl = std::make_shared<RealNccl>(*functions);
  int version = 0;
  if (const NcclCode code = nccl->version(version); code != NcclCode::success)
    return make_error(
        ErrorCode::configuration,
        fmt::format("no NCCL: {}: {}", name_of(NcclCall::version), nccl->describe(code, nullptr)), kGetNccl);
  if (version < kOldestVersion)
    return make_error(ErrorCode::configuration, fmt::format("no NCCL: version {} is too old", version),
                      kGetNccl);
  return std::shared_ptr<NcclApi>(nccl);
}

}  // namespace bps
