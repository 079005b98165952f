"""Workers of backend_test.py: python3 backend_worker.py FUNCTION. Ranks and the store come from the launcher's variables."""
import datetime
import hashlib
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bps.torch

LENGTHS = (0, 1, 7, 1000, 100_003)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
OPS = {"SUM": torch.add, "MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul}
BITS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def begin(seconds=60.0):
    dist.init_process_group("bps", timeout=datetime.timedelta(seconds=seconds))
    return dist.get_rank(), dist.get_world_size()


def given(rank, length, dtype):
    """The same for all who ask; small numbers, so that sums are exact."""
    numbers = (torch.arange(length) * (rank + 2) + rank) % 5
    return numbers % 2 == 0 if dtype == torch.bool else numbers.to(dtype)


def folded(fold, parts):
    result = parts[0]
    for part in parts[1:]:
        result = fold(result, part)
    return result.to(parts[0].dtype)


def check(result, expected, what):
    assert result.dtype == expected.dtype and torch.equal(result, expected), f"{what}: {result}, expected {expected}"


def right(case):
    print(f"right: {case}", flush=True)


# ---- calls ----


def reductions():
    rank, size = begin()
    for dtype in FLOATS + INTEGERS + (torch.bool,):
        folds = dict(OPS) if dtype in FLOATS else {**OPS, **BITS}
        if dtype == torch.bool:
            folds.update(SUM=torch.logical_or, PRODUCT=torch.logical_and, MIN=torch.logical_and, MAX=torch.logical_or)
        for name, fold in folds.items():
            op = getattr(dist.ReduceOp, name)
            for length in LENGTHS:
                what = f"{name} of {length} {dtype}"
                expected = folded(fold, [given(r, length, dtype) for r in range(size)])
                tensor = given(rank, length, dtype)
                dist.all_reduce(tensor, op)
                check(tensor, expected, "all_reduce " + what)
                root = length % size
                tensor = given(rank, length, dtype)
                dist.reduce(tensor, root, op)
                check(tensor, expected if rank == root else given(rank, length, dtype), "reduce " + what)
                out = torch.empty(length, dtype=dtype)
                sources = [given(rank + 10 * part, length, dtype) for part in range(size)]
                expected = folded(fold, [given(r + 10 * rank, length, dtype) for r in range(size)])
                dist.reduce_scatter(out, sources, op)
                check(out, expected, "reduce_scatter " + what)
                out = torch.empty(length, dtype=dtype)
                dist.reduce_scatter_tensor(out, torch.cat(sources), op)
                check(out, expected, "reduce_scatter_tensor " + what)
    for dtype in FLOATS:
        tensor = given(rank, 1000, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check(tensor, folded(torch.add, [given(r, 1000, dtype) for r in range(size)]) / size, f"average of {dtype}")
        tensor = given(rank, 1000, dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        check(tensor, folded(torch.add, [given(r, 1000, dtype) for r in range(size)]) * 0.5, f"half the sum of {dtype}")
    pair = torch.complex(given(rank, 9, torch.float32), given(rank + 1, 9, torch.float32))
    for call in (dist.all_reduce, lambda t: dist.reduce(t, 0)):
        tensor = pair.clone()
        call(tensor)
        if rank == 0:
            check(tensor, sum(torch.complex(given(r, 9, torch.float32), given(r + 1, 9, torch.float32)) for r in range(size)),
                  "complex sum")
    for op, dtype in ((dist.ReduceOp.AVG, torch.int64), (dist.ReduceOp.BAND, torch.float32)):
        try:
            dist.all_reduce(torch.ones(3, dtype=dtype), op)
        except TypeError as error:
            assert str(dtype) in str(error), error
        else:
            raise AssertionError(f"{op} of {dtype} was not refused")
    right("reductions")


def copies():
    rank, size = begin()
    for dtype in FLOATS + INTEGERS + (torch.bool, torch.complex64):
        for length in LENGTHS:
            what = f"{length} {dtype}"
            root = length % size
            tensor = given(rank, length, dtype)
            dist.broadcast(tensor, root)
            check(tensor, given(root, length, dtype), "broadcast " + what)
            parts = [given(r, length, dtype) for r in range(size)]
            outs = [torch.empty(length, dtype=dtype) for _ in range(size)]
            dist.all_gather(outs, given(rank, length, dtype))
            for r in range(size):
                check(outs[r], parts[r], "all_gather " + what)
            out = torch.empty(size * length, dtype=dtype)
            dist.all_gather_into_tensor(out, given(rank, length, dtype))
            check(out, torch.cat(parts), "all_gather_into_tensor " + what)
            uneven = [torch.empty(length + r, dtype=dtype) for r in range(size)]
            dist.all_gather(uneven, given(rank, length + rank, dtype))
            for r in range(size):
                check(uneven[r], given(r, length + r, dtype), "uneven all_gather " + what)
            outs = [torch.empty(length, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(given(rank, length, dtype), outs, root)
            for r in range(size if rank == root else 0):
                check(outs[r], parts[r], "gather " + what)
            out = torch.empty(length, dtype=dtype)
            dist.scatter(out, parts if rank == root else None, root)
            check(out, parts[rank], "scatter " + what)
            outs = [torch.empty(length + r, dtype=dtype) for r in range(size)]
            dist.all_to_all(outs, [given(rank * 10 + r, length + rank, dtype) for r in range(size)])
            for r in range(size):
                check(outs[r], given(r * 10 + rank, length + r, dtype), "all_to_all " + what)
    rows = [2 + r for r in range(size)]  # to each rank
    source = torch.cat([torch.full((rows[r], 3), float(rank * 100 + r)) for r in range(size)])
    out = torch.empty(rows[rank] * size, 3)
    dist.all_to_all_single(out, source, [rows[rank]] * size, rows)
    check(out, torch.cat([torch.full((rows[rank], 3), float(r * 100 + rank)) for r in range(size)]), "all_to_all_single")
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in objects] == list(range(size))
    box = [("from", rank)]
    dist.broadcast_object_list(box, size - 1)
    assert box == [("from", size - 1)]
    right("copies")


def strided():
    """Right, or refused before anything is sent."""
    rank, size = begin()
    whole = given(rank, 24, torch.float32).view(4, 6)
    expected = sum(given(r, 24, torch.float32).view(4, 6) for r in range(size))
    tensor = whole.clone().t()
    dist.all_reduce(tensor)
    check(tensor, expected.t(), "all_reduce of a transposed tensor")
    padded = torch.full((4, 12), 9.0)
    padded[:, ::2] = whole
    dist.all_reduce(padded[:, ::2])
    check(padded[:, ::2].contiguous(), expected, "all_reduce of columns")
    assert torch.equal(padded[:, 1::2], torch.full((4, 6), 9.0)), "what lies between was written"
    tensor = whole.clone().t()
    dist.broadcast(tensor, 1)
    check(tensor, given(1, 24, torch.float32).view(4, 6).t(), "broadcast of a transposed tensor")
    out = torch.empty(6, 4 * size).t()
    dist.all_gather_into_tensor(out, whole.clone())
    check(out, torch.cat([given(r, 24, torch.float32).view(4, 6) for r in range(size)]), "all_gather into a transposed tensor")
    for refused in (torch.ones(1).expand(5), torch.arange(10.0).as_strided((5, 3), (1, 2))):
        try:
            dist.all_reduce(refused)
        except ValueError as error:
            assert "share memory" in str(error), error
        else:
            raise AssertionError("elements that share memory were written")
    dist.all_gather_into_tensor(torch.empty(5 * size), torch.ones(1).expand(5))  # read only
    whole = torch.zeros(size * 4)
    part = whole[rank * 4:rank * 4 + 4]
    part.fill_(rank + 1)
    dist.all_gather_into_tensor(whole, part)
    check(whole, torch.arange(1, size + 1).repeat_interleave(4).float(), "all_gather in place")
    right("strided")


def messages():
    rank, size = begin()
    to, source = (rank + 1) % size, (rank - 1) % size
    for length in LENGTHS:
        got = torch.empty(length)
        works = [dist.isend(given(rank, length, torch.float32), to, tag=3), dist.irecv(got, source, tag=3)]
        for work in works:
            work.wait()
        check(got, given(source, length, torch.float32), "isend, irecv")
        first, second = torch.empty(length), torch.empty(length)
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, first, source, tag=1), dist.P2POp(dist.irecv, second, source, tag=2),
                                        dist.P2POp(dist.isend, given(7, length, torch.float32), to, tag=2),
                                        dist.P2POp(dist.isend, given(6, length, torch.float32), to, tag=1)])
        for work in works:
            work.wait()
        check(first, given(6, length, torch.float32), "tag 1")
        check(second, given(7, length, torch.float32), "tag 2")
    if rank == 0:
        dist.send(torch.ones(3), 1)
        dist.send_object_list([{"a": 1}], 1)
    elif rank == 1:
        dist.recv(torch.empty(3), 0)
        box = [None]
        dist.recv_object_list(box, 0)
        assert box == [{"a": 1}]
    whole = torch.ones(4, 3).t()
    for call in (lambda: dist.broadcast(whole, size), lambda: dist.broadcast(whole, -1), lambda: dist.reduce(torch.ones(3), -1),
                 lambda: dist.isend(torch.ones(3), -1), lambda: dist.gather(torch.ones(3), None, -1)):
        expect_error(call, "", 1.0, (ValueError,))
    check(whole, torch.ones(3, 4), "what a call that was refused has left")
    try:
        dist.recv(torch.empty(3))
    except RuntimeError as error:
        assert "a rank that is named" in str(error), error
    else:
        raise AssertionError("a receive from any rank was not refused")
    dist.barrier()
    right("messages")


def several():
    """Groups, coalesced calls, many at once, threads."""
    rank, size = begin()
    with dist._coalescing_manager(device=torch.device("cpu")):
        a, b = torch.ones(3), torch.full((5,), 2.0)
        dist.all_reduce(a)
        dist.all_reduce(b)
    check(a, torch.full((3,), float(size)), "coalesced")
    check(b, torch.full((5,), 2.0 * size), "coalesced")
    groups = [dist.new_group([r, (r + 1) % size]) for r in range(size)]
    for _ in range(3):
        for r in range(size):
            if rank in (r, (r + 1) % size):
                tensor = torch.full((2,), float(rank))
                dist.all_reduce(tensor, group=groups[r])
                check(tensor, torch.full((2,), float(r + (r + 1) % size)), "group")
    tensors = [given(rank + i, 100 + i, torch.float32) for i in range(500)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    del works[::2]  # forgotten while under way
    for work in works:
        work.wait()
    dist.barrier()
    for i, tensor in enumerate(tensors):
        if i % 2 == 1:
            check(tensor, folded(torch.add, [given(r + i, 100 + i, torch.float32) for r in range(size)]), "one of many")
    own = [dist.new_group() for _ in range(4)]
    failures = []

    def work_alone(number):
        try:
            for i in range(50):
                tensor = torch.full((1000,), float(number + i))
                dist.all_reduce(tensor, group=own[number])
                check(tensor, torch.full((1000,), float(size * (number + i))), "of a thread")
        except BaseException as failure:  # noqa: told below
            failures.append(failure)

    threads = [threading.Thread(target=work_alone, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for group in own:
        dist.destroy_process_group(group)
    for number in range(60):
        group = dist.new_group()
        tensor = torch.ones(number)
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
    dist.monitored_barrier()
    right("several")


def again():
    """destroy and init, with the same store."""
    for number in range(3):
        rank, size = begin()
        tensor = torch.full((4,), float(number))
        dist.all_reduce(tensor)
        check(tensor, torch.full((4,), float(number * size)), "after init")
        dist.destroy_process_group()
    right("again")


# ---- training ----


def model_of(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 30), torch.nn.Tanh(),
                               torch.nn.Linear(30, 1))


def batch_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 20, generator=generator)


def loss_of(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def trained_alone(size, steps):
    """What one process gets that has the batches of all."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss_of(model, batch_of(rank, step)) for rank in range(size)]).mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def assert_close(mine, expected, what):
    for a, b in zip(mine, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


def digest_of(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def trained(hook=None, state=None, steps=10, **options):
    rank = dist.get_rank()
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.002, **options)
    if hook is not None:
        model.register_comm_hook(state(model) if state else None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch_of(rank, step)).backward()
        optimizer.step()
    return model


def ddp():
    rank, size = begin()
    alone = trained_alone(size, 10)
    for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = trained(**options)
        assert_close([p.detach() for p in model.module.parameters()], alone, f"DDP {options}")
        digests = [None] * size
        dist.all_gather_object(digests, digest_of(model))
        assert len(set(digests)) == 1, f"DDP {options}: parameters differ between ranks"
    right("ddp")


def hooks():
    """Three times each, with the same bits."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

    rank, size = begin()
    power = lambda model: powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, random_seed=1)
    for name, hook, state in (("allreduce", default_hooks.allreduce_hook, None), ("fp16", default_hooks.fp16_compress_hook, None),
                              ("bf16", default_hooks.bf16_compress_hook, None), ("PowerSGD", powerSGD_hook.powerSGD_hook, power),
                              ("quantised by tensor", quantization_hooks.quantization_pertensor_hook, lambda model: dist.group.WORLD),
                              ("quantised by channel", quantization_hooks.quantization_perchannel_hook, lambda model: dist.group.WORLD)):
        digests = {digest_of(trained(hook, state)) for _ in range(3)}
        everywhere = [None] * size
        dist.all_gather_object(everywhere, digests)
        assert len(set.union(*everywhere)) == 1, f"{name}: {everywhere}"
    right("hooks")


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, size = begin()
    alone = trained_alone(size, 10)
    shapes = [((size,), None)] + ([((2, size // 2), ("rest", "shard"))] if size % 2 == 0 and size > 2 else [])
    for shape, names in shapes:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = model_of()
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(10):
            optimizer.zero_grad()
            loss_of(model, batch_of(rank, step)).backward()
            optimizer.step()
        assert_close([p.full_tensor().detach() for p in model.parameters()], alone, f"FSDP2 on {shape}")
    right("fsdp")


def other_trainers():
    """What else of torch trains over a process group."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rank, size = begin()
    alone = trained_alone(size, 4)

    def steps(model, optimizer, count=4):
        for step in range(count):
            optimizer.zero_grad()
            loss_of(model, batch_of(rank, step)).backward()
            optimizer.step()

    model = DistributedDataParallel(model_of())
    steps(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9))
    assert_close([p.detach() for p in model.parameters()], alone, "ZeroRedundancyOptimizer")
    model = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    with FullyShardedDataParallel.summon_full_params(model):
        assert_close([p.detach() for p in model.parameters()], [torch.cat([p.reshape(-1) for p in alone])]
                     if len(list(model.parameters())) == 1 else alone, "FSDP1")
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model]):
        steps(model, optimizer, 2 + rank)  # unequally many
    digests = [None] * size
    dist.all_gather_object(digests, digest_of(model))
    assert len(set(digests)) == 1, "Join: parameters differ between ranks"
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(float(size * 2 * 3)).view(size * 2, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    check(sharded.redistribute(mesh, [Replicate()]).to_local(), whole, "redistribute")
    check(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole, "redistribute to columns")
    right("other_trainers")


def checkpoints():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    rank, size = begin()
    folder = os.environ["CHECKPOINT"]
    model = model_of()
    fully_shard(model)
    expected = [p.full_tensor().clone() for p in model.parameters()]
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder + "/now")
    checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=folder + "/later").result()
    for which in ("now", "later"):
        other = model_of(seed=5)
        fully_shard(other)
        state = {"model": other.state_dict()}
        checkpoint.load(state, checkpoint_id=f"{folder}/{which}")
        other.load_state_dict(state["model"])
        for a, b in zip((p.full_tensor() for p in other.parameters()), expected):
            check(a, b, "a checkpoint")
    right("checkpoints")


# ---- what goes wrong ----


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


def mismatch():
    """Every rank hears which call differs; other groups go on."""
    rank, size = begin()
    for wrong in (lambda group: dist.all_reduce(torch.ones(5), group=group),
                  lambda group: dist.all_reduce(torch.ones(4, dtype=torch.float64), group=group),
                  lambda group: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX, group=group),
                  lambda group: dist.broadcast(torch.ones(4), 0, group=group),
                  lambda group: dist.all_gather_into_tensor(torch.ones(4 * size), torch.ones(4), group=group)):
        group = dist.new_group()
        dist.all_reduce(torch.ones(4), group=group)
        call = (lambda: dist.all_reduce(torch.ones(4), group=group)) if rank == 0 else (lambda: wrong(group))
        assert "new_group" in str(expect_error(call, "calls number 2", 5.0))
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        check(tensor, torch.full((3,), float(size)), "another group after a mismatch")
    # What bps sees as bytes only.
    op = dist.ReduceOp.BAND if rank == 0 else dist.ReduceOp.BOR
    for call in (lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), op),
                 lambda: dist.reduce_scatter_tensor(torch.ones(4, dtype=torch.int16), torch.ones(4 * size, dtype=torch.int16),
                                                    dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)):
        expect_error(call, "rank 1 calls", 5.0)
    right("mismatch")


def killed():
    rank, size = begin()
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        print("under way", flush=True)
        signal.pause()
    error = expect_error(lambda: dist.all_reduce(torch.ones(3)), "rank 1", 30.0)
    print(f"told: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)


def killed_in_backward():
    rank, size = begin()
    model = DistributedDataParallel(model_of())
    loss_of(model, batch_of(rank, 0)).backward()
    if rank == 1:
        print("under way", flush=True)
        signal.pause()
    error = expect_error(lambda: loss_of(model, batch_of(rank, 1)).backward(), "rank 1", 30.0)
    print(f"told: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)


def deadlines():
    """The group's, a wait's; and the group is of no use afterwards."""
    rank, size = begin(60)
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        expect_error(lambda: work.wait(datetime.timedelta(seconds=0.5)), "not done within 0.5 s", 2.0)
        assert not work.is_completed()
        expect_error(work.wait, "timed out after 2 s", 5.0)
        expect_error(lambda: work.get_future().wait(), "timed out after 2 s", 5.0)
        expect_error(lambda: dist.all_reduce(torch.ones(3), group=group), "timed out", 1.0)
    late = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        missing = "Ranks " + ", ".join(map(str, range(1, size))) if size > 2 else "Rank 1"
        expect_error(lambda: dist.monitored_barrier(late, datetime.timedelta(seconds=1), wait_all_ranks=True),
                     missing + " failed to pass", 5.0)
        expect_error(lambda: dist.all_reduce(torch.ones(3), group=late), "failed to pass", 1.0)
    dist.all_reduce(torch.ones(3))
    right("deadlines")


def backward_has_a_deadline():
    rank, size = begin(3)
    model = DistributedDataParallel(model_of())
    if rank == 0:
        expect_error(lambda: loss_of(model, batch_of(rank, 0)).backward(), "timed out after 3 s", 20.0)
        print("told", flush=True)
        began = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - began < 10.0, "destroy_process_group waits for a call that has timed out"
        sys.exit(3)
    signal.pause()


def forked():
    """A child of fork gets an error from each call, and the parent goes on."""
    rank, size = begin()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            os._exit(5 if "forked" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    check(tensor, torch.full((3,), float(size)), "after a fork")
    right("forked")


def daemons_of_my_own():
    """Says who runs them, and waits to be ended."""
    rank, size = begin()
    dist.all_reduce(torch.ones(3))
    signal.signal(signal.SIGUSR1, lambda *_: None)
    print("under way", flush=True)
    signal.pause()
    try:
        dist.destroy_process_group()
    except RuntimeError as error:  # its daemons are gone
        print(error, flush=True)


def too_few():
    """With a store that does not count its ranks itself."""
    try:
        dist.init_process_group("bps", init_method=f"file://{os.environ['TMPDIR']}/store", rank=int(os.environ["RANK"]),
                                world_size=int(os.environ["WORLD_SIZE"]), timeout=datetime.timedelta(seconds=8))
    except RuntimeError as error:
        print(f"told: {error}", flush=True)


def steady():
    """Many steps of a tiny FSDP2 model: memory, threads."""
    from torch.distributed.fsdp import fully_shard

    rank, size = begin()
    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes = []
    for step in range(int(os.environ.get("STEPS", "3000"))):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        if step % 500 == 499:
            sizes.append(int(pathlib.Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]))
    assert sizes[-1] - sizes[1] < 4096, sizes
    dist.destroy_process_group()
    names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("bps"))
    assert names in ([], ["bps-deadlines"]), names
    right("steady")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
    if dist.is_initialized():
        dist.destroy_process_group()
