#include "bench/gpu/kernels.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace bps::bench {
namespace {

// As cuda.h declares them; results are an enum there.
struct Functions {
  int (*load)(void** module, const void* ptx);
  int (*unload)(void* module);
  int (*find)(void** kernel, void* module, const char* name);
  int (*launch)(void* kernel, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void* stream, void** arguments,
                void** extra);
};

class RealKernels final : public Kernels {
 public:
  explicit RealKernels(const Functions& driver) : driver_(driver) {}

  CudaCode load(CudaModule& module, const char* ptx) override {
    void* made = nullptr;
    const auto code = CudaCode(driver_.load(&made, ptx));
    module = static_cast<CudaModule>(made);
    return code;
  }
  CudaCode unload(CudaModule module) override { return CudaCode(driver_.unload(module)); }
  CudaCode find(CudaKernel& kernel, CudaModule module, const char* name) override {
    void* found = nullptr;
    const auto code = CudaCode(driver_.find(&found, module, name));
    kernel = static_cast<CudaKernel>(found);
    return code;
  }
  CudaCode launch(CudaKernel kernel, const CudaGrid& grid, void** arguments, CudaStream stream) override {
    return CudaCode(driver_.launch(kernel, grid.blocks_x, grid.blocks_y, 1, grid.threads_x, grid.threads_y, 1,
                                   0, stream, arguments, nullptr));
  }

 private:
  const Functions driver_;
};

}  // namespace

Result<std::shared_ptr<Kernels>> open_kernels(const char* library) {
  void* const driver = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  const char* const why = driver == nullptr ? ::dlerror() : nullptr;
  Functions functions{};
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(driver, name));
    if (function == nullptr) missing = name;
  };
  if (driver != nullptr) {
    find("cuModuleLoadData", functions.load);
    find("cuModuleUnload", functions.unload);
    find("cuModuleGetFunction", functions.find);
    find("cuLaunchKernel", functions.launch);
  }
  if (driver == nullptr || missing != nullptr)
    return make_error(
        ErrorCode::configuration,
        fmt::format("no GPU: {}", why != nullptr ? why : fmt::format("{} has no {}", library, missing)),
        "install NVIDIA's driver");
  return std::shared_ptr<Kernels>(std::make_shared<RealKernels>(functions));
}

}  // namespace bps::bench
