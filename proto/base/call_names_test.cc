#include "proto/base/call_names.h"

#include <catch2/catch.hpp>

namespace bps {

TEST_CASE("call names: what a tensor of the library stands for is read from its name") {
  const auto slot_of = [](const std::string& group) {
    return slot_name(group, TensorId{77}, "copy", "4096", 0);
  };
  const std::string tagged =
      message_channel_name("a/b", TensorId{12}, Rank{0}, Rank{3}, RoundKind::message, 5);
  const std::string plain =
      message_channel_name("world", TensorId{12}, Rank{10}, Rank{3}, RoundKind::all_to_all, 0);
  CHECK(slot_of("world") == "bps.calls/world/77/copy/4096/0");
  CHECK(tagged == "bps.messages/a/b/12/0-3-5");
  CHECK(plain == "bps.messages/world/12/10-3-all_to_all");
  CHECK(describe_group(group_tensor_name("world")) == "group 'world'");
  CHECK(describe_group(slot_of("a/b")) == "group 'a/b'");
  CHECK(describe_group(group_tensor_name(tagged)) ==
        "messages from rank 0 to rank 3 with tag 5 in group 'a/b'");
  CHECK(describe_group(slot_of(tagged)) == "messages from rank 0 to rank 3 with tag 5 in group 'a/b'");
  CHECK(describe_group(slot_of(plain)) ==
        "messages from rank 10 to rank 3 of each all_to_all in group 'world'");
  CHECK(describe_group(slot_of(channel_name(kPartsPrefix, "world", TensorId{12}))) ==
        "parts in group 'world'");
  CHECK(describe_group("layer1.weight").empty());
  CHECK(how_to_go_on("layer1.weight") == "to go on, drop it on all ranks and declare it again");
  CHECK(how_to_go_on(slot_of("a/b")) == "to go on, drop the group on all ranks and declare it again");
  CHECK(how_to_go_on(slot_of(plain)) == "to go on, declare another group of all ranks");
  CHECK(describe_parts_slot(slot_name("world", TensorId{12}, "copy", "parts-17", 3)) ==
        "group 'world': calls number 17 and later ones with these parts");
  CHECK(describe_parts_slot(slot_of("world")).empty());
  CHECK(describe_parts_slot("layer1.weight/parts-17/3").empty());
  CHECK(is_message_channel(group_tensor_name(tagged)));
  CHECK_FALSE(is_message_channel(group_tensor_name("world")));
  CHECK_FALSE(is_message_channel(slot_of(tagged)));
}

TEST_CASE("call names: names that no client gives are described, too") {
  for (const char* name :
       {"bps.calls/", "bps.calls/a/b/c", "bps.group/", "bps.group/bps.messages/", "bps.group/bps.messages/12",
        "bps.group/bps.messages/a/12/0", "bps.group/bps.parts/"})
    (void)describe_group(name), (void)describe_parts_slot(name);
  CHECK(describe_group("bps.group/bps.parts/").starts_with("group '"));
}

}  // namespace bps
