#include "client/src/gpu/cast_kernels.h"

#include <algorithm>
#include <string_view>

namespace bps {
namespace {

// ---- one element: from the bits $x to the bits $o, of which a half is the lower 16 ----

// Adds what carries into the upper half where that is nearer, or as near and even.
constexpr std::string_view kToBf16 = R"(  {
    .reg .pred is_nan;
    .reg .b32 high, half, quiet, size;
    shr.u32 high, $x, 16;
    and.b32 half, high, 1;
    add.u32 half, half, 32767;
    add.u32 half, $x, half;
    shr.u32 half, half, 16;
    or.b32 quiet, high, 64;
    and.b32 size, $x, 0x7fffffff;
    setp.gt.u32 is_nan, size, 0x7f800000;
    selp.b32 $o, quiet, half, is_nan;
  }
)";

// The conversion makes one NaN of all.
constexpr std::string_view kToF16 = R"(  {
    .reg .pred is_nan;
    .reg .f32 number;
    .reg .b16 converted;
    .reg .b32 sign, half, quiet, size;
    mov.b32 number, $x;
    cvt.rn.f16.f32 converted, number;
    cvt.u32.u16 half, converted;
    shr.u32 sign, $x, 16;
    and.b32 sign, sign, 0x8000;
    shr.u32 quiet, $x, 13;
    and.b32 quiet, quiet, 0x3ff;
    or.b32 quiet, quiet, 0x7e00;
    or.b32 quiet, quiet, sign;
    and.b32 size, $x, 0x7fffffff;
    setp.gt.u32 is_nan, size, 0x7f800000;
    selp.b32 $o, quiet, half, is_nan;
  }
)";

constexpr std::string_view kFromBf16 = R"(  shl.b32 $o, $x, 16;
)";

constexpr std::string_view kFromF16 = R"(  {
    .reg .b16 half;
    .reg .f32 number;
    cvt.u16.u32 half, $x;
    cvt.f32.f16 number, half;
    mov.b32 $o, number;
  }
)";

// ---- what is around them ----

constexpr std::string_view kHeader = R"(.version 6.0
.target sm_50
.address_size 64
)";

// Thread i casts the groups of eight i, i + step, ..., then likewise what elements are left.
constexpr std::string_view kBegin = R"(
.visible .entry $name(.param .u64 p_in, .param .u64 p_out, .param .u64 p_eights, .param .u64 p_count)
{
  .reg .pred is_over;
  .reg .b32 thread, block, threads, blocks, x<8>, y<8>, pair<4>;
  .reg .b64 in, out, eights, count, i, step, at, offset;
  ld.param.u64 in, [p_in];
  ld.param.u64 out, [p_out];
  ld.param.u64 eights, [p_eights];
  ld.param.u64 count, [p_count];
  cvta.to.global.u64 in, in;
  cvta.to.global.u64 out, out;
  mov.u32 thread, %tid.x;
  mov.u32 threads, %ntid.x;
  mov.u32 block, %ctaid.x;
  mov.u32 blocks, %nctaid.x;
  mul.wide.u32 i, block, threads;
  cvt.u64.u32 at, thread;
  add.u64 i, i, at;
  mul.wide.u32 step, blocks, threads;
  mov.u64 at, i;
next_eight:
  setp.ge.u64 is_over, at, eights;
  @is_over bra no_eight;
)";

constexpr std::string_view kLoadEightF32 = R"(  shl.b64 offset, at, 5;
  add.u64 offset, offset, in;
  ld.global.v4.u32 {x0, x1, x2, x3}, [offset];
  ld.global.v4.u32 {x4, x5, x6, x7}, [offset+16];
)";
constexpr std::string_view kStorePair = R"(  shl.b32 $b, $b, 16;
  or.b32 $pair, $a, $b;
)";
constexpr std::string_view kStoreEightHalves = R"(  shl.b64 offset, at, 4;
  add.u64 offset, offset, out;
  st.global.v4.u32 [offset], {pair0, pair1, pair2, pair3};
)";

constexpr std::string_view kLoadEightHalves = R"(  shl.b64 offset, at, 4;
  add.u64 offset, offset, in;
  ld.global.v4.u32 {pair0, pair1, pair2, pair3}, [offset];
)";
constexpr std::string_view kLoadPair = R"(  and.b32 $a, $pair, 0xffff;
  shr.u32 $b, $pair, 16;
)";
constexpr std::string_view kStoreEightF32 = R"(  shl.b64 offset, at, 5;
  add.u64 offset, offset, out;
  st.global.v4.u32 [offset], {y0, y1, y2, y3};
  st.global.v4.u32 [offset+16], {y4, y5, y6, y7};
)";

constexpr std::string_view kAfterEights = R"(  add.u64 at, at, step;
  bra next_eight;
no_eight:
  shl.b64 at, eights, 3;
  add.u64 at, at, i;
next_one:
  setp.ge.u64 is_over, at, count;
  @is_over bra no_one;
)";
constexpr std::string_view kLoadF32 = R"(  shl.b64 offset, at, 2;
  add.u64 offset, offset, in;
  ld.global.u32 x0, [offset];
)";
constexpr std::string_view kStoreHalf = R"(  shl.b64 offset, at, 1;
  add.u64 offset, offset, out;
  st.global.u16 [offset], y0;
)";
constexpr std::string_view kLoadHalf = R"(  shl.b64 offset, at, 1;
  add.u64 offset, offset, in;
  ld.global.u16 x0, [offset];
)";
constexpr std::string_view kStoreF32 = R"(  shl.b64 offset, at, 2;
  add.u64 offset, offset, out;
  st.global.u32 [offset], y0;
)";
constexpr std::string_view kEnd = R"(  add.u64 at, at, step;
  bra next_one;
no_one:
  ret;
}
)";

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = std::min(text.find(what, at), text.size());
    all += text.substr(at, next - at);
    if (next < text.size()) all += by;
    at = next < text.size() ? next + what.size() : next;
  }
  return all;
}

std::string one(std::string_view element, std::size_t i) {
  const std::string number = std::to_string(i);
  return replaced(replaced(element, "$x", "x" + number), "$o", "y" + number);
}

std::string eight(std::string_view element) {
  std::string text;
  for (std::size_t i = 0; i < 8; ++i)
    text += one(element, i);
  return text;
}

// Of the lower halves of `name`0 and `name`1, ...
std::string four_pairs(std::string_view pair, const std::string& name) {
  std::string text;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string a = name + std::to_string(2 * i);
    const std::string b = name + std::to_string(2 * i + 1);
    text += replaced(replaced(replaced(pair, "$a", a), "$b", b), "$pair", "pair" + std::to_string(i));
  }
  return text;
}

std::string kernel(Cast cast, bool to_wire) {
  std::string text = replaced(kBegin, "$name", cast_kernel_name(cast, to_wire));
  if (to_wire) {
    const std::string_view element = cast == Cast::bf16 ? kToBf16 : kToF16;
    text.append(kLoadEightF32).append(eight(element)).append(four_pairs(kStorePair, "y"));
    text.append(kStoreEightHalves).append(kAfterEights);
    text.append(kLoadF32).append(one(element, 0)).append(kStoreHalf);
  } else {
    const std::string_view element = cast == Cast::bf16 ? kFromBf16 : kFromF16;
    text.append(kLoadEightHalves).append(four_pairs(kLoadPair, "x")).append(eight(element));
    text.append(kStoreEightF32).append(kAfterEights);
    text.append(kLoadHalf).append(one(element, 0)).append(kStoreF32);
  }
  return text.append(kEnd);
}

}  // namespace

std::string cast_kernels_text() {
  std::string text(kHeader);
  for (const Cast cast : {Cast::bf16, Cast::f16})
    text += kernel(cast, true) + kernel(cast, false);
  return text;
}

std::string cast_kernel_name(Cast cast, bool to_wire) {
  const std::string half = cast == Cast::bf16 ? "bf16" : "f16";
  return to_wire ? "bps_f32_to_" + half : "bps_" + half + "_to_f32";
}

}  // namespace bps
