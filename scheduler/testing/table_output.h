// For tests of a TensorTable: what it has put out, by type, and servers that confirm it.
#pragma once

#include <variant>
#include <vector>

#include "scheduler/tensors/tensor_table.h"

namespace bps::table_output {

template <class T>
std::vector<T> only(const std::vector<TensorTable::Output>& output) {
  std::vector<T> out;
  for (const auto& item : output) {
    if (const auto* typed = std::get_if<T>(&item)) out.push_back(*typed);
  }
  return out;
}

inline void ack_all(TensorTable& table, const std::vector<TensorTable::Slices>& slices,
                    const Error& error = {}) {
  for (const TensorTable::Slices& slice : slices)
    table.acked(slice.batch, slice.server, error);
}

}  // namespace bps::table_output
