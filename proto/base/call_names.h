// Names of the tensors that carry calls without names (decision 0039): of each group one that stands for it,
// and its slots. A group's messages have groups of their own, called channels (decision 0041). Programs
// cannot declare such names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/base/ids.h"
#include "proto/base/round_call.h"

namespace bps {

// Of all groups that a program does not name.
inline constexpr std::string_view kReservedPrefix = "bps.";
inline constexpr std::string_view kGroupPrefix = "bps.group/";
inline constexpr std::string_view kSlotPrefix = "bps.calls/";
inline constexpr std::string_view kMessagesPrefix = "bps.messages/";
inline constexpr std::string_view kLengthsPrefix = "bps.lengths/";
inline constexpr std::string_view kPartsPrefix = "bps.parts/";
inline constexpr std::string_view kWorldGroup = "world";  // of all ranks of the job
// What a name of the library has besides that of the group: a slot's, and that of a channel.
inline constexpr std::size_t kMaxSlotNameBytes = 64;
inline constexpr std::size_t kMaxChannelNameBytes = 64;

inline bool is_group(std::string_view tensor) { return tensor.starts_with(kGroupPrefix); }
inline bool is_slot(std::string_view tensor) { return tensor.starts_with(kSlotPrefix); }
// Of a message's two ranks: what one of them sends to the other.
inline bool is_message_channel(std::string_view tensor) {
  return is_group(tensor) && tensor.substr(kGroupPrefix.size()).starts_with(kMessagesPrefix);
}

inline std::string group_tensor_name(std::string_view group) {
  return std::string(kGroupPrefix) + std::string(group);
}
// "bps.calls/world/12/f32/65536/3", or of calls of parts "bps.calls/world/12/f32/parts-17/3", where 12 is the
// group's tensor: so no slot is that of another group which had the name before.
std::string slot_name(std::string_view group, TensorId tensor, std::string_view elements,
                      std::string_view size, std::uint32_t index);
// "bps.messages/world/12/0-3-scatter", and of messages with a tag "bps.messages/world/12/0-3-5".
std::string message_channel_name(std::string_view group, TensorId tensor, Rank from, Rank to, RoundKind kind,
                                 std::uint64_t tag);
// "bps.lengths/world/12"
std::string channel_name(std::string_view prefix, std::string_view group, TensorId tensor);

// Of the group, a channel or a slot of one: "group 'world'", "messages from rank 0 to rank 3 with tag 5 in
// group 'world'". Empty: the tensor is none of these.
std::string describe_group(std::string_view tensor);
// After ranks have called different things on it, a group or one of its slots, or on a tensor: "to go on,
// drop the group on all ranks and declare it again". The group of all ranks stays; it says to declare another
// one.
std::string how_to_go_on(std::string_view tensor);
// Of a slot for calls of parts: "group 'world': calls number 17 and later ones with these parts". Empty: it
// is none.
std::string describe_parts_slot(std::string_view tensor);

}  // namespace bps
