#!/usr/bin/env python3
"""4 KiB all_reduce through PyTorch's backends (P26): bps and gloo in turns, in the same processes, on one host.

    torchrun --nproc_per_node 4 small_calls.py      with the wheel of bps installed, and torch 2.14 or later

It prints the median time of a call of each, and the ratio of the paired turns: its median and their range.
"""
import statistics
import time

import torch
import torch.distributed as dist

import bps.torch  # noqa: F401: makes "bps" known, also where the wheel is not installed

CALLS, TURNS = 500, 9


def median_us(group, tensor):
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"bps": dist.new_group(backend="bps"), "gloo": dist.group.WORLD}
    tensor = torch.zeros(1024)
    turns = []
    for turn in range(-1, TURNS):  # the first is not counted
        turns.append({name: median_us(group, tensor) for name, group in groups.items()})
        groups = dict(reversed(groups.items()))
    turns = turns[1:]
    if dist.get_rank() == 0:
        ratios = sorted(turn["bps"] / turn["gloo"] for turn in turns)
        medians = {name: statistics.median(turn[name] for turn in turns) for name in ("bps", "gloo")}
        print(f"{dist.get_world_size()} workers: bps {medians['bps']:.0f} us, gloo {medians['gloo']:.0f} us, "
              f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
