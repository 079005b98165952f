// The C API's way of telling errors.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "client/include/bps/bps.h"
#include "proto/base/result.h"

namespace bps {

// Fills what the caller's struct has room for; `error` may be null.
bps_status report(const Error& failure, bps_error* error);
bps_status report(const Status& status, bps_error* error);

// Of an error that was reported: a program that ends because of it would end so each time that it is started.
void forbid_restart(bps_error* error);

Error out_of_memory_error();
Error internal_error(const char* what);

// The border of the library: no exception crosses it. `call` returns a Status.
template <class Call>
bps_status guarded(bps_error* error, Call&& call) {
  try {
    return report(std::forward<Call>(call)(), error);
  } catch (const std::bad_alloc&) {
    return report(out_of_memory_error(), error);
  } catch (const std::exception& exception) {
    return report(internal_error(exception.what()), error);
  }
}

}  // namespace bps
