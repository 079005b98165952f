"""join(): for ranks that have run out of data before the others."""
from .process_sets import calls_of


def join(device: int = -1) -> int:
    """This rank has no more data. Returns when all ranks have joined: the rank that came last. Until then sums and averages of
    the others count this rank as zeros; averages divide by all ranks. What cannot do without this rank is an error on the
    ranks that call it, and they may go on. device: Horovod's, not needed."""
    return calls_of().join()
