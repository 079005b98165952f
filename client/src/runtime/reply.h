// The answer that an API thread waits for and the client's loop gives. One that is dropped without an answer,
// because the client ended first, answers `closed`: nobody waits in vain.
#pragma once

#include <memory>
#include <utility>

#include "proto/base/loop/completion.h"
#include "proto/base/result.h"

namespace bps {

template <class T>
class Reply {
 public:
  using Cell = Completion<Result<T>>;

  Reply() : cell_(std::make_shared<Cell>()) {}
  ~Reply() { cell_->set(make_error(ErrorCode::closed, "the client is closed")); }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  void set(Result<T> result) { cell_->set(std::move(result)); }
  const std::shared_ptr<Cell>& cell() const { return cell_; }

 private:
  std::shared_ptr<Cell> cell_;
};

}  // namespace bps
