// What is behind the opaque types of the C API, and what its functions have in common. Included by their
// sources, bps_c.cc and bps_c_handle.cc, and by tests that make a client of their own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "client/include/bps/bps.h"
#include "client/src/runtime/client.h"
#include "client/src/runtime/inside_callback.h"

struct bps_client {
  std::shared_ptr<bps::Client> client;
  // The program until bps_free, and every allocation: those may be given back later.
  std::atomic<std::size_t> owners{1};
};

// The client is held weakly: a handle may outlive it.
struct bps_handle {
  std::shared_ptr<bps::OperationRecord> record;
  std::weak_ptr<bps::Client> client;
  bps::TensorId tensor;
  bool on_group;  // and not on the tensor
  bool is_join;
  bool has_view;
  bps::MemoryKind memory;
  bps::Duration default_timeout;
  std::shared_ptr<const bps::ForkMark> fork_mark;
};

namespace bps {

inline Error invalid(std::string message, std::string advice = {}) {
  return make_error(ErrorCode::invalid_argument, std::move(message), std::move(advice));
}

inline Error forked() {
  return make_error(ErrorCode::closed, "this client belongs to the parent process: this is a child of fork()",
                    "open a client of its own in the child");
}

// May the client be used?
inline Status usable(const bps_client* client) {
  if (client == nullptr) return invalid("client is NULL");
  if (client->client->is_forked()) return forked();
  return client->client->ready();
}

inline Status usable(const bps_handle* handle) {
  if (handle == nullptr) return invalid("handle is NULL");
  if (handle->fork_mark->in_child()) return forked();
  return {};
}

// An enumerator as C programs may give it: any number.
template <class Enum>
std::int64_t number_of(const Enum& value) {
  std::underlying_type_t<Enum> number;
  std::memcpy(&number, &value, sizeof number);
  return static_cast<std::int64_t>(number);
}

// May the caller wait?
inline Status may_wait(const char* what) {
  if (!InsideCallback::here()) return {};
  return invalid(std::string(what) + " inside a callback would wait for itself", "do it on another thread");
}

inline constexpr Duration kLongestTimeout = std::chrono::hours(24 * 365);

inline Duration duration_of(std::int64_t timeout_ms, Duration by_default) {
  if (timeout_ms < 0) return by_default;
  return timeout_ms > kLongestTimeout / std::chrono::milliseconds(1)
             ? kLongestTimeout
             : Duration(std::chrono::milliseconds(timeout_ms));
}

// What a struct of the program's version has, the rest as in `defaults`.
template <class T>
T full_struct(const T* given, T defaults) {
  std::memcpy(&defaults, given, std::min(given->struct_size, sizeof(T)));
  return defaults;
}

}  // namespace bps
