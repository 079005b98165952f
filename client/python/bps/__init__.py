"""bps: one gradient server for every training program. This package is a worker's side, on libbpsclient.

    import bps
    with bps.Client() as client:                    # rank, size, scheduler: from the environment
        weight, = client.declare([bps.TensorSpec("layer1.weight", bps.DType.F32, 1000)])
        client.push_pull(weight, gradient, average, bps.Op.AVERAGE).wait()

`bps.torch` is for PyTorch, `bps.KVStore` for other front ends.
"""
from ._abi import DType, Op
from ._library import get as _get_library
from ._memory import CudaMemory
from .client import Client, Info, Scale, Stats, TensorSpec
from .errors import Code, Error
from .group import Group
from .handle import Handle, Tensor
from .kvstore import KVStore

__version__ = "0.1.0"


def library_version() -> str:
    """Of the library that is loaded. Error: CONFIGURATION if there is none that fits."""
    return str(_get_library().bps_version().decode())


__all__ = ["Client", "Code", "CudaMemory", "DType", "Error", "Group", "Handle", "Info", "KVStore", "Op", "Scale", "Stats", "Tensor",
           "TensorSpec", "library_version"]
