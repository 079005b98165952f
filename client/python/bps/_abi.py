"""The C API of libbpsclient, as ctypes sees it: bps.h in the same order, nothing added.

ctypes lets go of the interpreter lock while such a function runs, so one thread that waits never stops the others.
"""
import ctypes
import enum
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, List, Tuple

VERSION_MAJOR = 0
VERSION_MINOR = 1


class DType(enum.IntEnum):
    """Element types; the numbers are those of `bps_dtype`."""

    F32 = 0
    F64 = 1
    F16 = 2
    BF16 = 3
    I8 = 4
    U8 = 5
    I32 = 6
    I64 = 7

    @property
    def bytes(self) -> int:
        """Of one element."""
        return (4, 8, 2, 2, 1, 1, 4, 8)[self.value]


class Op(enum.IntEnum):
    """What a push_pull does with the contributions; the numbers are those of `bps_reduce_op`."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    AND = 5
    OR = 6
    XOR = 7


class CError(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int),
        ("exit_code", c_int),
        ("message", c_char * 1024),
        ("advice", c_char * 512),
    ]


class COptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("scheduler", c_char_p),
        ("job", c_char_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("local_rank", c_int32),
        ("local_size", c_int32),
        ("config_file", c_char_p),
        ("join_timeout_ms", c_int64),
        ("operation_timeout_ms", c_int64),
        ("log", c_void_p),
        ("log_user", c_void_p),
        ("settings", c_char * 4096),
    ]


class CStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pushed_bytes", c_uint64),
        ("pulled_bytes", c_uint64),
        ("rounds", c_uint64),
        ("resent", c_uint64),
        ("lanes", c_uint64),
        ("shm_lanes", c_uint64),
        ("workers", c_uint64),
        ("rdma_lanes", c_uint64),
        ("rdma_registrations", c_uint64),
        ("rdma_sends", c_uint64),
        ("rdma_signalled_sends", c_uint64),
        ("rdma_reads", c_uint64),
        ("rdma_read_bytes", c_uint64),
        ("rdma_failed_requests", c_uint64),
        ("rdma_unanswered_requests", c_uint64),
        ("rdma_unready_receivers", c_uint64),
    ]


class CClientInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("local_group", c_char_p),
        ("cuda_device", c_int32),
        ("operation_timeout_ms", c_int64),
    ]


class CTensorSpec(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_int),
        ("count", c_uint64),
        ("priority", c_int32),
        ("mode", c_int32),
        ("staleness", c_int64),
        ("parts", POINTER(c_uint64)),
        ("part_count", c_size_t),
        ("ranks", POINTER(c_int32)),
        ("rank_count", c_size_t),
    ]


class CGroupSpec(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("ranks", POINTER(c_int32)),
        ("rank_count", c_size_t),
        ("priority", c_int32),
    ]


class CScale(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("weight", c_double),
        ("prescale", c_double),
        ("postscale", c_double),
    ]


class CBuffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pointer", c_void_p),
        ("bytes", c_size_t),
        ("kind", c_int32),
        ("device", c_int32),
        ("stream", c_void_p),
        ("scale", POINTER(CScale)),
    ]


class CView(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pointer", c_void_p),
        ("bytes", c_size_t),
        ("offset", c_uint64),
        ("pieces", c_size_t),
    ]


MODES = {None: -1, "sync": 0, "async": 1}  # bps_mode; None: the job's
STALENESS_DEFAULT = -1  # the job's
STALENESS_UNBOUNDED = -2
MEMORY_CUDA = 2  # of bps_memory_kind
CCallback = ctypes.CFUNCTYPE(None, POINTER(CError), c_void_p)

_Signature = Tuple[str, Any, List[Any]]
_error = POINTER(CError)
FUNCTIONS: List[_Signature] = [
    ("bps_version", c_char_p, []),
    ("bps_status_string", c_char_p, [c_int]),
    ("bps_options_init", None, [POINTER(COptions), c_size_t]),
    ("bps_options_set", c_int, [POINTER(COptions), c_char_p, c_char_p, _error]),
    ("bps_open", c_int, [POINTER(COptions), POINTER(c_void_p), _error]),
    ("bps_close", c_int, [c_void_p, c_int64, _error]),
    ("bps_abandon", c_int, [c_void_p, _error]),
    ("bps_free", None, [c_void_p]),
    ("bps_rank", c_int32, [c_void_p]),
    ("bps_world_size", c_int32, [c_void_p]),
    ("bps_local_rank", c_int32, [c_void_p]),
    ("bps_local_size", c_int32, [c_void_p]),
    ("bps_barrier", c_int, [c_void_p, c_int64, _error]),
    ("bps_get_stats", c_int, [c_void_p, POINTER(CStats)]),
    ("bps_get_client_info", c_int, [c_void_p, POINTER(CClientInfo)]),
    ("bps_declare", c_int, [c_void_p, POINTER(CTensorSpec), c_size_t, POINTER(c_uint32), c_int64, _error]),
    ("bps_drop", c_int, [c_void_p, c_uint32, POINTER(c_void_p), _error]),
    ("bps_declare_group", c_int, [c_void_p, POINTER(CGroupSpec), POINTER(c_uint32), _error]),
    ("bps_drop_group", c_int, [c_void_p, c_uint32, POINTER(c_void_p), _error]),
    ("bps_push_pull", c_int,
     [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), c_int, POINTER(c_void_p), _error]),
    ("bps_reduce", c_int,
     [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), c_int, c_int32, POINTER(c_void_p), _error]),
    ("bps_reduce_scatter", c_int,
     [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), c_int, c_int, POINTER(c_void_p), _error]),
    ("bps_all_gather", c_int, [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), POINTER(c_void_p), _error]),
    ("bps_broadcast", c_int, [c_void_p, c_uint32, POINTER(CBuffer), c_int32, POINTER(c_void_p), _error]),
    ("bps_group_push_pull", c_int,
     [c_void_p, c_uint32, c_int, POINTER(CBuffer), POINTER(CBuffer), c_int, POINTER(c_void_p), _error]),
    ("bps_push_pull_many", c_int,
     [c_void_p, c_uint32, c_int, POINTER(CBuffer), POINTER(CBuffer), c_size_t, c_int, POINTER(c_void_p), _error]),
    ("bps_group_broadcast", c_int, [c_void_p, c_uint32, POINTER(CBuffer), c_int32, POINTER(c_void_p), _error]),
    ("bps_group_reduce", c_int,
     [c_void_p, c_uint32, c_int, POINTER(CBuffer), POINTER(CBuffer), c_int, c_int32, POINTER(c_void_p), _error]),
    ("bps_group_reduce_scatter", c_int,
     [c_void_p, c_uint32, c_int, POINTER(CBuffer), POINTER(CBuffer), POINTER(c_uint64), c_size_t, c_int, c_int,
      POINTER(c_void_p), _error]),
    ("bps_group_all_gather", c_int,
     [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), POINTER(c_uint64), c_size_t, POINTER(c_void_p), _error]),
    ("bps_send", c_int, [c_void_p, c_uint32, POINTER(CBuffer), c_int32, c_uint64, POINTER(c_void_p), _error]),
    ("bps_receive", c_int, [c_void_p, c_uint32, POINTER(CBuffer), c_int32, c_uint64, POINTER(c_void_p), _error]),
    ("bps_scatter", c_int,
     [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), POINTER(c_uint64), c_size_t, c_int32, POINTER(c_void_p),
      _error]),
    ("bps_gather", c_int,
     [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), POINTER(c_uint64), c_size_t, c_int32, POINTER(c_void_p),
      _error]),
    ("bps_all_to_all", c_int,
     [c_void_p, c_uint32, POINTER(CBuffer), POINTER(CBuffer), POINTER(c_uint64), POINTER(c_uint64), c_size_t,
      POINTER(c_void_p), _error]),
    ("bps_join", c_int, [c_void_p, c_uint32, POINTER(c_void_p), _error]),
    ("bps_handle_last_joined", c_int32, [c_void_p]),
    ("bps_poll", c_int, [c_void_p, POINTER(c_int)]),
    ("bps_wait", c_int, [c_void_p, c_int64, _error]),
    ("bps_handle_wait_stream", c_int, [c_void_p, c_void_p, _error]),
    ("bps_then", c_int, [c_void_p, CCallback, c_void_p, _error]),
    ("bps_handle_fd", c_int, [c_void_p, POINTER(c_int), _error]),
    ("bps_handle_ranks", c_uint32, [c_void_p]),
    ("bps_handle_view", c_int, [c_void_p, c_size_t, POINTER(CView), _error]),
    ("bps_handle_free", None, [c_void_p]),
]


def set_prototypes(library: ctypes.CDLL) -> None:
    """Tells ctypes the signatures. AttributeError if the library lacks a function."""
    for name, result, arguments in FUNCTIONS:
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
