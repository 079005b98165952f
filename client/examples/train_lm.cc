// Trains a byte-level language model on real text, data-parallel: each worker has its shard of the text,
// gradients are averaged through bps, layer by layer.
//
//   bps-run -n 4 -s 2 -- ./train_lm --steps 200 --save parameters.bin
//   ./train_lm --reference 4 --steps 200 --save reference.bin       the same four shards in this one process
//
// Both files have the same bits: the servers add the gradients in rank order, as the reference does.
//
// What overlaps with what: a layer's gradient leaves as soon as the backward pass has it, last layer first;
// the next forward pass waits for a layer's average only when it needs that layer. Layers are declared in
// forward order, so the first layer's gradient, which is ready last and needed first, overtakes the others on
// its way.
#include <bps/client.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model.h"
#include "options.h"
#include "progress.h"
#include "text.h"

namespace {

void save(const lm::Model& model, const std::string& path) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (const lm::Layer& layer : model.layers()) {
    out.write(reinterpret_cast<const char*>(layer.parameters.data()),
              static_cast<std::streamsize>(layer.parameters.size() * sizeof(float)));
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

std::vector<lm::Momentum> make_optimizers(const lm::Model& model) {
  std::vector<lm::Momentum> optimizers;
  for (const lm::Layer& layer : model.layers())
    optimizers.emplace_back(layer.parameters.size());
  return optimizers;
}

// ---- one process, all shards ----

// What a server does, in the same order: the sum starts as rank 0's gradient, the others are added by rank,
// and the average is that sum divided by the number of ranks.
void add_contribution(const std::vector<float>& gradient, bool first, std::vector<float>& sum) {
  if (first) {
    sum = gradient;
  } else {
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += gradient[i];
  }
}

void train_reference(const lm::Options& options) {
  const unsigned ranks = options.reference;
  const std::string text = lm::read_shardable_text(options, ranks);
  lm::Model model(1);
  std::vector<lm::Momentum> optimizers = make_optimizers(model);
  std::vector<std::vector<float>> sums(model.layers().size());
  lm::Progress progress(options.steps, false);
  for (unsigned step = 0; step < options.steps; ++step) {
    float loss = 0.0f;
    for (unsigned rank = 0; rank < ranks; ++rank) {
      const lm::Batch batch =
          lm::draw_batch(lm::shard_of(text, rank, ranks), lm::kContext, options.batch, rank, step);
      loss += model.forward(batch, [](std::size_t) {});
      model.backward(
          batch, [&](std::size_t i) { add_contribution(model.layers()[i].gradient, rank == 0, sums[i]); });
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      for (float& value : sums[i])
        value /= static_cast<float>(ranks);
      optimizers[i].update(sums[i].data(), options.rate, model.layers()[i].parameters);
    }
    progress.step(loss / static_cast<float>(ranks), std::size_t{options.batch} * ranks, 0, 0);
  }
  progress.finish();
  if (!options.save.empty()) save(model, options.save);
}

// ---- one worker of many ----

class Worker {
 public:
  Worker(const lm::Options& options, bps::Client client)
      : options_(options),
        rank_(static_cast<unsigned>(client.rank())),
        ranks_(static_cast<unsigned>(client.world_size())),
        text_(lm::read_shardable_text(options, ranks_)),
        model_(1 + rank_),  // differs until the broadcast
        optimizers_(make_optimizers(model_)),
        progress_(options.steps, rank_ != 0),
        client_(std::move(client)) {
    std::vector<bps::TensorSpec> specs;
    for (const lm::Layer& layer : model_.layers()) {
      specs.push_back({layer.name, bps::DType::f32, layer.parameters.size()});
    }
    specs.push_back({"loss", bps::DType::f32, 1});
    tensors_ = client_.declare(specs);
    pending_.resize(model_.layers().size());
  }

  void train() {
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      pending_[i] = client_.broadcast(tensors_[i], model_.layers()[i].parameters, 0);
    }
    for (bps::Handle& handle : pending_) {
      handle.wait();
      handle = {};
    }
    for (unsigned step = 0; step < options_.steps; ++step)
      run_step(step);
    for (std::size_t i = 0; i < pending_.size(); ++i)
      update(i);
    report();
    progress_.finish();
    client_.close();
    if (rank_ == 0 && !options_.save.empty()) save(model_, options_.save);
  }

 private:
  void run_step(unsigned step) {
    const lm::Batch batch =
        lm::draw_batch(lm::shard_of(text_, rank_, ranks_), lm::kContext, options_.batch, rank_, step);
    const float loss = model_.forward(batch, [this](std::size_t i) { update(i); });
    report();
    loss_ = loss;
    pending_loss_ = client_.push_pull(tensors_.back(), &loss_, &loss_, bps::Op::average);
    model_.backward(batch, [this](std::size_t i) {
      std::vector<float>& gradient = model_.layers()[i].gradient;
      pending_[i] = client_.push_pull(tensors_[i], gradient, gradient, bps::Op::average);
    });
  }

  // Layer i is about to be read: its average must have arrived and been applied.
  void update(std::size_t i) {
    if (!pending_[i]) return;
    pending_[i].wait();
    pending_[i] = {};
    optimizers_[i].update(model_.layers()[i].gradient.data(), options_.rate, model_.layers()[i].parameters);
  }

  // The loss of the step before has long arrived.
  void report() {
    if (!pending_loss_) return;
    pending_loss_.wait();
    pending_loss_ = {};
    const bps::Client::Stats stats = client_.stats();
    progress_.step(loss_, std::size_t{options_.batch} * ranks_, stats.pushed_bytes, stats.pulled_bytes);
  }

  const lm::Options& options_;
  const unsigned rank_;
  const unsigned ranks_;
  const std::string text_;
  lm::Model model_;
  std::vector<lm::Momentum> optimizers_;
  lm::Progress progress_;
  std::vector<bps::Tensor> tensors_;  // one per layer, then the loss
  std::vector<bps::Handle> pending_;  // one per layer
  bps::Handle pending_loss_;
  float loss_ = 0.0f;
  bps::Client client_;  // the last member, so the first to go: it may be using the memory above
};

}  // namespace

int main(int argc, char** argv) {
  const lm::Options options = lm::parse_options(argc, argv, "train_lm");
  return bps::run_main(argv[0], [&] {
    if (options.reference != 0) {
      train_reference(options);
    } else {
      Worker(options, bps::Client{bps::Options{}}).train();
    }
  });
}
