// Modules and kernels of FakeCuda.
#include <utility>

#include "client/src/gpu/fake/fake_machine.h"

namespace bps {

void FakeCuda::play(const std::string& kernel, Play play) {
  shared_->monitor.update(
      [&](Machine& m) { m.plays[kernel] = std::make_shared<const Play>(std::move(play)); });
}

CudaCode FakeCuda::load_module(CudaModule& module, const char* text) {
  return call(CudaCall::load_module, [&](Machine& m) {
    Machine::Module made{m.current_device(), {}};
    for (const auto& [name, play] : m.plays) {
      if (std::string_view(text).find(".entry " + name + "(") != std::string_view::npos)
        made.kernels[name] = std::make_unique<Machine::Kernel>(Machine::Kernel{name, play});
    }
    if (made.kernels.empty()) {
      m.misuse("cuModuleLoadData of a text without a kernel that is played");
      return CudaCode::invalid_text;
    }
    auto loaded = std::make_unique<Machine::Module>(std::move(made));
    module = reinterpret_cast<CudaModule>(loaded.get());
    m.modules[module] = std::move(loaded);
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
    const auto played = found->second->kernels.find(name);
    if (played == found->second->kernels.end()) return CudaCode::not_found;
    kernel = reinterpret_cast<CudaKernel>(played->second.get());
    return CudaCode::success;
  });
}

CudaCode FakeCuda::launch(CudaKernel handle, const CudaGrid& grid, void** arguments, CudaStream stream) {
  return call(CudaCall::launch, [&](Machine& m) {
    auto* const kernel = m.kernel(handle);
    auto* const where = m.stream(CudaCall::launch, stream);
    if (kernel == nullptr || where == nullptr) return CudaCode::invalid_value;
    auto work = (*kernel->play)(grid, arguments);
    if (!work) return CudaCode::invalid_value;
    Machine::Operation operation = m.operation_of(*std::move(work), kernel->name);
    operation.memory.push_back({reinterpret_cast<const std::byte*>(kernel), 1});
    m.queue(*where, std::move(operation));
    return CudaCode::success;
  });
}

// What another library, or a kernel that is played, does.
FakeCuda::Machine::Operation FakeCuda::Machine::operation_of(Work work, const std::string& what) {
  Operation operation;
  operation.may_start = std::move(work.may_start);
  operation.finish = std::move(work.finish);
  for (const auto& [start, bytes] : work.memory) {
    const Range range{static_cast<const std::byte*>(start), bytes};
    if (allocation_of(range) == nullptr) misuse(what + " on memory that is not a device's");
    operation.memory.push_back(range);
  }
  return operation;
}

}  // namespace bps
