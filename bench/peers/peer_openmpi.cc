// MPI_Allreduce, started by mpirun. Which algorithm it takes is told to mpirun (coll_tuned), not here.
#include <mpi.h>

#include "bench/peers/rounds.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int status = bps::peers::guarded("peer_openmpi", [&] {
    const bps::peers::Arguments arguments = bps::peers::parse_arguments(argc, argv);
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (arguments.elements > INT32_MAX) throw std::invalid_argument("MPI counts to 2^31 - 1 elements");
    std::vector<float> in(arguments.elements);
    std::vector<float> out(arguments.elements);
    return bps::peers::run_rounds(
        arguments, rank, size, in, out, [] { MPI_Barrier(MPI_COMM_WORLD); },
        [&] {
          // An error aborts the job: MPI's default.
          MPI_Allreduce(in.data(), out.data(), static_cast<int>(arguments.elements), MPI_FLOAT, MPI_SUM,
                        MPI_COMM_WORLD);
        });
  });
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return 0;
}
