#include "client/src/runtime/allocations.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

std::shared_ptr<Region> region(std::size_t bytes) {
  auto made = allocate_ordinary_region(bytes);
  REQUIRE(made.ok());
  return *made;
}

}  // namespace

TEST_CASE("allocations: a buffer's home is the region that holds all of it") {
  Allocations allocations;
  const auto first = region(8192), second = region(4096);
  CHECK(allocations.home(first->bytes()) == nullptr);
  allocations.add(first);
  allocations.add(second);
  CHECK(allocations.home(first->bytes()) == first);
  CHECK(allocations.home(first->bytes().subspan(100, 200)) == first);
  CHECK(allocations.home(first->bytes().last(1)) == first);
  CHECK(allocations.home(second->bytes()) == second);
  const std::byte elsewhere[8] = {};
  CHECK(allocations.home(elsewhere) == nullptr);
  CHECK(allocations.home({}) == nullptr);
  CHECK(allocations.home({first->bytes().data() + 8000, 200}) != first);
  CHECK(allocations.home({first->bytes().data() - 1, 2}) != first);
}

TEST_CASE("allocations: what is given back has no home, and lives on with its users") {
  Allocations allocations;
  std::weak_ptr<Region> watched;
  std::shared_ptr<const Region> user;
  {
    auto memory = region(4096);
    watched = memory;
    allocations.add(std::move(memory));
  }
  void* const pointer = watched.lock()->bytes().data();
  user = allocations.home({static_cast<std::byte*>(pointer), 10});
  CHECK_FALSE(allocations.remove(static_cast<std::byte*>(pointer) + 1));
  CHECK(allocations.remove(pointer));
  CHECK_FALSE(allocations.remove(pointer));
  CHECK(allocations.home(watched.lock()->bytes()) == nullptr);
  CHECK_FALSE(watched.expired());
  user.reset();
  CHECK(watched.expired());
}

}  // namespace bps
