"""What a rank of backend_test.py does: python3 PROGRAM FUNCTION. Ranks and the store come from the launcher's variables."""
import datetime
import logging
import sys
import time

import torch
import torch.distributed as dist

import bps.torch  # noqa: F401: before torch 2.14 this makes "bps" known


def begin(seconds=60.0):
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("bps", timeout=datetime.timedelta(seconds=seconds))
    return dist.get_rank(), dist.get_world_size()


def check(result, expected, what):
    assert result.dtype == expected.dtype and torch.equal(result, expected), f"{what}: {result}, expected {expected}"


def right(case):
    print(f"right: {case}", flush=True)


def expect_error(call, pattern, within, kinds=(RuntimeError,)):
    began = time.monotonic()
    try:
        call()
    except kinds as error:
        took = time.monotonic() - began
        assert pattern in str(error), f"{type(error).__name__}: {error}"
        assert took < within, f"{took:.1f} s: {error}"
        return error
    raise AssertionError("no error")


def run(functions):
    """Those that the command line names."""
    for name in sys.argv[1:]:
        functions[name]()
    if dist.is_initialized():
        dist.destroy_process_group()
