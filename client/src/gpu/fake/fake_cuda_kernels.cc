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
    Machine::Module made{m.current_device(), nullptr, {}};
    for (const auto& [name, play] : m.plays) {
      if (std::string_view(text).find(".entry " + name + "(") != std::string_view::npos)
        made.kernels[name] = std::make_unique<Machine::Kernel>(Machine::Kernel{name, nullptr, play, false});
    }
    if (made.kernels.empty()) {
      std::string why;
      made.text = FakePtx::parse(text, why);
      if (made.text == nullptr) {
        m.misuse("cuModuleLoadData does not understand: " + why);
        return CudaCode::invalid_text;
      }
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
    Machine::Module& in = *found->second;
    if (in.kernels.count(name) == 0) {
      if (in.text == nullptr || !in.text->has(name)) return CudaCode::not_found;
      in.kernels[name] = std::make_unique<Machine::Kernel>(Machine::Kernel{name, in.text, nullptr, false});
    }
    kernel = reinterpret_cast<CudaKernel>(in.kernels[name].get());
    return CudaCode::success;
  });
}

CudaCode FakeCuda::launch(CudaKernel handle, const CudaGrid& grid, void** arguments, CudaStream stream) {
  return call(CudaCall::launch, [&](Machine& m) {
    auto* const kernel = m.kernel(handle);
    auto* const where = m.stream(CudaCall::launch, stream);
    if (kernel == nullptr || where == nullptr) return CudaCode::invalid_value;
    // That is when its code is brought to the device.
    if (!std::exchange(kernel->is_used, true) && m.is_word_waited_for())
      m.misuse("the first launch of a kernel may wait for a stream that waits for a word");
    auto operation = kernel->play ? m.played(*kernel, grid, arguments) : m.run(*kernel, grid, arguments);
    if (!operation) return CudaCode::invalid_value;
    operation->memory.push_back({reinterpret_cast<const std::byte*>(kernel), 1});
    m.queue(*where, *std::move(operation));
    return CudaCode::success;
  });
}

// Memory counts as in use as far as it is allocated together with what an argument points to.
std::optional<FakeCuda::Machine::Operation> FakeCuda::Machine::run(const Kernel& kernel, const CudaGrid& grid,
                                                                   void** arguments) {
  Operation operation;
  std::vector<std::uint64_t> values(kernel.text->parameters(kernel.name));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = *static_cast<const std::uint64_t*>(arguments[i]);
    if (const auto* const found = allocation_of({reinterpret_cast<const std::byte*>(values[i]), 1}))
      operation.memory.push_back({found->memory.get(), found->bytes});
  }
  operation.finish = [this, text = kernel.text, name = kernel.name, grid, values] {
    const CudaCode code = text->run(name, grid, values, [this](const std::byte* at, std::size_t bytes) {
      return allocation_of({at, bytes}) != nullptr;
    });
    if (code == CudaCode::success) return;
    misuse(name + " touches what it must not: " + std::to_string(static_cast<int>(code)));
    lose_after(code);
  };
  return operation;
}

std::optional<FakeCuda::Machine::Operation> FakeCuda::Machine::played(const Kernel& kernel,
                                                                      const CudaGrid& grid,
                                                                      void** arguments) {
  auto work = (*kernel.play)(grid, arguments);
  if (!work) return std::nullopt;
  return operation_of(*std::move(work), kernel.name);
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
