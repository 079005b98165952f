// One worker with its cluster inside the process, through the C++ wrapper.
#include <bps/client.hpp>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <vector>

namespace {

using namespace std::chrono_literals;

int run() {
  bps::Client client{bps::Options{}.scheduler("embedded:").job("consumer")};
  const auto tensors = client.declare(
      std::vector<bps::TensorSpec>{{"weight", bps::DType::f32, 3000}, {"step", bps::DType::i64, 1}});
  std::vector<float> parameters(3000, 0.5F);
  client.broadcast(tensors[0], parameters, 0).wait(20s);

  std::vector<float> average(3000);
  std::vector<std::int64_t> step{41};
  bps::Handle urgent = client.push_pull(tensors[1], step, bps::Op::max);
  client.push_pull(tensors[0], parameters, average, bps::Op::average).wait(20s);
  urgent.wait(20s);
  if (average != parameters || step[0] != 41) {
    std::cerr << "a result is wrong\n";
    return 1;
  }

  bps::Status status;
  const std::vector<float> half(1500);
  client.push_pull(tensors[0], half, average, bps::Op::sum, status);
  if (status.code() != bps::Code::invalid_argument) {
    std::cerr << "a push of the wrong length was not refused\n";
    return 1;
  }
  client.barrier(20s);
  client.close(20s);
  try {
    client.barrier(20s);
  } catch (const bps::Error& error) {
    if (error.code() != bps::Code::closed) throw;
    std::cout << "C++ consumer (" << __cplusplus << ") of bps " << bps::version() << ": ok\n";
    return 0;
  }
  std::cerr << "used after close\n";
  return 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const bps::Error& error) {
    std::cerr << error.what() << '\n';
    return error.exit_code();
  }
}
