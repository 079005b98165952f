// Gloo's all-reduce and others over TCP; one process a rank, which find each other through files in a folder.
//
// --algorithm ring:                the options interface, segments of at most 1 MiB; what PyTorch calls
//             bcube:               the same interface, its other algorithm
//             ring_chunked, halving_doubling:  the older classes, set up once for all rounds, in place
//             all_gather, reduce_scatter:      Gloo's own, of a tensor in equal parts
//             fsdp:   an all_gather, then another one beside a reduce_scatter, each with connections of its
//             own
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <thread>

#include "bench/peers/rounds.h"

namespace {

using bps::peers::Arguments;

// `name`: of these connections.
std::shared_ptr<gloo::rendezvous::Context> connect(const Arguments& arguments, const std::string& name) {
  std::shared_ptr<gloo::transport::Device> device =
      gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(arguments.address.c_str()));
  gloo::rendezvous::FileStore files(arguments.store);
  gloo::rendezvous::PrefixStore store(name, files);
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

void wait_for_all(const std::shared_ptr<gloo::rendezvous::Context>& context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

// Of a tensor in equal parts, one for each rank.
int run_parts(const Arguments& arguments) {
  const bool gathers = arguments.algorithm != "reduce_scatter";
  const bool scatters = arguments.algorithm != "all_gather";
  const auto size = static_cast<std::size_t>(arguments.size);
  const std::size_t part = arguments.elements / size;
  if (part * size != arguments.elements) throw std::invalid_argument("--bytes do not give equal parts");
  const auto gathering = connect(arguments, "gather"), scattering = connect(arguments, "scatter");
  std::vector<float> mine(part), whole(arguments.elements), gradient(arguments.elements);
  const auto gather = [&] {
    gloo::AllgatherOptions options(gathering);
    options.setInput(mine.data(), mine.size());
    options.setOutput(whole.data(), whole.size());
    gloo::allgather(options);
  };
  // It leaves the rank's part where the tensor begins.
  gloo::ReduceScatterHalvingDoubling<float> scatter(scattering, std::vector<float*>{gradient.data()},
                                                    static_cast<int>(arguments.elements),
                                                    std::vector<int>(size, static_cast<int>(part)));
  const auto begin = [&](std::int64_t round) {
    bps::peers::fill(mine, arguments.rank, round);
    bps::peers::fill(gradient, arguments.rank, round);
    std::fill(whole.begin(), whole.end(), -1.0F);
    wait_for_all(gathering);
  };
  const auto exchange = [&] {
    if (!gathers) return scatter.run();
    gather();
    if (!scatters) return;
    std::thread beside([&] { scatter.run(); });
    gather();
    beside.join();
  };
  const auto wrong = [&](std::int64_t round) {
    const std::size_t first = part * static_cast<std::size_t>(arguments.rank);
    return (gathers ? bps::peers::count_wrong_parts(whole, arguments.size, round) : 0) +
           (scatters ? bps::peers::count_wrong(gradient.data(), first, part, arguments.size, round) : 0);
  };
  const int status = bps::peers::run_exchanges(arguments, arguments.rank, begin, exchange, wrong);
  wait_for_all(gathering);  // who ends first would close connections that others still read
  return status;
}

int run(const Arguments& arguments) {
  for (const char* const exchange : {"all_gather", "reduce_scatter", "fsdp"})
    if (arguments.algorithm == exchange) return run_parts(arguments);
  std::shared_ptr<gloo::rendezvous::Context> context = connect(arguments, "reduce");
  std::vector<float> in(arguments.elements);
  const auto barrier = [&] { wait_for_all(context); };
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
