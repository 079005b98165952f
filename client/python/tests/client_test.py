"""One worker with scheduler and server inside the process: operations and their ends."""
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import bps
import numpy

LIMIT = 120  # seconds after which anything is considered to hang


def values(count, dtype="f4"):
    return numpy.arange(count).astype(dtype)


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = bps.Client(scheduler="embedded:")
        cls.addClassCleanup(cls.client.close)

    def declare(self, count=1000, dtype=bps.DType.F32):
        return self.client.declare([bps.TensorSpec(self.id(), dtype, count)])[0]

    def refused(self, code, pattern, function, *arguments, **named):
        with self.assertRaises(bps.Error) as caught:
            function(*arguments, **named)
        self.assertEqual(caught.exception.code, code, caught.exception)
        self.assertRegex(str(caught.exception), pattern)

    def test_place(self):
        self.assertEqual((self.client.rank, self.client.world_size, self.client.local_rank, self.client.local_size),
                         (0, 1, 0, 1))

    def test_push_pull_of_every_type(self):
        names = {"f4": bps.DType.F32, "f8": bps.DType.F64, "f2": bps.DType.F16, "i1": bps.DType.I8, "u1": bps.DType.U8,
                 "i4": bps.DType.I32, "i8": bps.DType.I64}
        for name, dtype in names.items():
            tensor, = self.client.declare([bps.TensorSpec("typed." + name, dtype, 100)])
            for op in bps.Op:
                if name.startswith("f") and op in (bps.Op.AND, bps.Op.OR, bps.Op.XOR):
                    self.refused(bps.Code.INVALID_ARGUMENT, "is of integers only", self.client.push_pull, tensor,
                                 values(100, name), None, op)
                    continue
                out = numpy.zeros(100, name)
                handle = self.client.push_pull(tensor, values(100, name), out, op)
                handle.wait()
                self.assertEqual((out.tobytes(), handle.ranks), (values(100, name).tobytes(), 1), (name, op))

    def test_in_place_and_without_elements(self):
        array = values(1000)
        self.client.push_pull(self.declare(), array).wait()
        self.assertTrue((array == values(1000)).all())
        empty, = self.client.declare([bps.TensorSpec("empty", bps.DType.F32, 0)])
        self.client.push_pull(empty, numpy.zeros(0, "f4")).wait()

    def test_another_type_or_length_than_declared(self):
        tensor = self.declare()
        self.refused(bps.Code.INVALID_ARGUMENT, "1001 elements of f32.*declared were 1000", self.client.push_pull, tensor,
                     values(1001))
        self.refused(bps.Code.INVALID_ARGUMENT, "op is 'sum', and is to be a bps.Op", self.client.push_pull, tensor,
                     values(1000), op="sum")
        self.refused(bps.Code.INVALID_ARGUMENT, "'w' is no tensor", self.client.push_pull, "w", values(1000))
        self.refused(bps.Code.INVALID_ARGUMENT, "1000 elements of f64", self.client.broadcast, tensor, values(1000, "f8"))
        self.refused(bps.Code.INVALID_ARGUMENT, "1001 elements of f32.*declared were 1000", self.client.reduce, tensor,
                     values(1001))
        self.refused(bps.Code.INVALID_ARGUMENT, "out of .* has 1001", self.client.reduce, tensor, values(1000), values(1001))
        self.refused(bps.Code.INVALID_ARGUMENT, "op is 'sum', and is to be a bps.Op", self.client.reduce, tensor,
                     values(1000), op="sum")
        self.refused(bps.Code.INVALID_ARGUMENT, "root 1 is no rank", self.client.reduce, tensor, values(1000), root=1)
        for root in (-1, 1, 2**32):
            self.refused(bps.Code.INVALID_ARGUMENT, f"root {root} is no rank of this job: ranks are 0 to 0",
                         self.client.broadcast, tensor, values(1000), root)
        self.refused(bps.Code.INVALID_ARGUMENT, "root is '1', and is to be a rank", self.client.reduce, tensor, values(1000),
                     root="1")

    def test_names_that_c_cannot_read(self):
        for wrong in ("a\0b", b"a", None):
            pattern = f"is {re.escape(repr(wrong))}, and is to be a string without NUL"
            self.refused(bps.Code.INVALID_ARGUMENT, f"the name of a tensor {pattern}", self.client.declare,
                         [bps.TensorSpec(wrong, bps.DType.F32, 3)])
            self.refused(bps.Code.INVALID_ARGUMENT, f"the name of a group {pattern}", self.client.group, wrong)
        self.client.declare([bps.TensorSpec("größe", bps.DType.F32, 3)])
        self.client.group("größe").drop().wait(LIMIT)

    def test_arguments_that_c_would_not_see_as_they_are(self):
        world, group, array = self.client.world, self.client.group, values(3)
        declare = lambda **named: self.client.declare([bps.TensorSpec("w", bps.DType.F32, 3)._replace(**named)])
        scaled = lambda *factors: world.push_pull(array, scale=bps.Scale(*factors))
        cases = [
            (lambda: self.client.declare(None), "declare.. is given None, and is to be given a list of TensorSpecs"),
            (lambda: self.client.declare(3), "declare.. is given 3, and is to be given a list"),
            (lambda: declare(count=2**64), f"the count of w is {2**64}, and is to be a number of elements from 0 to {2**64 - 1}"),
            (lambda: declare(name="\ud800"), r"the name of a tensor is '.ud800', and is to be a string of whole characters"),
            (lambda: declare(parts=3), "the parts of w are 3, and are to be a list of numbers of elements"),
            (lambda: declare(parts=[2**64 + 3]), "the part of rank 0 of w has 18446744073709551619 elements"),
            (lambda: declare(ranks=0), "the ranks of w are 0, and are to be a list of ranks"),
            (lambda: declare(ranks=[2**32]), f"rank {2**32} is no rank of this job"),
            (lambda: declare(ranks={0}), "the ranks of w are a set, and their order matters"),
            (lambda: group("\ud800"), r"the name of a group is '.ud800', and is to be a string of whole characters"),
            (lambda: group("g", 0), "the ranks of group 'g' are 0, and are to be a list of ranks"),
            (lambda: group("g", "0"), "the ranks of group 'g' are '0', and are to be a list of ranks"),
            (lambda: world.reduce_scatter(array, array, parts=10), "the parts of a call on group 'world' are 10, and are to be a list"),
            (lambda: world.reduce_scatter(array, array, parts=[2**64 + 3]),
             f"number 0 of the parts of a call on group 'world' is {2**64 + 3}, and is to be a whole number from 0 to {2**64 - 1}"),
            (lambda: world.all_gather(array, array, [-1]), "number 0 of the parts of a call on group 'world' is -1"),
            (lambda: world.all_gather(array, array, ["3"]), "is '3', and is to be a whole number"),
            (lambda: world.all_to_all(array, array, [2**64 + 12]), "number 0 of the parts of a call on group 'world' is"),
            (lambda: world.send(array, 0, 2**64), f"tag of a call on group 'world' is {2**64}, and is to be"),
            (lambda: world.push_pull_many(None), "sources of a call on group 'world' are None, and are to be a list of arrays"),
            (lambda: world.push_pull_many([array], 5), "outs of a call on group 'world' are 5, and are to be a list of arrays"),
            (lambda: scaled("1"), "the weight of a scale is '1', and is to be a number"),
            (lambda: scaled(1, None), "the prescale of a scale is None, and is to be a number"),
            (lambda: scaled(1, 1, 10**400), "the postscale of a scale is 1000.*, and is to be a number"),
            (lambda: bps.Client(rank=2**32), "rank=4294967296 does not fit into 32 bits"),
            (lambda: bps.Client(job="a\0b"), r"job is 'a.x00b', and is to be a string without NUL"),
            (lambda: bps.Client(mode="\ud800"), r"mode is '.ud800', and is to be a string of whole characters"),
        ]
        for priority in (2**31, -2**31 - 1):
            pattern = f"is {priority}, and is to be a whole number from {-2**31} to {2**31 - 1}"
            cases += [(lambda priority=priority: declare(priority=priority), f"the priority of w {pattern}"),
                      (lambda priority=priority: group("g", None, priority), f"the priority of group 'g' {pattern}")]
        for number, (call, pattern) in enumerate(cases):
            with self.subTest(number=number):
                self.refused(bps.Code.INVALID_ARGUMENT, pattern, call)
        for tensor in declare(parts=numpy.array([3]), ranks=numpy.array([0]), priority=numpy.int64(-2**31)):
            self.client.drop(tensor).wait(LIMIT)
        scaled(numpy.float32(1), 1, True).wait(LIMIT)

    def test_what_is_no_list_of_specs(self):
        spec = bps.TensorSpec(self.id(), bps.DType.F32, 3)
        self.refused(bps.Code.INVALID_ARGUMENT, "given one TensorSpec.*give a list", self.client.declare, spec)
        self.refused(bps.Code.INVALID_ARGUMENT, "is no TensorSpec", self.client.declare, [tuple(spec)])
        for dtype in ("f4", 0, numpy.float32, None):
            self.refused(bps.Code.INVALID_ARGUMENT, "the dtype of .*is to be a bps.DType", self.client.declare,
                         [spec._replace(dtype=dtype)])
        for count in ("3", 3.0, -1, None, [3]):
            self.refused(bps.Code.INVALID_ARGUMENT, "the count of .*is to be a number of elements", self.client.declare,
                         [spec._replace(count=count)])
        self.refused(bps.Code.INVALID_ARGUMENT, "at most 1099511627776 are allowed", self.client.declare,
                     [spec._replace(count=2**40 + 1)])
        tensor, = self.client.declare([spec._replace(count=numpy.int64(3))])
        self.client.push_pull(tensor, values(3)).wait(LIMIT)

    @staticmethod
    def calls_on(client, tensor):
        array = values(3)
        return (lambda: client.push_pull(tensor, array), lambda: client.broadcast(tensor, array),
                lambda: client.reduce(tensor, array), lambda: client.reduce_scatter(tensor, array, array),
                lambda: client.all_gather(tensor, array, array), lambda: client.drop(tensor))

    def test_what_is_no_tensor_of_this_client(self):
        with bps.Client(scheduler="embedded:") as here, bps.Client(scheduler="embedded:") as there:
            ours, = here.declare([bps.TensorSpec("ours", bps.DType.F32, 3, parts=[3])])
            theirs, unknown = there.declare([bps.TensorSpec(name, bps.DType.F32, 3, parts=[3]) for name in ("theirs", "unknown")])
            self.assertEqual(theirs.number, ours.number)
            for wrong, pattern in (([ours], "list of tensors.*take one out of it"), ((ours,), "is no tensor"),
                                   (ours.number, "is no tensor"), (None, "is no tensor"),
                                   (theirs, "theirs is a tensor of another client"), (unknown, "has not been declared by this client")):
                for call in self.calls_on(here, wrong):
                    self.refused(bps.Code.INVALID_ARGUMENT, pattern, call)
            for call in self.calls_on(here, ours):
                call().wait(LIMIT)

    def test_what_is_no_scale(self):
        tensor, world = self.declare(3), self.client.world
        for scale in ((1.0, 1.0, 1.0), 2.0, "2", {"weight": 2.0}, bps.Scale):
            for call in (lambda: self.client.push_pull(tensor, values(3), scale=scale),
                         lambda: self.client.reduce(tensor, values(3), scale=scale),
                         lambda: world.push_pull(values(3), scale=scale), lambda: world.reduce(values(3), scale=scale),
                         lambda: world.reduce_scatter(values(3), values(3), scale=scale)):
                self.refused(bps.Code.INVALID_ARGUMENT, "scale is .*is to be a bps.Scale", call)
        self.client.push_pull(tensor, values(3), scale=bps.Scale(2)).wait(LIMIT)
        whole, = self.client.declare([bps.TensorSpec("whole", bps.DType.I32, 3)])
        self.refused(bps.Code.INVALID_ARGUMENT, "has a scale, and holds integers", self.client.push_pull, whole,
                     values(3, "i4"), scale=bps.Scale(2))
        for weight, pattern in ((-1, "what rank 0 gives has a weight of -1"), (0, "the weights of the average add up to 0")):
            self.refused(bps.Code.INVALID_ARGUMENT, f"^group 'world': call number [0-9]+: {pattern}",
                         world.push_pull(values(3), scale=bps.Scale(weight)).wait, LIMIT)

    def test_drop(self):
        tensor = self.declare()
        self.client.push_pull(tensor, values(1000)).wait()
        handle = self.client.drop(tensor)
        for use in (lambda: self.client.push_pull(tensor, values(1000)), lambda: self.client.drop(tensor),
                    lambda: self.client.broadcast(tensor, values(1000))):
            self.refused(bps.Code.INVALID_ARGUMENT, "has been dropped.*declare it again", use)
        other = self.declare(500, bps.DType.F64)
        self.assertNotEqual(other, tensor)
        self.assertEqual(self.declare(500, bps.DType.F64), other)
        array = values(500, "f8")
        self.client.push_pull(other, array).wait()
        self.assertTrue((array == values(500)).all())
        told = []
        handle.then(told.append)
        handle.wait(LIMIT)
        self.assertEqual((told, handle.poll(), handle.ranks, handle.tensor), ([None], True, 0, tensor))
        self.refused(bps.Code.INVALID_ARGUMENT, "not on memory of a GPU", handle.wait_stream)
        self.refused(bps.Code.INVALID_ARGUMENT, "has been dropped.*declare it again", self.client.drop, tensor)
        self.refused(bps.Code.INVALID_ARGUMENT, "'w' is no tensor", self.client.drop, "w")
        unknown = bps.handle.Tensor(4711, "unknown", bps.DType.F32, 1)
        self.refused(bps.Code.INVALID_ARGUMENT, "has not been declared", self.client.drop, unknown)

    def test_drop_in_a_callback(self):
        dropped, came = [], threading.Event()
        tensor = self.declare()

        def drop(error):
            dropped.append(self.client.drop(tensor))
            came.set()

        self.client.push_pull(tensor, values(1000)).then(drop)
        self.assertTrue(came.wait(LIMIT))
        dropped[0].wait(LIMIT)

    def test_nothing_is_left_of_a_thousand_drops(self):
        def rounds(number):
            for _ in range(number):
                tensor = self.declare(10)
                self.client.push_pull(tensor, values(10)).wait()
                self.client.drop(tensor)  # nobody keeps the handle
            self.declare(10)
            tensor = None
            gc.collect()
            return len(gc.get_objects()), len(os.listdir("/proc/self/fd"))

        before = rounds(100)
        after = rounds(1000)
        self.assertLess(after[0] - before[0], 50)
        self.assertEqual(after[1], before[1])

    def test_options(self):
        self.refused(bps.Code.INVALID_ARGUMENT, "no setting 'cuda-devise'.*did you mean cuda-device", bps.Client, cuda_devise=0)
        self.refused(bps.Code.INVALID_ARGUMENT, "no setting 'gpu'$", bps.Client, gpu=0)
        self.refused(bps.Code.INVALID_ARGUMENT, "no setting 'cuda-devise'", bps.Client, scheduler="embedded:", cuda_devise=None)
        bps.Client(scheduler="embedded:", cuda_device=None, mode=None, retain=None).close()
        for number in ("first", 1.5, float("inf")):
            self.refused(bps.Code.INVALID_ARGUMENT, f"rank={number!r} is not a whole number", bps.Client, rank=number)
            self.refused(bps.Code.CONFIGURATION, f"cuda-device: '{number}' is not a whole", bps.Client, cuda_device=number)
        self.refused(bps.Code.CONFIGURATION, "'fast' is not one of sync, async", bps.Client, mode="fast")
        self.refused(bps.Code.CONFIGURATION, "join-timeout: '3'", bps.Client, join_timeout=3)
        self.refused(bps.Code.CONFIGURATION, "rank", bps.Client, scheduler="embedded:", rank=7, world_size=2)

    def test_a_timeout_is_a_number(self):
        handle = self.client.push_pull(self.declare(), values(1000))
        for wrong in (float("nan"), "3", b"3", [1]):
            self.refused(bps.Code.INVALID_ARGUMENT, "timeout of .* is not a number of seconds", handle.wait, wrong)
        self.refused(bps.Code.INVALID_ARGUMENT, "timeout of nan", self.client.barrier, float("nan"))
        handle.wait(float("inf"))
        handle.wait(-1)
        handle.wait(numpy.float32(1))

    def test_a_wait_returns_after_the_callbacks(self):
        tensor, array = self.declare(10), values(10)
        for _ in range(500):
            told = []
            handle = self.client.push_pull(tensor, array)
            handle.then(told.append)
            handle.wait()
            self.assertEqual(told, [None])
            self.assertTrue(handle.poll())

    def test_callback(self):
        array, told, came = values(1000), [], threading.Event()
        thread = []

        def function(error):
            told.append(error)
            thread.append(threading.get_ident())
            came.set()

        self.client.push_pull(self.declare(), array).then(function)
        self.assertTrue(came.wait(LIMIT))
        self.assertEqual(told, [None])
        self.assertNotEqual(thread, [threading.get_ident()])

    def test_callback_may_not_wait_and_what_it_raises_is_shown(self):
        tensor, other, shown, came = self.declare(), self.client.declare([bps.TensorSpec("other", bps.DType.F32, 5)])[0], [], \
            threading.Event()
        hook, sys.excepthook = sys.excepthook, lambda kind, error, trace: (shown.append(error), came.set())
        self.addCleanup(setattr, sys, "excepthook", hook)
        self.client.push_pull(tensor, values(1000)).then(
            lambda error: self.client.push_pull(other, values(5)).wait())
        self.assertTrue(came.wait(LIMIT))
        self.assertRegex(str(shown[0]), "callback")

    def test_nothing_is_left_of_ten_thousand_operations(self):
        tensor, array = self.declare(10), values(10)

        def rounds(number):
            for _ in range(number):
                handle = self.client.push_pull(tensor, array)
                handle.wait()
            handle = None
            gc.collect()
            return len(gc.get_objects()), sys.getrefcount(array), len(os.listdir("/proc/self/fd"))

        before = rounds(100)
        after = rounds(10_000)
        self.assertLess(after[0] - before[0], 50)
        self.assertEqual(after[1:], before[1:])

    def test_where_no_thread_can_be_started(self):
        with unittest.mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            self.client.barrier()
            self.refused(bps.Code.INVALID_ARGUMENT, "name", self.client.declare, [bps.TensorSpec("", bps.DType.F32, 3)])

    def test_from_many_threads(self):
        failures = []

        def work(number):
            try:
                tensor, = self.client.declare([bps.TensorSpec(f"thread{number}", bps.DType.F32, 5000)])
                array = values(5000)
                for _ in range(50):
                    self.client.push_pull(tensor, array).wait(LIMIT)
            except bps.Error as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_closed(self):
        with bps.Client(scheduler="embedded:") as client:
            tensor, = client.declare([bps.TensorSpec("t", bps.DType.F32, 3)])
        client.close()
        self.refused(bps.Code.CLOSED, "closed", client.push_pull, tensor, values(3))
        self.refused(bps.Code.CLOSED, "^the client is closed", client.stats)
        self.refused(bps.Code.CLOSED, "^the client is closed", client.info)
        self.refused(bps.Code.CLOSED, "closed", client.barrier)

    def test_a_with_is_left_by_the_exception_of_the_program(self):
        """Also where the library has ended what a GPU was at, and says that the GPU has not come to rest."""
        library, abandoned = bps._library.get(), []
        abandon = library.bps_abandon

        def abandon_with_a_stuck_gpu(client, error):
            abandoned.append(abandon(client, error))
            return int(bps.Code.OS)

        with unittest.mock.patch.object(library, "bps_abandon", abandon_with_a_stuck_gpu):
            with self.assertRaises(ZeroDivisionError):
                with bps.Client(scheduler="embedded:") as client:
                    1 / 0
            self.assertEqual(abandoned, [0])
            with bps.Client(scheduler="embedded:") as client:
                self.refused(bps.Code.OS, "^refused by the operating system", client.abandon)
        self.assertEqual(abandoned, [0, 0])

    def test_a_forked_child_is_told(self):
        tensor = self.declare(10)
        child = os.fork()
        if child == 0:
            try:
                self.client.push_pull(tensor, values(10))
            except bps.Error as error:
                os._exit(7 if error.code == bps.Code.CLOSED else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        self.client.push_pull(tensor, values(10)).wait(LIMIT)

    def test_kvstore(self):
        store = bps.KVStore(self.client)
        self.assertEqual((store.rank, store.num_workers, store.is_capable("optimizer")), (0, 1, False))
        self.refused(bps.Code.INVALID_ARGUMENT, "no capability", store.is_capable, "coffee")
        self.refused(bps.Code.INVALID_ARGUMENT, "2 keys, 1 values", store.pushpull, ["a", "b"], [values(3)])
        self.refused(bps.Code.INVALID_ARGUMENT, "value of a has 3.*its out 4", store.pushpull, "a", values(3), values(4))
        store.close()
        self.client.stats()

    def test_kvstore_after_a_drop(self):
        store = bps.KVStore(self.client)
        for dtype, kind, count in (("f4", bps.DType.F32, 10), ("i8", bps.DType.I64, 7), ("i8", bps.DType.I64, 7)):
            array = values(count, dtype)
            store.pushpull("dropped", array)
            self.assertTrue((array == values(count, dtype)).all())
            tensor, = self.client.declare([bps.TensorSpec("kvstore.dropped", kind, count)])
            self.client.drop(tensor)
            self.refused(bps.Code.INVALID_ARGUMENT, "has been dropped", self.client.drop, tensor)


class AloneTest(unittest.TestCase):
    """A program that is started as any other, with nothing set."""

    PROGRAM = """
import bps, numpy
with bps.Client(job="train") as client:
    tensor, = client.declare([bps.TensorSpec("t", bps.DType.F32, 3)])
    array = numpy.ones(3, "f4")
    client.push_pull(tensor, array).wait()
    print(client.rank, client.world_size, array.tolist())
"""

    def run_it(self, *under, program=PROGRAM, **environment):
        kept = {name: os.environ[name] for name in ("PATH", "BPS_LIBRARY")}
        done = subprocess.run([*under, sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT,
                              env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment})
        self.assertEqual((done.returncode, done.stdout), (0, "0 1 [1.0, 1.0, 1.0]\n"), done.stderr)
        return done.stderr

    def test_it_is_rank_0_of_1(self):
        self.assertEqual(self.run_it(), "")

    def test_a_line_of_the_log_says_so(self):
        self.assertRegex(self.run_it(BPS_LOG_LEVEL="info"), "no scheduler, .*rank 0 of 1.*embedded:.*bps-run")

    def test_little_address_space_is_enough(self):
        """What malloc reserves for each thread would take it all."""
        program = self.PROGRAM.replace("numpy.ones(3, ", "array.array(").replace('"f4")', '"f", [1, 1, 1])')
        program = program.replace("numpy", "array")
        for limit in range(130, 450, 30):
            with self.subTest(limit=limit):
                self.run_it("sh", "-c", 'ulimit -v "$0" && exec "$@"', str(limit * 1024), program=program)


class InfoTest(unittest.TestCase):
    """What the library works with, whoever has said it."""

    def info(self, **environment):
        with unittest.mock.patch.dict(os.environ, environment), bps.Client(scheduler="embedded:") as client:
            return client.info()

    def test_nobody_says_it(self):
        self.assertEqual(self.info(), bps.Info("off", None, 300.0))

    def test_what_is_said_is_told(self):
        self.assertEqual(self.info(BPS_LOCAL_GROUP="host", BPS_CUDA_DEVICE="3", BPS_OPERATION_TIMEOUT="2s"),
                         bps.Info("host", 3, 2.0))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file.toml")
            with open(path, "w") as file:
                file.write("'local-group' = 'host'\n")
            self.assertEqual(self.info(BPS_CONFIG=path).local_group, "host")
        with bps.Client(scheduler="embedded:", operation_timeout_ms=1500) as client:
            self.assertEqual(client.info().operation_timeout_s, 1.5)
        with bps.Client(scheduler="embedded:", operation_timeout="2500ms", cuda_device=2, retain=False, local_group="host",
                        mode=None) as client:
            self.assertEqual(client.info(), bps.Info("host", 2, 2.5))
        with self.assertRaises(bps.Error) as caught:
            client.info()
        self.assertEqual(caught.exception.code, bps.Code.CLOSED)


class EndTest(unittest.TestCase):
    """With which status a program ends that does not catch an error, also where there has never been a client."""

    def ended(self, program, status, pattern, **environment):
        kept = {name: os.environ[name] for name in ("PATH", "BPS_LIBRARY")}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT,
                              env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment})
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, pattern)
        self.assertEqual(done.stderr.count("Traceback"), 1, done.stderr)

    def test_without_a_client(self):
        self.ended("import bps; bps.handle.milliseconds_of('soon')", 64, "'soon' is not a number of seconds")
        self.ended("import bps; raise ValueError from bps.Error(bps.Code.PEER_LOST, 'told')", 75, "told")
        self.ended("import bps; bps.Error(bps.Code.PEER_LOST, 'kept'); raise ValueError", 1, "ValueError")

    def test_a_client_that_cannot_be_made(self):
        self.ended("import bps; bps.Client(gpu=1)", 64, "no setting 'gpu'")
        self.ended("import bps; bps.Client(mode='fast')", 78, "'fast' is not one of")
        self.ended("import bps; bps.Client(join_timeout='100ms')", 69, "does not answer", BPS_SCHEDULER="127.0.0.1:1",
                   BPS_WORLD_SIZE="2", BPS_RANK="0")
        self.ended("import bps; bps.Client()", 78, "no/such/library", BPS_LIBRARY="/no/such/library")


class WaitTest(unittest.TestCase):
    """A wait in the main thread for something that never comes: a world of two with one worker."""

    def test_the_time_of_a_wait_is_the_whole_of_it(self):
        waited, looks = [], []

        def look(handle):
            looks.append(threading.Event().wait(0.05))
            return False

        with unittest.mock.patch.multiple(bps.Handle, poll=lambda handle: False, _ends_soon=look,
                                          _wait=lambda handle, milliseconds, error: waited.append(milliseconds) or 0):
            for operation_timeout, timeout_s in (("60s", None), ("5s", 60.0)):
                with bps.Client(scheduler="embedded:", operation_timeout=operation_timeout) as client:
                    handle = bps.Handle(client, None, ())
                    handle.wait(timeout_s)
                    self.assertEqual(len(looks), 1)
                    self.assertGreater(waited.pop(), 0)
                    looks.clear()
                    waited.clear()
                    handle.wait(timeout_s)
                    self.assertLessEqual(waited.pop(), 60_000 - 50)
                    looks.clear()
            with bps.Client(scheduler="embedded:", operation_timeout="5s") as client:  # it is as long as it is short
                bps.Handle(client, None, ()).wait()
            self.assertEqual((looks, waited), ([], [-1]))

    def test_ctrl_c_while_its_thread_is_being_started(self):
        began, calls = threading.Event(), []

        class Interrupted(threading.Thread):
            def start(self):
                threading.Timer(0.05, super().start).start()
                raise KeyboardInterrupt

        def call():
            began.set()
            return "late"

        with unittest.mock.patch("bps._interrupt.threading.Thread", Interrupted):
            with self.assertRaises(KeyboardInterrupt):
                bps._interrupt.call_interruptibly(call, calls.append)
        self.assertTrue(began.wait(LIMIT))
        for _ in range(LIMIT * 100):
            if calls:
                break
            threading.Event().wait(0.01)
        self.assertEqual(calls, ["late"])

    def test_ctrl_c_while_joining(self):
        self.interrupted(lambda: bps.Client(scheduler="127.0.0.1:1", rank=0, world_size=2, join_timeout_ms=600_000))

    def interrupted(self, function):
        main, done = threading.main_thread().native_id, threading.Event()

        def interrupt():
            # The signal comes when the main thread sleeps in the kernel, inside the call.
            while not done.is_set():
                with open(f"/proc/self/task/{main}/syscall") as file:
                    if not file.read().startswith("running"):
                        break
                os.sched_yield()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with self.assertRaises(KeyboardInterrupt):
            try:
                function()
            finally:
                done.set()
                interrupter.join()
