// What the tests of the kernels share.
#pragma once

#include <catch2/catch.hpp>
#include <cstddef>
#include <vector>

#define HWY_COMPILE_ALL_ATTAINABLE
#include "hwy/targets.h"

namespace bps::reduce {

// An array of raw elements that begins `misalignment` bytes after an aligned address.
struct Array {
  Array(std::size_t bytes, std::size_t misalignment)
      : storage(bytes + misalignment + 64), offset(misalignment) {}
  std::byte* data() { return storage.data() + offset; }
  std::vector<std::byte> storage;
  std::size_t offset;
};

// Runs `body` once per SIMD target of this machine.
template <class Body>
void on_every_target(Body body) {
  hwy::SetSupportedTargetsForTest(0);
  const auto targets = hwy::SupportedAndGeneratedTargets();
  REQUIRE(!targets.empty());
  for (const auto target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    INFO("target " << hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace bps::reduce
