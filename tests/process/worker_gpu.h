// Of process_worker --device cuda: the tensors' memory on a GPU, and the copies by which the host fills and
// reads it. Apart from the worker, because the names of the driver's side and those of client.hpp do not go
// together.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

class WorkerGpu {
 public:
  // What a push_pull is told.
  struct Memory {
    void* pointer = nullptr;
    std::size_t bytes = 0;
    int device = 0;
    void* stream = nullptr;
  };

  // The GPU of this local rank: that modulo how many there are. Throws std::runtime_error.
  WorkerGpu(int local_rank, const std::vector<std::span<float>>& tensors);
  ~WorkerGpu();

  void write(std::size_t tensor, std::span<const float> values);
  void read(std::size_t tensor, std::span<float> values);
  Memory memory(std::size_t tensor) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
