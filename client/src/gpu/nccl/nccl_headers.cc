// Compiled only where nccl.h is found, and the header of CUDA's runtime that it includes: what we declared
// ourselves is what it says.
#include <nccl.h>

#include <cstddef>

#include "client/src/gpu/nccl/nccl_functions.h"
#include "client/src/group/same_shape.h"

namespace bps {
namespace {

using F = NcclFunctions;

static_assert(kSameShape<decltype(F::version), decltype(&ncclGetVersion)>);
static_assert(kSameShape<decltype(F::unique_id), decltype(&ncclGetUniqueId)>);
static_assert(kSameShape<decltype(F::init_rank), decltype(&ncclCommInitRankConfig)>);
static_assert(kSameShape<decltype(F::async_error), decltype(&ncclCommGetAsyncError)>);
static_assert(kSameShape<decltype(F::finalize), decltype(&ncclCommFinalize)>);
static_assert(kSameShape<decltype(F::destroy), decltype(&ncclCommDestroy)>);
static_assert(kSameShape<decltype(F::abort), decltype(&ncclCommAbort)>);
static_assert(kSameShape<decltype(F::reduce_scatter), decltype(&ncclReduceScatter)>);
static_assert(kSameShape<decltype(F::reduce), decltype(&ncclReduce)>);
static_assert(kSameShape<decltype(F::all_gather), decltype(&ncclAllGather)>);
static_assert(kSameShape<decltype(F::broadcast), decltype(&ncclBroadcast)>);
static_assert(kSameShape<decltype(F::send), decltype(&ncclSend)>);
static_assert(kSameShape<decltype(F::receive), decltype(&ncclRecv)>);
static_assert(kSameShape<decltype(F::group_start), decltype(&ncclGroupStart)>);
static_assert(kSameShape<decltype(F::group_end), decltype(&ncclGroupEnd)>);
static_assert(kSameShape<decltype(F::error_text), decltype(&ncclGetErrorString)>);
static_assert(kSameShape<decltype(F::last_error), decltype(&ncclGetLastError)>);

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId) && sizeof(F::Id) == sizeof(ncclUniqueId));
static_assert(offsetof(ncclConfig_t, size) == offsetof(F::Config, size));
static_assert(offsetof(ncclConfig_t, magic) == offsetof(F::Config, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(F::Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(F::Config, blocking));
static_assert(sizeof(ncclConfig_t) >= sizeof(F::Config));

constexpr bool is(auto ours, auto theirs) { return static_cast<int>(ours) == static_cast<int>(theirs); }
static_assert(is(NcclCode::success, ncclSuccess));
static_assert(is(NcclCode::cuda_error, ncclUnhandledCudaError));
static_assert(is(NcclCode::system_error, ncclSystemError));
static_assert(is(NcclCode::internal_error, ncclInternalError));
static_assert(is(NcclCode::invalid_argument, ncclInvalidArgument));
static_assert(is(NcclCode::invalid_usage, ncclInvalidUsage));
static_assert(is(NcclCode::remote_error, ncclRemoteError));
static_assert(is(NcclCode::in_progress, ncclInProgress));
static_assert(is(NcclType::i8, ncclInt8));
static_assert(is(NcclType::u8, ncclUint8));
static_assert(is(NcclType::i32, ncclInt32));
static_assert(is(NcclType::i64, ncclInt64));
static_assert(is(NcclType::f16, ncclFloat16));
static_assert(is(NcclType::f32, ncclFloat32));
static_assert(is(NcclType::f64, ncclFloat64));
static_assert(is(NcclType::bf16, ncclBfloat16));
static_assert(is(NcclOperation::sum, ncclSum));
static_assert(is(NcclOperation::product, ncclProd));
static_assert(is(NcclOperation::max, ncclMax));
static_assert(is(NcclOperation::min, ncclMin));

// The magic number and the settings that are left alone, as the initialiser of the header has them.
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(kTheirs.magic == F::Config{}.magic);
// Until then it said what the default is: to block.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 1)
static_assert(kTheirs.blocking == F::Config{}.undefined);
#endif

}  // namespace
}  // namespace bps
