// The kernels' text, run instruction by instruction (fake/fake_ptx.h), against rounding by definition.
#include "client/local/cuda/cast_kernels.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "client/local/cuda/fake/fake_ptx.h"
#include "proto/reduce/oracle.h"

namespace bps {
namespace {

using reduce::oracle::Format;

const Format& format_of(Cast cast) {
  return cast == Cast::bf16 ? reduce::oracle::kBF16 : reduce::oracle::kF16;
}
bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

// A NaN stays one, quiet, with its sign and the upper bits of what it was.
std::uint16_t rounded(Cast cast, std::uint32_t bits) {
  if (is_nan(bits)) {
    const auto sign = bits >> 16 & 0x8000;
    const auto mantissa = bits & 0x7fffff;
    return static_cast<std::uint16_t>(cast == Cast::bf16 ? sign | 0x7f80 | mantissa >> 16 | 0x40
                                                         : sign | 0x7c00 | mantissa >> 13 | 0x200);
  }
  const auto value = static_cast<double>(std::bit_cast<float>(bits));
  return static_cast<std::uint16_t>(reduce::oracle::encode(value, format_of(cast)));
}

std::vector<std::uint32_t> interesting_numbers() {
  std::vector<std::uint32_t> all;
  const auto add = [&](std::uint32_t bits) { all.insert(all.end(), {bits, bits ^ 0x80000000}); };
  // Each half's neighbours and ties: of bf16 in every exponent, of f16 where it has numbers.
  for (std::uint32_t half = 0; half < 0x8000; half += 61) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      add(half << 16 | low);
    const auto f16 = static_cast<float>(reduce::oracle::decode(half, reduce::oracle::kF16));
    const auto bits = std::bit_cast<std::uint32_t>(f16);
    for (const std::uint32_t more : {0x0fffu, 0x1000u, 0x1001u})
      add(bits + more);
  }
  for (const std::uint32_t bits :
       {0u, 1u, 0x007fffffu, 0x00800000u, 0x33000000u, 0x33000001u, 0x387fc000u, 0x387fe000u, 0x38800000u,
        0x477fe000u, 0x477fefffu, 0x477ff000u, 0x7f7fffffu, 0x7f7f8000u, 0x7f800000u, 0x7f800001u,
        0x7fbfffffu, 0x7fc00000u, 0x7fffffffu})
    add(bits);
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i)
    add(static_cast<std::uint32_t>(random()));
  return all;
}

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
