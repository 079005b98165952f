"""from_horovod.md says of every name of horovod.torch and byteps.torch what is here; this holds it to the package, and the package
to the arguments that programs pass by position."""
import importlib
import inspect
import pathlib
import re
import unittest

import bps.torch

PAGE = pathlib.Path(__file__).resolve().parent.parent / "from_horovod.md"

HOROVOD = """elastic Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters allreduce
allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_
sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async broadcast broadcast_async broadcast_
broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async join
barrier poll synchronize init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank
cross_rank is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set Average Sum Adasum Min Max Product
HorovodInternalError DistributedOptimizer SyncBatchNorm check_extension""".split()
BYTEPS = """push_pull push_pull_async push_pull_inplace push_pull_async_inplace push_pull_group_sync_inplace declare suspend resume
byteps_torch_set_num_grads DistributedOptimizer Compression cross_barrier parallel""".split()

_FACTORS = "prescale_factor postscale_factor process_set"
ARGUMENTS = {
    "allreduce": f"tensor average name compression op {_FACTORS}",
    "allreduce_": f"tensor average name op {_FACTORS}",
    "allreduce_async": f"tensor average name op {_FACTORS}",
    "allreduce_async_": f"tensor average name op {_FACTORS}",
    "grouped_allreduce": f"tensors average name compression op {_FACTORS}",
    "grouped_allreduce_": f"tensors average name op {_FACTORS}",
    "grouped_allreduce_async": f"tensors average name op {_FACTORS}",
    "grouped_allreduce_async_": f"tensors average name op {_FACTORS}",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors name compression op process_set prescale_factor postscale_factor",
    "grouped_reducescatter_async": "tensors name op process_set prescale_factor postscale_factor",
    "join": "device", "barrier": "process_set", "init": "comm process_sets", "add_process_set": "process_set",
    "broadcast_parameters": "params root_rank", "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set", "allgather_object": "obj name",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op gradient_predivide_factor "
                            "num_groups groups",
    "SyncBatchNorm": "num_features eps momentum affine track_running_stats",
}


def table(heading):
    """{name: is it here}"""
    section, = re.findall(rf"^## {heading}\n(.*?)(?=^## )", PAGE.read_text(), re.M | re.S)
    rows = re.findall(r"^\| (`.*?) \| (yes|no) \|", section, re.M)
    return {name: here == "yes" for names, here in rows for name in re.findall(r"`(\w+)`", names)}


def is_here(name):
    try:
        return hasattr(bps.torch, name) or importlib.import_module(f"bps.torch.{name}") is not None
    except ImportError:
        return False


class NamesTest(unittest.TestCase):
    def test_every_name_is_on_the_page(self):
        for module, names in (("horovod.torch", HOROVOD), ("byteps.torch", BYTEPS)):
            self.assertEqual(sorted(table(f"Names of {module}")), sorted(set(names)))

    def test_the_page_is_right(self):
        for module in ("horovod.torch", "byteps.torch"):
            for name, here in table(f"Names of {module}").items():
                self.assertEqual(is_here(name), here, name)

    def test_names_are_public(self):
        modules = {"cross_barrier", "parallel"}
        here = {name for module in ("horovod.torch", "byteps.torch") for name, yes in table(f"Names of {module}").items() if yes}
        self.assertLessEqual(here - modules, set(bps.torch.__all__))
        self.assertTrue(all(hasattr(bps.torch, name) for name in bps.torch.__all__))

    def test_arguments_by_position(self):
        for name, expected in ARGUMENTS.items():
            there = list(inspect.signature(getattr(bps.torch, name)).parameters)
            self.assertEqual(there[:len(expected.split())], expected.split(), name)
