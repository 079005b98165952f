// A value or an Error. Ask before you take: value() of a failed result is a bug (BPS_ASSERT).
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "proto/base/assert.h"
#include "proto/base/error.h"

namespace bps {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    BPS_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    BPS_ASSERT(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    BPS_ASSERT(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    BPS_ASSERT(!ok());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    BPS_ASSERT(!ok());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

// Success or an Error: `return {};` is success.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    BPS_ASSERT(!ok());
    return *error_;
  }
  Error&& error() && {
    BPS_ASSERT(!ok());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace bps
