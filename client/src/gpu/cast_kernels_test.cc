// The kernels' text, run instruction by instruction (fake/fake_ptx.h), against rounding by definition.
#include "client/src/gpu/cast_kernels.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "client/src/gpu/cast_numbers.h"
#include "client/src/gpu/fake/fake_ptx.h"

namespace bps {
namespace {

using testing::format_of;
using testing::interesting_numbers;
using testing::is_nan;
using testing::rounded;

struct Run {
  Run() {
    std::string why;
    text = FakePtx::parse(cast_kernels_text(), why);
    INFO(why);
    REQUIRE(text != nullptr);
  }
  template <class In, class Out>
  CudaCode cast(const std::string& kernel, const In* in, Out* out, std::size_t eights, std::size_t count) {
    const auto address = [](const void* memory) { return reinterpret_cast<std::uint64_t>(memory); };
    const auto holds = [](const void* start, std::size_t size, const std::byte* at, std::size_t bytes) {
      const auto* const first = static_cast<const std::byte*>(start);
      return at >= first && at + bytes <= first + size;
    };
    return text->run(kernel, {.blocks_x = 3, .threads_x = 8}, {address(in), address(out), eights, count},
                     [&](const std::byte* at, std::size_t bytes) {
                       return holds(in, count * sizeof(In), at, bytes) ||
                              holds(out, count * sizeof(Out), at, bytes);
                     });
  }
  std::shared_ptr<const FakePtx> text;
};

TEST_CASE("cast kernels: to the wire, every number is rounded as it is defined") {
  Run run;
  std::vector<std::uint32_t> in = interesting_numbers();
  for (const Cast cast : {Cast::bf16, Cast::f16}) {
    for (const bool is_wide : {true, false}) {
      std::vector<std::uint16_t> out(in.size(), 0xabcd);
      const std::size_t eights = is_wide ? in.size() / 8 : 0;
      REQUIRE(run.cast(cast_kernel_name(cast, true), in.data(), out.data(), eights, in.size()) ==
              CudaCode::success);
      for (std::size_t i = 0; i < in.size(); ++i) {
        INFO(std::hex << in[i]);
        REQUIRE(out[i] == rounded(cast, in[i]));
      }
    }
  }
}

TEST_CASE("cast kernels: from the wire, every half becomes the number that it is") {
  Run run;
  std::vector<std::uint16_t> in(65536);
  for (std::size_t i = 0; i < in.size(); ++i)
    in[i] = static_cast<std::uint16_t>(i);
  for (const Cast cast : {Cast::bf16, Cast::f16}) {
    std::vector<std::uint32_t> out(in.size());
    REQUIRE(run.cast(cast_kernel_name(cast, false), in.data(), out.data(), in.size() / 8, in.size()) ==
            CudaCode::success);
    for (std::size_t i = 0; i < in.size(); ++i) {
      INFO(std::hex << in[i]);
      if (reduce::oracle::is_nan_bits(in[i], format_of(cast))) {
        REQUIRE(is_nan(out[i]));
      } else {
        const auto value = static_cast<float>(reduce::oracle::decode(in[i], format_of(cast)));
        REQUIRE(out[i] == std::bit_cast<std::uint32_t>(value));
      }
    }
  }
}

TEST_CASE("cast kernels: nothing beyond the last element is read or written") {
  Run run;
  for (const Cast cast : {Cast::bf16, Cast::f16}) {
    for (std::size_t count = 0; count < 40; ++count) {
      std::vector<std::uint32_t> in(count + 8, std::bit_cast<std::uint32_t>(1.5F)), back(count + 8, 77);
      std::vector<std::uint16_t> half(count + 8, 77);
      REQUIRE(run.cast(cast_kernel_name(cast, true), in.data(), half.data(), count / 8, count) ==
              CudaCode::success);
      REQUIRE(run.cast(cast_kernel_name(cast, false), half.data(), back.data(), count / 8, count) ==
              CudaCode::success);
      for (std::size_t i = 0; i < count + 8; ++i) {
        CHECK(back[i] == (i < count ? in[i] : 77));
        if (i >= count) CHECK(half[i] == 77);
      }
    }
  }
}

TEST_CASE("cast kernels: memory that is not aligned does for single elements only") {
  Run run;
  std::vector<std::uint32_t> in(41, std::bit_cast<std::uint32_t>(-3.0F));
  std::vector<std::uint16_t> out(41);
  const std::string kernel = cast_kernel_name(Cast::bf16, true);
  CHECK(run.cast(kernel, in.data() + 1, out.data(), 5, 40) == CudaCode::misaligned_address);
  CHECK(run.cast(kernel, in.data() + 1, out.data() + 1, 0, 40) == CudaCode::success);
  CHECK(out[40] == rounded(Cast::bf16, in[0]));
}

TEST_CASE("fake ptx: what is not understood is said") {
  std::string why;
  CHECK(FakePtx::parse("", why) == nullptr);
  CHECK(FakePtx::parse(".visible .entry k(.param .u64 p)\n{\n  brev.b32 x, x;\n}\n", why) == nullptr);
  CHECK(why == "brev.b32 x, x");
  CHECK(FakePtx::parse(".visible .entry k()\n{\n  mov.u32 x, 1;\n}\n", why) == nullptr);
  CHECK(FakePtx::parse(".visible .entry k()\n{\n  bra nowhere;\n}\n", why) == nullptr);
  CHECK(why == "nowhere");
}

#ifdef BPS_PTXAS
// NVIDIA's own assembler, where CMake has found one: the oldest and the newest GPU that it knows of these.
TEST_CASE("cast kernels: the assembler takes them") {
  const std::string path = "cast_kernels_test.ptx";
  const std::string made = "cast_kernels_test.cubin";
  std::ofstream(path) << cast_kernels_text();
  int assembled = 0;
  for (const char* const gpu : {"sm_50", "sm_75", "sm_90", "sm_100"}) {
    const std::string command = std::string(BPS_PTXAS) + " -arch=" + gpu + " " + path + " -o " + made;
    assembled += std::system((command + " >cast_kernels_test.log 2>&1").c_str()) == 0 ? 1 : 0;
  }
  // Each assembler has dropped some, or does not know them yet.
  CHECK(assembled >= 2);
  std::remove("cast_kernels_test.log");
  std::remove(made.c_str());
  std::remove(path.c_str());
}
#endif

}  // namespace
}  // namespace bps
