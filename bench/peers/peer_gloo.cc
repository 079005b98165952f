// Gloo's all-reduce over TCP; one process a rank, which find each other through files in a folder.
//
// --algorithm ring:                the options interface, segments of at most 1 MiB; what PyTorch calls
//             bcube:               the same interface, its other algorithm
//             ring_chunked, halving_doubling:  the older classes, set up once for all rounds, in place
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

#include "bench/peers/rounds.h"

namespace {

using bps::peers::Arguments;

std::shared_ptr<gloo::rendezvous::Context> connect(const Arguments& arguments) {
  std::shared_ptr<gloo::transport::Device> device =
      gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(arguments.address.c_str()));
  gloo::rendezvous::FileStore store(arguments.store);
  auto context = std::make_shared<gloo::rendezvous::Context>(arguments.rank, arguments.size);
  context->setTimeout(std::chrono::minutes(3));
  context->connectFullMesh(store, device);
  return context;
}

void reduce_with_options(const std::shared_ptr<gloo::rendezvous::Context>& context,
                         gloo::AllreduceOptions::Algorithm algorithm, std::vector<float>& in,
                         std::vector<float>& out) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(algorithm);
  options.setInput(in.data(), in.size());
  options.setOutput(out.data(), out.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
}

int run(const Arguments& arguments) {
  std::shared_ptr<gloo::rendezvous::Context> context = connect(arguments);
  std::vector<float> in(arguments.elements);
  const auto barrier = [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  if (arguments.algorithm == "ring" || arguments.algorithm == "bcube") {
    const Algorithm algorithm = arguments.algorithm == "ring" ? Algorithm::RING : Algorithm::BCUBE;
    std::vector<float> out(arguments.elements);
    return bps::peers::run_rounds(arguments, arguments.rank, arguments.size, in, out, barrier,
                                  [&] { reduce_with_options(context, algorithm, in, out); });
  }
  const std::vector<float*> pointers{in.data()};
  const int count = static_cast<int>(arguments.elements);
  std::unique_ptr<gloo::Algorithm> algorithm;
  if (arguments.algorithm == "ring_chunked") {
    algorithm = std::make_unique<gloo::AllreduceRingChunked<float>>(context, pointers, count);
  } else if (arguments.algorithm == "halving_doubling") {
    algorithm = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, pointers, count);
  } else {
    throw std::invalid_argument("there is no algorithm '" + arguments.algorithm + "'");
  }
  return bps::peers::run_rounds(arguments, arguments.rank, arguments.size, in, in, barrier,
                                [&] { algorithm->run(); });
}

}  // namespace

int main(int argc, char** argv) {
  return bps::peers::guarded("peer_gloo", [&] { return run(bps::peers::parse_arguments(argc, argv)); });
}
