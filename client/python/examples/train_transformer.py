#!/usr/bin/env python3
"""Trains a small byte-level transformer on real text, each worker on its shard.

    bps-run -n 4 -s 2 -- python3 train_transformer.py --steps 100 --check
    bps-run -n 4 -s 2 -- python3 train_transformer.py --with optimizer
    bps-run -n 4 -s 2 -- python3 train_transformer.py --device cuda

What is special to bps is in `prepare`: a hook for DDP, or a DistributedOptimizer.
"""
import argparse
import hashlib
import sys
import time
from typing import Any, Callable, List, Tuple

import in_tree  # noqa: F401
import torch
from loss_curve import write_curve
from text import Shard, read_text
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bps
import bps.torch


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5 + mask).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(torch.relu(self.wide(self.norm2(x))))


class Transformer(nn.Module):
    """Bytes (batch x length) to logits of the next byte (batch x length x 256)."""

    def __init__(self, context: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        nn.init.normal_(self.head.weight, std=0.02)  # the first loss is that of a guess, log 256
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            y = block(y, self.mask)
        return self.head(self.norm(y))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="samples per worker and step (8)")
    parser.add_argument("--context", type=int, default=48, help="bytes that the model sees (48)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--with", dest="way", choices=("hook", "optimizer", "layers"), default="hook",
                        help="DDP with the communication hook, DistributedOptimizer, or that with a wait per layer")
    parser.add_argument("--backend", choices=("bps", "gloo"), default="bps", help="gloo: plain DDP, for comparison")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="cuda: each worker trains on the GPU of its local rank (cpu)")
    parser.add_argument("--threads", type=int, default=1, help="of torch in each worker (1)")
    parser.add_argument("--check", action="store_true", help="are the parameters bit-identical on all ranks at the end?")
    parser.add_argument("--plot", metavar="FILE.png", default="", help="rank 0 draws the loss")
    parser.add_argument("text", nargs="*", default=["/usr/share/common-licenses"], help="files or folders")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():  # before the others wait for this one
        why = "no driver, or no GPU" if torch.version.cuda else "this PyTorch has been built without CUDA"
        print(f"train_transformer: --device cuda, and PyTorch sees no GPU here: {why}", file=sys.stderr)
        sys.exit(78)
    return options


def prepare(options: argparse.Namespace, model: nn.Module) -> Tuple[nn.Module, torch.optim.Optimizer, Callable[[], float]]:
    """The model and the optimizer to train with, and how many seconds the program has waited for communication so far."""
    adam = torch.optim.Adam(model.parameters(), lr=options.rate)
    if options.backend == "gloo":
        bps.torch.init_process_group("gloo")
        return DistributedDataParallel(model), adam, lambda: 0.0
    if options.way == "hook":
        bps.torch.init_process_group("gloo")
        state = bps.torch.state()
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, bps.torch.comm_hook)
        return ddp, adam, lambda: state.waited_s
    bps.torch.broadcast_parameters(model.state_dict())
    optimizer = bps.torch.DistributedOptimizer(adam, model.named_parameters(),
                                               model=model if options.way == "layers" else None)
    return model, optimizer, lambda: bps.torch.client().waited_s


class Progress:
    """A line every ten steps from rank 0. waiting: the share of time in which nothing was done but wait for gradients; if
    it is large, the network or the servers are the limit."""

    def __init__(self, options: argparse.Namespace, waited_s: Callable[[], float]) -> None:
        self._options = options
        self._waited_s = waited_s
        self._started = self._then = time.monotonic()
        self._waited_then, self._bytes_then = waited_s(), self._bytes()
        self._shown = 0  # the step of the last line
        self.losses: List[float] = []

    def step(self, loss: torch.Tensor) -> None:
        """The loss of this rank; what is shown is the average of all."""
        self.losses.append(float(bps.torch.push_pull(loss, "loss")))
        number = len(self.losses)
        if bps.torch.rank() != 0 or (number % 10 != 0 and number not in (1, self._options.steps)):
            return
        now, waited, moved = time.monotonic(), self._waited_s(), self._bytes()
        elapsed = now - self._then
        tokens = (number - self._shown) * self._options.batch * self._options.context * bps.torch.size()
        traffic = "" if self._options.backend == "gloo" else \
            f"  {(moved - self._bytes_then) / elapsed / 1e6:6.1f} MB/s  waiting {100 * (waited - self._waited_then) / elapsed:3.0f} %"
        print(f"step {number:4}  loss {self.losses[-1]:.3f}  {tokens / elapsed:7.0f} tokens/s{traffic}", flush=True)
        self._shown, self._then, self._waited_then, self._bytes_then = number, now, waited, moved

    def finish(self) -> None:
        elapsed = time.monotonic() - self._started
        if bps.torch.rank() == 0:
            print(f"{len(self.losses)} steps in {elapsed:.1f} s, {len(self.losses) / elapsed:.2f} steps/s; loss from "
                  f"{self.losses[0]:.2f} to {self.losses[-1]:.2f}")
            if self._options.plot:
                write_curve(self._options.plot, self.losses)

    @staticmethod
    def _bytes() -> int:
        stats = bps.torch.client().stats()
        return stats.pushed_bytes + stats.pulled_bytes


def check(model: nn.Module) -> None:
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    alike = bps.torch.broadcast_object(digest.hexdigest()) == digest.hexdigest()
    same = int(bps.torch.push_pull(torch.tensor(int(alike), device=tensor.device), "alike", average=False))
    if same != bps.torch.size():
        sys.exit(f"check: parameters of {bps.torch.size() - same} ranks differ from those of rank 0")
    if bps.torch.rank() == 0:
        print(f"check: parameters are bit-identical on all {same} ranks ({digest.hexdigest()[:16]})")


def device_of(options: argparse.Namespace) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    # The library takes the same one, if nobody has said which (cuda_device).
    number = bps.torch.client().info().cuda_device
    device = torch.device("cuda", bps.torch.local_rank() % torch.cuda.device_count() if number is None else number)
    torch.cuda.set_device(device)
    return device


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    bps.torch.init()
    device = device_of(options)
    shard = Shard(read_text(options.text), bps.torch.rank(), bps.torch.size(), options.context)
    torch.manual_seed(bps.torch.rank())  # differs until it is broadcast
    plain = Transformer(options.context, options.width, options.layers).to(device)
    model: Any
    model, optimizer, waited_s = prepare(options, plain)
    progress = Progress(options, waited_s)
    for step in range(options.steps):
        batch = shard.batch(options.batch, step).to(device)
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 256), batch[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        progress.step(loss.detach())
    progress.finish()
    if options.check:
        check(plain)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    bps.torch.shutdown()


if __name__ == "__main__":
    try:
        train(arguments())
    except bps.Error as problem:
        print(f"train_transformer: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
