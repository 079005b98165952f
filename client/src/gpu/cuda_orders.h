// What the client's loop asks of the CUDA thread, and what it hears of it, each gathered to be handed over at
// once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/gpu/driver/caller_event.h"
#include "client/src/group/local_group.h"

namespace bps {

template <class T>
void move_to_end(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

using CudaThen = std::function<void(Status)>;

struct CudaOrders {
  struct Work {
    bool is_spread = false;
    Collective collective;
    std::size_t pieces = 0;  // of CudaOrders::pieces, behind those of the works before
    bool ends_batch = false;
    std::string label;  // of the tensor and its partitions, if somebody reads it
  };
  struct Staged {
    LocalPiece piece;
    CudaThen then;
  };
  struct Caller {
    std::shared_ptr<CallerEvent> event;
    CudaThen then;
  };

  bool empty() const { return works.empty() && staged.empty() && callers.empty(); }
  void clear() {
    works.clear();
    pieces.clear();
    staged.clear();
    callers.clear();
  }
  void take(CudaOrders& other) {
    move_to_end(works, other.works);
    move_to_end(pieces, other.pieces);
    move_to_end(staged, other.staged);
    move_to_end(callers, other.callers);
  }

  std::vector<Work> works;
  std::vector<LocalPiece> pieces;
  std::vector<Staged> staged;
  std::vector<Caller> callers;
};

struct CudaNews {
  struct Item {
    enum class Kind : std::uint8_t { summed, ended, broken, told } kind = Kind::summed;
    std::uint64_t number = 0;             // of the collective
    std::size_t index = 0;                // of the piece
    CudaThen then = {};                   // told
    std::optional<Error> error = {};      // not told: all went well
    std::optional<TensorId> tensor = {};  // broken: during an operation on it
  };

  bool empty() const { return items.empty(); }
  void clear() { items.clear(); }
  void take(CudaNews& other) { move_to_end(items, other.items); }

  std::vector<Item> items;
};

// Where news go.
class CudaReports {
 public:
  virtual ~CudaReports() = default;
  virtual void add(CudaNews::Item item) = 0;
  virtual void flush() = 0;  // at the end of each turn, and before what may take long

  void tell(CudaThen then, const std::optional<Error>& error = {}) {
    add({.kind = CudaNews::Item::Kind::told, .then = std::move(then), .error = error});
  }
};

}  // namespace bps
