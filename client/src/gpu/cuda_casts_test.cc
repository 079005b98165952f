#include "client/src/gpu/cuda_casts.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>

#include "client/src/gpu/cast_numbers.h"
#include "client/src/gpu/fake/fake_cuda.h"
#include "client/src/gpu/real_cuda.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/base/memory/region.h"

namespace bps {
namespace {

// Host memory that the device reaches, memory of its own, and a stream.
class Place {
 public:
  Place(std::shared_ptr<CudaApi> cuda, std::size_t bytes)
      : device(CudaDevice::open(std::move(cuda), 0).value()),
        current_(*device),
        host(allocate_ordinary_region(bytes).value()) {
    REQUIRE(current_.status().ok());
    must(api().create_stream(stream, 0));
    must(api().register_host(host->bytes().data(), bytes));
    void* memory = nullptr;
    must(api().allocate(memory, bytes));
    there = static_cast<std::byte*>(memory);
  }
  ~Place() {
    CHECK(api().destroy_stream(stream) == CudaCode::success);
    CHECK(api().unregister_host(host->bytes().data()) == CudaCode::success);
    CHECK(api().free(there) == CudaCode::success);
  }
  CudaApi& api() const { return device->api(); }
  static void must(CudaCode code) { REQUIRE(code == CudaCode::success); }
  void copy_there(std::size_t bytes) const {
    must(api().copy_to_device(there, host->bytes().data(), bytes, stream));
  }
  void copy_back(std::size_t bytes) const {
    must(api().copy_to_host(host->bytes().data(), there, bytes, stream));
    come_to_rest();
  }
  void come_to_rest() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    CudaCode code = CudaCode::not_ready;
    while (code == CudaCode::not_ready && std::chrono::steady_clock::now() < deadline)
      code = api().query_stream(stream);
    must(code);
  }

  const std::shared_ptr<CudaDevice> device;

 private:
  const CudaDevice::Current current_;

 public:
  const std::shared_ptr<Region> host;
  CudaStream stream = nullptr;
  std::byte* there = nullptr;
};

// There by 128-bit loads and stores, and one by one; back likewise.
void cast_all(const std::shared_ptr<CudaApi>& cuda) {
  const std::vector<std::uint32_t> numbers = testing::interesting_numbers();
  const std::size_t count = numbers.size() / 8 * 8 - 3;  // some are left over
  const Place place(cuda, 4 * (65'536 + numbers.size()));
  CudaCasts casts(*place.device);
  REQUIRE(casts.open(place.stream).ok());
  auto* const host = place.host->bytes().data();
  for (const Cast cast : {Cast::bf16, Cast::f16}) {
    for (const std::size_t shift : {0u, 1u}) {
      INFO(cast_kernel_name(cast, true) << ", shift " << shift);
      std::memcpy(host, numbers.data(), 4 * numbers.size());
      place.copy_there(4 * numbers.size());
      std::byte* const halves = casts.to_host_buffer();
      REQUIRE(casts.to_wire(cast, halves, place.there + 4 * shift, count, place.stream).ok());
      Place::must(place.api().copy_to_host(host, halves, 2 * count, place.stream));
      place.come_to_rest();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t half = 0;
        std::memcpy(&half, host + 2 * i, 2);
        wrong += half == testing::rounded(cast, numbers[i + shift]) ? 0 : 1;
      }
      CHECK(wrong == 0);

      for (std::uint32_t half = 0; half < 65'536; ++half)
        std::memcpy(host + 2 * half, &half, 2);
      std::byte* const back = casts.to_device_buffer();
      Place::must(place.api().copy_to_device(back, host, 2 * 65'536, place.stream));
      REQUIRE(casts.from_wire(cast, place.there + 4 * shift, back, 65'536, place.stream).ok());
      place.copy_back(4 * (65'536 + shift));
      for (std::uint32_t half = 0; half < 65'536; ++half) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, host + 4 * (half + shift), 4);
        const auto& format = testing::format_of(cast);
        const auto value = static_cast<float>(reduce::oracle::decode(half, format));
        const bool is_right = reduce::oracle::is_nan_bits(half, format)
                                  ? testing::is_nan(bits)
                                  : bits == std::bit_cast<std::uint32_t>(value);
        wrong += is_right ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
  casts.close();
}

TEST_CASE("cuda casts: over a virtual GPU") {
  AsioLoop clock;
  const auto cuda = std::make_shared<FakeCuda>(clock);
  cast_all(cuda);
  CHECK(cuda->left() == FakeCuda::Left{});
  CHECK(cuda->misuses().empty());
}

TEST_CASE("cuda casts: over the GPU of this machine", "[gpu]") {
  const auto cuda = open_cuda();
  if (!cuda) {
    fmt::print("gpu: not run: {}\n", cuda.error().message);
    return;
  }
  cast_all(*cuda);
  fmt::print("gpu: casts to bf16 and f16, and back: as they are defined\n");
}

}  // namespace
}  // namespace bps
