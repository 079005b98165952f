// Names of the tensors that carry calls without names (decision 0039): of each group one that stands for it,
// and its slots. Programs cannot declare such names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/base/ids.h"

namespace bps {

inline constexpr std::string_view kGroupPrefix = "bps.group/";
inline constexpr std::string_view kSlotPrefix = "bps.calls/";
inline constexpr std::string_view kWorldGroup = "world";  // of all ranks of the job
// What a slot's name has besides that of its group.
inline constexpr std::size_t kMaxSlotNameBytes = 64;

inline bool is_group(std::string_view tensor) { return tensor.starts_with(kGroupPrefix); }
inline bool is_slot(std::string_view tensor) { return tensor.starts_with(kSlotPrefix); }

inline std::string group_tensor_name(std::string_view group) {
  return std::string(kGroupPrefix) + std::string(group);
}
// "bps.calls/world/12/f32/65536/3", or of calls of parts "bps.calls/world/12/f32/parts-17/3", where 12 is the
// group's tensor: so no slot is that of another group which had the name before.
inline std::string slot_name(std::string_view group, TensorId tensor, std::string_view elements,
                             std::string_view size, std::uint32_t index) {
  return std::string(kSlotPrefix) + std::string(group) + "/" + std::to_string(tensor.value) + "/" +
         std::string(elements) + "/" + std::string(size) + "/" + std::to_string(index);
}
// Of the one or the other; empty: the tensor is of neither kind.
inline std::string_view group_of(std::string_view tensor) {
  if (is_group(tensor)) return tensor.substr(kGroupPrefix.size());
  if (!is_slot(tensor)) return {};
  std::string_view group = tensor.substr(kSlotPrefix.size());
  for (int part = 0; part < 4; ++part) {
    const std::size_t end = group.rfind('/');
    if (end == std::string_view::npos) return {};
    group = group.substr(0, end);
  }
  return group;
}

}  // namespace bps
