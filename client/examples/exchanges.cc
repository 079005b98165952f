// Every exchange of declared tensors.
//
//   bps-run -n 4 -s 2 -- ./exchanges                  four workers and two servers on this host
//   ./exchanges                                       one worker, with nothing else started
#include <bps/client.hpp>
#include <cstdint>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  if (argc > 1) {
    std::fprintf(stderr,
                 "exchanges takes no arguments; it runs in a cluster: bps-run -n 4 -s 2 -- ./exchanges\n");
    return 64;
  }
  return bps::run_main(argv[0], [] {  // prints an error, and returns its exit code
    // Memory first: it must outlive the client, whatever happens.
    std::vector<float> mine(100'000), result(mine.size()), own, whole;
    bps::Client client{bps::Options{}};  // rank, size and scheduler come from the environment
    const int rank = client.rank(), size = client.world_size(), last = size - 1;
    const bps::Tensor tensor = client.declare("values", bps::DType::f32, mine.size());
    mine.assign(mine.size(), static_cast<float>(rank + 1));
    const float total = static_cast<float>(size * (size + 1)) / 2;
    int wrong = 0;
    const auto expect = [&](const char* call, const std::vector<float>& found, float expected) {
      if (found.front() == expected && found.back() == expected) return;
      std::fprintf(stderr, "rank %d: %s gave %g, not %g\n", rank, call, found.back(), expected);
      ++wrong;
    };

    client.push_pull(tensor, mine, result, bps::Op::sum).wait();  // everyone gets the sum
    expect("push_pull", result, total);

    result.assign(result.size(), 0);
    client.reduce(tensor, mine, result, /*root=*/last, bps::Op::sum).wait();  // the root alone gets it
    expect("reduce", result, rank == last ? total : 0);

    client.broadcast(tensor, mine, /*root=*/last).wait();  // everyone gets what the root has
    expect("broadcast", mine, static_cast<float>(size));

    // A tensor that is cut into parts, one for each rank.
    const std::uint64_t part = 25'000;
    bps::TensorSpec spec{"parts", bps::DType::f32, part * size};
    spec.parts = {part};  // so many elements for each
    const bps::Tensor parted = client.declare(spec);
    own.assign(part, 0);
    whole.assign(spec.count, static_cast<float>(rank + 1));

    client.reduce_scatter(parted, whole, own, bps::Op::sum).wait();  // everyone gets its part of the sum
    expect("reduce_scatter", own, total);

    own.assign(part, static_cast<float>(rank));
    client.all_gather(parted, own, whole).wait();  // everyone gets the parts of all
    expect("all_gather", {whole.front(), whole.back() - static_cast<float>(last)}, 0);

    // A tensor that some ranks share: here those with an even number, and those with an odd one.
    bps::TensorSpec half{"half", bps::DType::f32, mine.size()};
    float sum_of_half = 0;
    for (int other = rank % 2; other < size; other += 2) {
      half.ranks.push_back(other);
      sum_of_half += static_cast<float>(other + 1);
    }
    mine.assign(mine.size(), static_cast<float>(rank + 1));
    client.push_pull(client.declare(half), mine, result, bps::Op::sum).wait();
    expect("push_pull in a group", result, sum_of_half);

    // An average in which a rank with more samples counts more.
    bps::Scale scale;
    scale.weight = rank + 1;
    mine.assign(mine.size(), rank == last ? 1.0F : 0.0F);
    client.push_pull(tensor, bps::ConstBuffer(mine).scaled(scale), result, bps::Op::average).wait();
    expect("weighted average", result, static_cast<float>(size) / total);

    client.close();
    if (wrong == 0) std::printf("rank %d of %d: right\n", rank, size);
    return wrong == 0 ? 0 : 1;
  });
}
