// NCCL's functions and types, declared here so that its header is not needed. Where that is found,
// nccl_headers.cc compares it with what is declared here.
#pragma once

#include <climits>
#include <cstddef>

#include "client/src/gpu/nccl/nccl_api.h"

namespace bps {

struct NcclFunctions {
  using Code = int;  // enums there
  using Type = int;
  using Operation = int;

  struct Id {
    NcclId bytes;
  };
  // As of 2.14. Newer ones take it as it is, because it says so, and have defaults for the rest; what was
  // padding then is a setting now, so it says "undefined", too.
  struct Config {
    std::size_t size = sizeof(Config);
    unsigned int magic = 0xcafebeef;
    unsigned int version = 21400;
    int blocking = 0;
    int undefined = INT_MIN;
  };

  Code (*version)(int* version);
  Code (*unique_id)(Id* id);
  Code (*init_rank)(void** comm, int size, Id id, int rank, Config* config);
  Code (*async_error)(void* comm, Code* state);
  Code (*finalize)(void* comm);
  Code (*destroy)(void* comm);
  Code (*abort)(void* comm);
  Code (*reduce_scatter)(const void* in, void* out, std::size_t count, Type type, Operation operation,
                         void* comm, void* stream);
  Code (*reduce)(const void* in, void* out, std::size_t count, Type type, Operation operation, int root,
                 void* comm, void* stream);
  Code (*all_gather)(const void* in, void* out, std::size_t count, Type type, void* comm, void* stream);
  Code (*broadcast)(const void* in, void* out, std::size_t count, Type type, int root, void* comm,
                    void* stream);
  Code (*send)(const void* in, std::size_t count, Type type, int peer, void* comm, void* stream);
  Code (*receive)(void* out, std::size_t count, Type type, int peer, void* comm, void* stream);
  Code (*group_start)();
  Code (*group_end)();
  const char* (*error_text)(Code code);
  const char* (*last_error)(void* comm);
};

}  // namespace bps
