#include "bench/commands/tstar.h"

#include <catch2/catch.hpp>

namespace bps::bench {

TEST_CASE("tstar: the closed form of a server on every worker's host and k more") {
  const double bandwidth = 125e6;
  for (std::uint32_t n = 2; n <= 8; ++n) {
    for (std::uint32_t k = 0; k <= n; ++k) {
      const double d = n * n + k * n - 2.0 * k;
      INFO("n=" << n << " k=" << k);
      CHECK(tstar_s_per_byte(link_hosts(n, k, n, bandwidth)) ==
            Approx(2.0 * n * (n - 1) / (d * bandwidth)).epsilon(1e-9));
    }
  }
}

TEST_CASE("tstar: servers on hosts of their own only") {
  for (std::uint32_t n = 1; n <= 8; ++n) {
    for (std::uint32_t k = 1; k <= 10; ++k) {
      INFO("n=" << n << " k=" << k);
      CHECK(tstar_s_per_byte(link_hosts(n, k, 0, 2)) == Approx(std::max(1.0, double(n) / k) / 2));
    }
  }
}

TEST_CASE("tstar: more servers than workers, half of the workers with one, one worker alone") {
  CHECK(tstar_s_per_byte(link_hosts(4, 6, 4, 1)) == Approx(1));
  // Shares x on the two worker hosts, y on the one server: 1 + 2x = t, 4y = t, 2x + y = 1.
  CHECK(tstar_s_per_byte(link_hosts(4, 1, 2, 1)) == Approx(1.6));
  CHECK(tstar_s_per_byte(link_hosts(1, 1, 0, 1)) == Approx(1));
  CHECK(tstar_s_per_byte(link_hosts(1, 0, 1, 1)) == 0);
  CHECK(tstar_s_per_byte(link_hosts(2, 0, 2, 1)) == Approx(1));
}

TEST_CASE("tstar: links that differ") {
  auto hosts = link_hosts(4, 4, 0, 1);
  hosts[7].bytes_per_s = 0.5;  // a server: the four carry 3.5
  CHECK(tstar_s_per_byte(hosts) == Approx(4 / 3.5));
  hosts[7].bytes_per_s = 1;
  hosts[0].bytes_per_s = 0.5;  // a worker: nobody is done before it
  CHECK(tstar_s_per_byte(hosts) == Approx(2));
}

}  // namespace bps::bench
