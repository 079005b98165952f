// What the C API's functions that start operations have in common.
#pragma once

#include <memory>

#include "client/src/api/c_client.h"
#include "client/src/tensors/request.h"

namespace bps {

// `scale`: where that of the input of a reduction is to be found; null: there may be none.
Status read_buffer(const bps_buffer* buffer, const char* what, OperationBuffer& given,
                   const bps_scale** scale = nullptr);

// What a reduction is given. By reference: only number_of may read an enum of a C program.
Status read_reduction(const bps_buffer* in, const bps_reduce_op& operation, Request& request);

// Before its operation has begun, which nothing may hide from the program then.
std::unique_ptr<bps_handle> make_handle(const bps_client* client, TensorId tensor, bool has_view,
                                        MemoryKind memory);

// The handle of what `begin` starts, which gives its record; `handle` NULL: the program wants none.
template <class Begin>
Status hand_over(std::unique_ptr<bps_handle> made, bps_handle** handle, Begin begin) {
  auto record = begin();
  if (!record) return record.error();
  if (handle == nullptr) return {};
  made->record = std::move(record).value();
  *handle = made.release();
  return {};
}

}  // namespace bps
