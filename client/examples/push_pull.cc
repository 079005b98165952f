// The smallest training program there is: every worker has a gradient, all get the average.
//
//   bps-run -n 4 -s 2 -- ./push_pull                  four workers and two servers on this host
//   ./push_pull                                       one worker, with nothing else started
#include <bps/client.hpp>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  if (argc > 1) {
    std::fprintf(stderr,
                 "push_pull takes no arguments; it runs in a cluster: bps-run -n 4 -s 2 -- ./push_pull\n");
    return 64;
  }
  return bps::run_main(argv[0], [] {  // prints an error, and returns its exit code
    // Memory first: it must outlive the client, whatever happens.
    std::vector<float> parameters(1'000'000), gradient(parameters.size()), average(parameters.size());
    bps::Client client{bps::Options{}};  // rank, size and scheduler come from the environment
    const int rank = client.rank(), size = client.world_size();
    parameters.assign(parameters.size(), static_cast<float>(rank));
    gradient.assign(gradient.size(), static_cast<float>(rank + 1));
    const bps::Tensor tensor = client.declare("weights", bps::DType::f32, parameters.size());

    client.broadcast(tensor, parameters, 0).wait();  // all start from rank 0's parameters

    const float expected = static_cast<float>(size + 1) / 2;
    for (int step = 0; step < 3; ++step) {
      bps::Handle handle = client.push_pull(tensor, gradient, average, bps::Op::average);
      // ... the backward pass of the next layer runs here ...
      handle.wait();
      if (parameters[0] != static_cast<float>(-step) * expected || average.back() != expected) {
        std::fprintf(stderr, "rank %d: step %d: wrong average %g\n", rank, step, average.back());
        return 1;
      }
      for (std::size_t i = 0; i < parameters.size(); ++i)
        parameters[i] -= average[i];
    }

    client.close();
    std::printf("rank %d of %d: the average is %g, as it should be\n", rank, size, expected);
    return 0;
  });
}
