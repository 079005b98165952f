"""A worker of compare_ddp.py: trains one model with plain DDP on gloo, one with the hook of bps, and one with its
DistributedOptimizer that waits per layer, in turns, and prints how long each turn took on the slowest rank. With a torch that
takes it, also with DDP on the backend bps, and with FSDP2 on both backends."""
import argparse
import copy
import json
import pathlib
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "client/python"), str(SOURCE / "client/python/examples")]

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from train_transformer import Transformer  # noqa: E402

import bps.torch  # noqa: E402


class Contender:
    """One way to train; all begin alike."""

    def __init__(self, kind, model, groups):
        if kind.startswith("fsdp"):
            self.model = sharded(model, groups["gloo" if kind.endswith("gloo") else "bps"])
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            return
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.model = model
        if kind == "layers":
            self.optimizer = bps.torch.DistributedOptimizer(self.optimizer, model.named_parameters(), model=model)
        else:
            self.model = DistributedDataParallel(model, process_group=groups["bps" if kind == "backend" else "gloo"])
            if kind == "hook":
                self.model.register_comm_hook(bps.torch.state(), bps.torch.comm_hook)

    def steps(self, batches):
        for batch in batches:
            self.optimizer.zero_grad()
            logits = self.model(batch[:, :-1])
            nn.functional.cross_entropy(logits.reshape(-1, 256), batch[:, 1:].reshape(-1)).backward()
            self.optimizer.step()
        if hasattr(self.optimizer, "synchronize"):
            self.optimizer.state_dict()  # makes the updates that are promised, without another exchange


def sharded(model, group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def timed(contender, batches):
    """Seconds on the slowest rank."""
    bps.torch.barrier()
    started = time.monotonic()
    contender.steps(batches)
    elapsed = torch.tensor(time.monotonic() - started, dtype=torch.float64)
    return bps.torch.allreduce(elapsed, name="elapsed", op=bps.torch.Max).item()


def main():
    parser = argparse.ArgumentParser()
    for flag in ("width", "layers", "batch", "context", "turns", "steps"):
        parser.add_argument("--" + flag, type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bps.torch.init()
    bps.torch.init_process_group("gloo")
    torch.manual_seed(1)
    model = Transformer(options.context, options.width, options.layers)
    parameter_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    kinds, groups = ["gloo", "hook", "layers"], {"gloo": torch.distributed.group.WORLD}
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
        kinds += ["backend", "fsdp", "fsdp by gloo"]
        groups["bps"] = torch.distributed.new_group(backend="bps")
    contenders = {kind: Contender(kind, copy.deepcopy(model), groups) for kind in kinds}
    random = torch.Generator().manual_seed(bps.torch.rank())
    for turn in range(-1, options.turns):
        batches = [torch.randint(256, (options.batch, options.context + 1), generator=random) for _ in range(options.steps)]
        # The first is for the buckets that DDP makes anew after one step.
        seconds = {kind: timed(contenders[kind], batches) / options.steps for kind in kinds}
        if turn >= 0 and bps.torch.rank() == 0:
            print(json.dumps({"parameter_bytes": parameter_bytes, "kinds": sorted(kinds), **seconds}), flush=True)
        kinds = kinds[1:] + kinds[:1]
    bps.torch.barrier()
    torch.distributed.destroy_process_group()
    bps.torch.shutdown()


if __name__ == "__main__":
    main()
