// The training of train_lm on GPUs: one worker for each, gradients averaged where they are, through bps.
//
//   bps-run -n 2 -s 2 -- ./train_gpu --steps 200 --check --save parameters.bin
//   ./train_gpu --reference 2 --steps 200 --save reference.bin      the same two shards in this one process
//   BPS_LOCAL_GROUP=nccl bps-run -n 2 -s 2 -- ./train_gpu --check   GPUs of one host sum by NCCL first
//
// Both files of the first two have the same bits on GPUs of one kind: kernels are deterministic, and the
// servers add in rank order, as the reference does. NCCL has an order of its own: there all ranks have the
// same bits, and the reference others.
//
// A gradient is handed over with the stream that computes it, so it leaves when it is there. Before the layer is
// read again the host waits until the average is being copied to the GPU, and the stream for that copy.
#include <bps/client.hpp>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpu_model.h"
#include "model.h"
#include "options.h"
#include "progress.h"
#include "text.h"

namespace {

int count_gpus() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  int driver = 0;
  if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    throw std::runtime_error("no GPU: NVIDIA's driver is not here; in a container, start it so that it sees the GPUs (--gpus all)");
  if (code != cudaSuccess) throw std::runtime_error(std::string("no GPU: ") + cudaGetErrorString(code));
  if (count == 0) throw std::runtime_error("no GPU");
  return count;
}

std::vector<std::vector<float>> parameters_of(const lm::GpuModel& model) {
  std::vector<std::vector<float>> parameters;
  for (const lm::GpuLayer& layer : model.layers())
    parameters.push_back(layer.parameters.read());
  return parameters;
}

void save(const lm::GpuModel& model, const std::string& path) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (const std::vector<float>& layer : parameters_of(model)) {
    out.write(reinterpret_cast<const char*>(layer.data()),
              static_cast<std::streamsize>(layer.size() * sizeof(float)));
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

// ---- checks ----

// The same numbers as on the CPU, but for roundings. Written so that a NaN does not pass.
void check_close(const std::string& what, double here, double there, double largest) {
  constexpr double kClose = 1e-4;
  if (std::fabs(here - there) <= kClose * largest) return;
  throw std::runtime_error("check failed: " + what + " is " + std::to_string(here) + " on the GPU and " +
                           std::to_string(there) + " on the CPU");
}

// Loss and gradients of one batch against the model of the CPU.
void check_against_cpu(const lm::Options& options, const std::string& text, unsigned rank, unsigned ranks) {
  const lm::Stream stream;
  lm::Model cpu(1);
  lm::GpuModel gpu(1, options.batch, stream);
  const lm::DeviceArray<float> loss(1);
  const lm::Batch batch =
      lm::draw_batch(lm::shard_of(text, rank, ranks), lm::kContext, options.batch, rank, 0);
  gpu.forward(batch, loss.data(), [](std::size_t) {});
  gpu.backward([](std::size_t) {});
  const float expected = cpu.forward(batch, [](std::size_t) {});
  cpu.backward(batch, [](std::size_t) {});
  stream.wait();
  check_close("the loss", loss.read()[0], expected, expected);
  for (std::size_t i = 0; i < gpu.layers().size(); ++i) {
    const std::vector<float>& there = cpu.layers()[i].gradient;
    const std::vector<float> here = gpu.layers()[i].gradient.read();
    double largest = 0.0;
    for (const float value : there)
      largest = std::fmax(largest, std::fabs(value));
    for (std::size_t j = 0; j < there.size(); ++j)
      check_close("gradient " + std::to_string(j) + " of " + gpu.layers()[i].name, here[j], there[j],
                  largest);
  }
  if (rank == 0) std::printf("check: loss and gradients of the first batch are the CPU's\n");
}

// A number that is another one if any bit of the parameters is.
std::int64_t fingerprint(const lm::GpuModel& model) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const std::vector<float>& layer : parameters_of(model)) {
    for (const float value : layer) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      sum = (sum ^ bits) * 0x100000001b3u;
    }
  }
  return static_cast<std::int64_t>(sum);
}

// ---- one process, all shards ----

void train_reference(const lm::Options& options) {
  const unsigned ranks = options.reference;
  const std::string text = lm::read_shardable_text(options, ranks);
  if (options.check) check_against_cpu(options, text, 0, ranks);
  const lm::Stream stream;
  lm::GpuModel model(1, options.batch, stream);
  const lm::DeviceArray<float> loss(1);
  std::vector<lm::DeviceArray<float>> sums;
  for (const lm::GpuLayer& layer : model.layers())
    sums.emplace_back(layer.parameters.size());
  lm::Progress progress(options.steps, false);
  for (unsigned step = 0; step < options.steps; ++step) {
    float losses = 0.0f;
    for (unsigned rank = 0; rank < ranks; ++rank) {
      const lm::Batch batch =
          lm::draw_batch(lm::shard_of(text, rank, ranks), lm::kContext, options.batch, rank, step);
      model.forward(batch, loss.data(), [](std::size_t) {});
      model.backward([&](std::size_t i) { model.add(model.layers()[i].gradient, rank == 0, sums[i]); });
      stream.wait();
      losses += loss.read()[0];
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      model.divide(sums[i], ranks);
      model.update(i, sums[i], options.rate);
    }
    progress.step(losses / static_cast<float>(ranks), std::size_t{options.batch} * ranks, 0, 0);
  }
  stream.wait();
  progress.finish();
  if (!options.save.empty()) save(model, options.save);
}

// ---- one worker of many ----

class Worker {
 public:
  Worker(const lm::Options& options, int device, bps::Client client)
      : options_(options),
        device_(device),
        rank_(static_cast<unsigned>(client.rank())),
        ranks_(static_cast<unsigned>(client.world_size())),
        text_(lm::read_shardable_text(options, ranks_)),
        model_(1 + rank_, options.batch, stream_),  // differs until the broadcast
        progress_(options.steps, rank_ != 0),
        client_(std::move(client)) {
    for (lm::DeviceArray<float>& loss : losses_)
      loss = lm::DeviceArray<float>(1);
    fingerprint_ = lm::DeviceArray<std::int64_t>(1);
    std::vector<bps::TensorSpec> specs;
    for (const lm::GpuLayer& layer : model_.layers()) {
      specs.push_back({layer.name, bps::DType::f32, layer.parameters.size()});
    }
    specs.push_back({"loss", bps::DType::f32, 1});
    specs.push_back({"fingerprint", bps::DType::i64, 1});
    tensors_ = client_.declare(specs);
    pending_.resize(model_.layers().size());
    applied_.resize(model_.layers().size());
  }

  void train() {
    if (options_.check) check_against_cpu(options_, text_, rank_, ranks_);
    for (std::size_t i = 0; i < pending_.size(); ++i)
      pending_[i] = client_.broadcast(tensors_[i], on_gpu(model_.layers()[i].parameters), 0);
    for (bps::Handle& handle : pending_) {
      handle.wait();
      handle = {};
    }
    for (unsigned step = 0; step < options_.steps; ++step)
      run_step(step);
    for (std::size_t i = 0; i < pending_.size(); ++i)
      update(i);
    for (const bps::Handle& handle : applied_)
      handle.wait();
    stream_.wait();
    report();
    progress_.finish();
    if (options_.check) compare_ranks();
    client_.close();
    if (rank_ == 0 && !options_.save.empty()) save(model_, options_.save);
  }

 private:
  template <class T>
  bps::CudaMemory on_gpu(const lm::DeviceArray<T>& memory) const {
    return {memory.data(), memory.bytes(), device_, stream_.get()};
  }
  bps::Tensor loss_tensor() const { return tensors_[tensors_.size() - 2]; }
  bps::Tensor fingerprint_tensor() const { return tensors_.back(); }

  void run_step(unsigned step) {
    const lm::Batch batch =
        lm::draw_batch(lm::shard_of(text_, rank_, ranks_), lm::kContext, options_.batch, rank_, step);
    // The loss of the step before is read while that of this one is written.
    const lm::DeviceArray<float>& loss = losses_[step % 2];
    model_.forward(batch, loss.data(), [this](std::size_t i) { update(i); });
    report();
    loss_ = &loss;
    pending_loss_ = client_.push_pull(loss_tensor(), on_gpu(loss), on_gpu(loss), bps::Op::average);
    model_.backward([this](std::size_t i) {
      // Its last operation has ended long ago, well or not: the host is a step ahead of the GPU at most.
      if (applied_[i]) applied_[i].wait();
      const bps::CudaMemory gradient = on_gpu(model_.layers()[i].gradient);
      pending_[i] = client_.push_pull(tensors_[i], gradient, gradient, bps::Op::average);
    });
  }

  // Layer i is about to be read: by then its average has arrived and is applied.
  void update(std::size_t i) {
    if (!pending_[i]) return;
    pending_[i].wait_stream(stream_.get());
    applied_[i] = std::move(pending_[i]);
    pending_[i] = {};
    model_.update(i, model_.layers()[i].gradient, options_.rate);
  }

  void report() {
    if (!pending_loss_) return;
    pending_loss_.wait();
    pending_loss_ = {};
    const bps::Client::Stats stats = client_.stats();
    progress_.step(loss_->read()[0], std::size_t{options_.batch} * ranks_, stats.pushed_bytes,
                   stats.pulled_bytes);
  }

  // The least and the greatest of all ranks' fingerprints are this one's.
  void compare_ranks() {
    const std::int64_t mine = fingerprint(model_);
    for (const bps::Op op : {bps::Op::min, bps::Op::max}) {
      fingerprint_.write({mine});
      client_.push_pull(fingerprint_tensor(), on_gpu(fingerprint_), on_gpu(fingerprint_), op).wait();
      if (fingerprint_.read()[0] != mine)
        throw std::runtime_error("check failed: rank " + std::to_string(rank_) +
                                 " has other parameters than another rank");
    }
    if (rank_ == 0) std::printf("check: %u ranks have the same parameters, bit by bit\n", ranks_);
  }

  const lm::Options& options_;
  const int device_;
  const unsigned rank_;
  const unsigned ranks_;
  const std::string text_;
  const lm::Stream stream_;
  lm::GpuModel model_;
  lm::DeviceArray<float> losses_[2];
  lm::DeviceArray<std::int64_t> fingerprint_;
  lm::Progress progress_;
  std::vector<bps::Tensor> tensors_;  // one per layer, then the loss and the fingerprint
  std::vector<bps::Handle> pending_;  // one per layer: its average is under way
  std::vector<bps::Handle> applied_;  // one per layer: its average, for which the stream waits
  bps::Handle pending_loss_;
  const lm::DeviceArray<float>* loss_ = nullptr;  // of that
  bps::Client client_;  // the last member, so the first to go: it may be using the memory above
};

}  // namespace

int main(int argc, char** argv) {
  const lm::Options options = lm::parse_options(argc, argv, "train_gpu");
  int gpus = 0;
  try {
    gpus = count_gpus();  // before the others wait for this worker
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpu: %s\n", error.what());
    return 78;
  }
  return bps::run_main(argv[0], [&] {
    if (options.reference != 0) return train_reference(options);
    bps::Client client{bps::Options{}};
    // The library's, where it has one by now: who starts it has said which (BPS_CUDA_DEVICE), or it sums by NCCL.
    const int known = client.info().cuda_device;
    const int device = known >= 0 ? known : client.local_rank() % gpus;
    lm::check(cudaSetDevice(device), "cudaSetDevice");
    Worker(options, device, std::move(client)).train();
  });
}
