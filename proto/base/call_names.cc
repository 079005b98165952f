#include "proto/base/call_names.h"

#include <fmt/core.h>

#include <vector>

namespace bps {
namespace {

// Without the last so many parts between '/'; empty: it has fewer.
std::string_view without_last(std::string_view name, int parts) {
  for (; parts > 0; --parts) {
    const std::size_t end = name.rfind('/');
    if (end == std::string_view::npos) return {};
    name = name.substr(0, end);
  }
  return name;
}

// "0-3-5", "0-3-scatter"
std::string describe_ends(std::string_view ends) {
  const std::size_t to = ends.find('-');
  const std::size_t of = to == std::string_view::npos ? to : ends.find('-', to + 1);
  if (of == std::string_view::npos || of + 1 == ends.size()) return "messages";
  const std::string_view what = ends.substr(of + 1);
  const bool is_tag = what.front() >= '0' && what.front() <= '9';
  return fmt::format("messages from rank {} to rank {} {} {}", ends.substr(0, to),
                     ends.substr(to + 1, of - to - 1), is_tag ? "with tag" : "of each", what);
}

}  // namespace

std::string slot_name(std::string_view group, TensorId tensor, std::string_view elements,
                      std::string_view size, std::uint32_t index) {
  return fmt::format("{}{}/{}/{}/{}/{}", kSlotPrefix, group, tensor.value, elements, size, index);
}

std::string message_channel_name(std::string_view group, TensorId tensor, Rank from, Rank to, RoundKind kind,
                                 std::uint64_t tag) {
  const std::string last = kind == RoundKind::message ? std::to_string(tag) : name_of(kind);
  return fmt::format("{}{}/{}/{}-{}-{}", kMessagesPrefix, group, tensor.value, from.value, to.value, last);
}

std::string channel_name(std::string_view prefix, std::string_view group, TensorId tensor) {
  return fmt::format("{}{}/{}", prefix, group, tensor.value);
}

std::string describe_group(std::string_view tensor) {
  std::string_view group;
  if (is_group(tensor)) group = tensor.substr(kGroupPrefix.size());
  if (is_slot(tensor)) group = without_last(tensor.substr(kSlotPrefix.size()), 4);
  if (group.empty()) return {};
  const auto in_group = [](std::string_view what, std::string_view name) {
    return fmt::format("{} in group '{}'", what, name);
  };
  if (group.starts_with(kMessagesPrefix)) {
    const std::string_view parent = without_last(group, 2);
    if (parent.size() > kMessagesPrefix.size())
      return in_group(describe_ends(group.substr(group.rfind('/') + 1)),
                      parent.substr(kMessagesPrefix.size()));
  }
  for (const auto& [prefix, what] :
       {std::pair(kLengthsPrefix, "lengths of parts"), std::pair(kPartsPrefix, "parts")}) {
    const std::string_view parent = group.starts_with(prefix) ? without_last(group, 1) : std::string_view();
    if (parent.size() > prefix.size()) return in_group(what, parent.substr(prefix.size()));
  }
  return fmt::format("group '{}'", group);
}

std::string how_to_go_on(std::string_view tensor) {
  const std::string group = describe_group(tensor);
  if (group.empty()) return "to go on, drop it on all ranks and declare it again";
  return group.ends_with(fmt::format("group '{}'", kWorldGroup))
             ? "to go on, declare another group of all ranks"
             : "to go on, drop the group on all ranks and declare it again";
}

std::string describe_parts_slot(std::string_view tensor) {
  constexpr std::string_view kParts = "parts-";
  if (!is_slot(tensor)) return {};
  const std::string_view without_index = without_last(tensor, 1);
  const std::string_view size = without_index.substr(without_last(without_index, 1).size() + 1);
  if (!size.starts_with(kParts)) return {};
  return fmt::format("{}: calls number {} and later ones with these parts", describe_group(tensor),
                     size.substr(kParts.size()));
}

}  // namespace bps
