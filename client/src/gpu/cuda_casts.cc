#include "client/src/gpu/cuda_casts.h"

#include <algorithm>
#include <utility>

namespace bps {

Status CudaCasts::open(CudaStream stream) {
  CudaApi& api = device_.api();
  const std::string text = cast_kernels_text();
  if (const CudaCode code = api.load_module(module_, text.c_str()); code != CudaCode::success)
    return device_.error(CudaCall::load_module, code);
  void* memory = nullptr;
  if (const CudaCode code = api.allocate(memory, 2 * kBufferBytes); code != CudaCode::success)
    return device_.error(CudaCall::allocate, code);
  buffers_ = static_cast<std::byte*>(memory);
  for (const Cast cast : {Cast::bf16, Cast::f16}) {
    for (const bool is_to_wire : {true, false}) {
      CudaKernel& kernel = (is_to_wire ? to_wire_ : from_wire_)[index(cast)];
      const std::string name = cast_kernel_name(cast, is_to_wire);
      if (const CudaCode code = api.find_kernel(kernel, module_, name.c_str()); code != CudaCode::success)
        return device_.error(CudaCall::find_kernel, code);
      if (Status launched = launch(kernel, buffers_, buffers_, 0, stream); !launched.ok()) return launched;
    }
  }
  is_open_ = true;
  return {};
}

Status CudaCasts::to_wire(Cast cast, std::byte* wire, const std::byte* memory, std::size_t elements,
                          CudaStream stream) {
  return launch(to_wire_[index(cast)], memory, wire, elements, stream);
}

Status CudaCasts::from_wire(Cast cast, std::byte* memory, const std::byte* wire, std::size_t elements,
                            CudaStream stream) {
  return launch(from_wire_[index(cast)], wire, memory, elements, stream);
}

Status CudaCasts::launch(CudaKernel kernel, const std::byte* in, std::byte* out, std::size_t elements,
                         CudaStream stream) {
  auto from = reinterpret_cast<std::uint64_t>(in);
  auto to = reinterpret_cast<std::uint64_t>(out);
  const bool is_wide = from % kAlignment == 0 && to % kAlignment == 0;
  std::uint64_t eights = is_wide ? elements / 8 : 0;
  std::uint64_t count = elements;
  std::array<void*, 4> arguments = {&from, &to, &eights, &count};
  const std::size_t work = is_wide ? (elements + 7) / 8 : elements;
  CudaGrid grid;
  grid.blocks_x =
      static_cast<std::uint32_t>(std::clamp<std::size_t>((work + kThreads - 1) / kThreads, 1, kMostBlocks));
  grid.threads_x = kThreads;
  return device_.check(CudaCall::launch, device_.api().launch(kernel, grid, arguments.data(), stream));
}

void CudaCasts::close() {
  if (buffers_ != nullptr) (void)device_.api().free(std::exchange(buffers_, nullptr));
  if (module_ != nullptr) (void)device_.api().unload_module(std::exchange(module_, nullptr));
  is_open_ = false;
}

}  // namespace bps
