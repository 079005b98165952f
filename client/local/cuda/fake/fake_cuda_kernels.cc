// Modules and kernels of FakeCuda.
#include <utility>

#include "client/local/cuda/fake/fake_machine.h"

namespace bps {

CudaCode FakeCuda::load_module(CudaModule& module, const char* text) {
  return call(CudaCall::load_module, [&](Machine& m) {
    std::string why;
    auto parsed = FakePtx::parse(text, why);
    if (parsed == nullptr) {
      m.misuse("cuModuleLoadData does not understand: " + why);
      return CudaCode::invalid_text;
    }
    auto made = std::make_unique<Machine::Module>(Machine::Module{m.current_device(), std::move(parsed), {}});
    module = reinterpret_cast<CudaModule>(made.get());
    m.modules[module] = std::move(made);
    return CudaCode::success;
  });
}

CudaCode FakeCuda::unload_module(CudaModule module) {
  return shared_->monitor.update([&](Machine& m) {
    const auto decided = m.enter(CudaCall::unload_module, true);
    const auto found = m.modules.find(module);
    if (found == m.modules.end()) {
      m.misuse("cuModuleUnload of a module that is none");
      return CudaCode::invalid_value;
    }
    for (const auto& [name, kernel] : found->second->kernels) {
      if (m.is_in_use({reinterpret_cast<const std::byte*>(kernel.get()), 1}))
        m.misuse("a module is unloaded while its kernels run");
    }
    m.modules.erase(found);
    return decided.value_or(CudaCode::success);
  });
}

CudaCode FakeCuda::find_kernel(CudaKernel& kernel, CudaModule module, const char* name) {
  return call(CudaCall::find_kernel, [&](Machine& m) {
    const auto found = m.modules.find(module);
    if (found == m.modules.end()) return CudaCode::invalid_value;
    Machine::Module& in = *found->second;
    if (!in.text->has(name)) return CudaCode::not_found;
    auto& known = in.kernels[name];
    if (known == nullptr) known = std::make_unique<Machine::Kernel>(Machine::Kernel{name, in.text, false});
    kernel = reinterpret_cast<CudaKernel>(known.get());
    return CudaCode::success;
  });
}

// Memory counts as in use as far as it is allocated together with what an argument points to.
CudaCode FakeCuda::launch(CudaKernel handle, const CudaGrid& grid, void** arguments, CudaStream stream) {
  return call(CudaCall::launch, [&](Machine& m) {
    auto* const kernel = m.kernel(handle);
    auto* const where = m.stream(CudaCall::launch, stream);
    if (kernel == nullptr || where == nullptr) return CudaCode::invalid_value;
    // That is when its code is brought to the device.
    if (!std::exchange(kernel->is_used, true) && m.is_word_waited_for())
      m.misuse("the first launch of a kernel may wait for a stream that waits for a word");
    std::vector<std::uint64_t> values(kernel->text->parameters(kernel->name));
    std::vector<Machine::Range> memory = {{reinterpret_cast<const std::byte*>(kernel), 1}};
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = *static_cast<const std::uint64_t*>(arguments[i]);
      if (const auto* const found = m.allocation_of({reinterpret_cast<const std::byte*>(values[i]), 1}))
        memory.push_back({found->memory.get(), found->bytes});
    }
    const auto run = [&m, text = kernel->text, name = kernel->name, grid, values] {
      const CudaCode code = text->run(name, grid, values, [&m](const std::byte* at, std::size_t bytes) {
        return m.allocation_of({at, bytes}) != nullptr;
      });
      if (code == CudaCode::success) return;
      m.misuse(name + " touches what it must not: " + std::to_string(static_cast<int>(code)));
      m.lose_after(code);
    };
    m.queue(*where, {.finish = run, .memory = std::move(memory)});
    return CudaCode::success;
  });
}

}  // namespace bps
