// The run-time half of Highway: which targets this CPU has, and which one the dispatch tables use. Debian has
// it only inside a shared library, whose symbols every program that links libbpsclient would then see and
// need. Here it is linked in and hidden. AVX3_DL is never chosen: sums gain nothing from its instructions.
#define HWY_COMPILE_ALL_ATTAINABLE
#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "hwy/targets.h"
#include "proto/base/assert.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace hwy {
namespace {

std::atomic<std::int64_t> disabled_targets{0};
std::atomic<std::int64_t> targets_for_test{0};

#if HWY_ARCH_X86
// __builtin_cpu_supports of clang 14 does not know this one.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// The builtins also ask whether the operating system saves the wide registers.
std::int64_t detect() {
  __builtin_cpu_init();
  std::int64_t targets = 0;
  if (!__builtin_cpu_supports("ssse3")) return targets;
  targets |= HWY_SSSE3;
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul") ||
      !__builtin_cpu_supports("aes")) {
    return targets;
  }
  targets |= HWY_SSE4;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2") || !has_f16c()) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw")) {
    return targets;
  }
  return targets | HWY_AVX3;
}
#else
std::int64_t detect() { return HWY_ENABLED_BASELINE; }
#endif

}  // namespace

std::int64_t SupportedTargets() {
  static const std::int64_t detected = detect() | HWY_EMU128 | HWY_SCALAR;
  const std::int64_t for_test = targets_for_test.load();
  const std::int64_t targets = (for_test != 0 ? for_test : detected) & ~disabled_targets.load();
  return targets != 0 ? targets : HWY_STATIC_TARGET;
}

void DisableTargets(std::int64_t targets) {
  disabled_targets.store(targets);
  GetChosenTarget().DeInit();
}

void SetSupportedTargetsForTest(std::int64_t targets) {
  targets_for_test.store(targets);
  GetChosenTarget().DeInit();
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

void Abort(const char* file, int line, const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  bps::assertion_failed(text, file, line);
}

}  // namespace hwy
