"""The Python side of the C API says what bps.h and calls.h say, and a library that does not fit is refused with a reason."""
import ctypes
import pathlib
import re
import unittest
from unittest import mock

from bps import Code, DType, Error, Op, _abi, _library

HEADER = "".join((pathlib.Path(__file__).resolve().parents[2] / "include/bps" / name).read_text() for name in ("bps.h", "calls.h"))
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)


def enumerators(name):
    body = re.search(rf"typedef enum {name} {{(.*?)}} {name};", CODE, re.S).group(1)
    return {key: int(value) for key, value in re.findall(r"BPS_(\w+) = (-?\d+)", body)}


def fields(name):
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", CODE, re.S).group(1)
    return [re.search(r"(\w+)(\[\d+\])?$", line.strip()).group(1) for line in body.split(";") if line.strip()]


class HeaderTest(unittest.TestCase):
    def test_enumerators(self):
        self.assertEqual({"OK": 0, **{c.name: c.value for c in Code}}, enumerators("bps_status"))
        self.assertEqual({d.name: d.value for d in DType}, enumerators("bps_dtype"))
        self.assertEqual({o.name: o.value for o in Op}, enumerators("bps_reduce_op"))
        self.assertEqual(_abi.MEMORY_CUDA, enumerators("bps_memory_kind")["MEMORY_CUDA"])

    def test_fields_in_order(self):
        for mine, theirs in ((_abi.CError, "bps_error"), (_abi.COptions, "bps_options"), (_abi.CStats, "bps_stats"),
                             (_abi.CClientInfo, "bps_client_info"),
                             (_abi.CTensorSpec, "bps_tensor_spec"), (_abi.CBuffer, "bps_buffer")):
            self.assertEqual([name for name, _ in mine._fields_], fields(theirs), theirs)

    def test_functions(self):
        for name, _, arguments in _abi.FUNCTIONS:
            found = re.search(rf"BPS_API [^;]*?\b{name}\((.*?)\);", CODE, re.S)
            self.assertTrue(found, name)
            parameters = [p for p in found.group(1).split(",") if p.strip() != "void"]
            self.assertEqual(len(arguments), len(parameters), name)

    def test_every_status_has_words_of_its_own(self):
        words = [_library.get().bps_status_string(status) for status in enumerators("bps_status").values()]
        self.assertEqual(len(set(words)), len(words))
        for unknown in (-1, len(words), 65536, 2**31 - 1):
            self.assertEqual(_library.get().bps_status_string(unknown), b"unknown status", unknown)

    def test_exit_codes(self):
        """Those of errors that this package finds itself, too."""
        there = {int(status): int(code) for status, code in re.findall(r"BPS_\w+ = (\d+),? +/\*.* exit (\d+) \*/", HEADER)}
        self.assertEqual({int(code): Error(code, "what").exit_code for code in Code}, there)

    def test_sizes_of_elements(self):
        library = _library.get()
        library.bps_dtype_size.restype = ctypes.c_size_t
        for dtype in DType:
            self.assertEqual(library.bps_dtype_size(int(dtype)), dtype.bytes)

    def test_unset_options(self):
        """What the library writes into them as "not set" lands in the fields of that name."""
        options = _abi.COptions()
        _library.get().bps_options_init(ctypes.byref(options), ctypes.sizeof(options))
        self.assertEqual(options.struct_size, ctypes.sizeof(options))
        for name in ("rank", "local_size", "join_timeout_ms", "operation_timeout_ms"):
            self.assertEqual(getattr(options, name), -1, name)
        for name in ("scheduler", "job", "config_file", "log", "log_user"):
            self.assertIsNone(getattr(options, name), name)
        self.assertIn(f"char settings[{_abi.COptions.settings.size}];", CODE)
        self.assertEqual(options.settings, b"")
        self.assertEqual(_library.get().bps_options_set(ctypes.byref(options), b"rank", b"3", None), 0)
        self.assertEqual(options.settings, b"rank = 3\n")


class LibraryTest(unittest.TestCase):
    def refused(self, where, *patterns):
        with self.assertRaises(Error) as caught:
            _library.load(where)
        self.assertEqual((caught.exception.code, caught.exception.exit_code), (Code.CONFIGURATION, 78))
        for pattern in patterns:
            self.assertRegex(str(caught.exception), pattern)

    def test_not_there(self):
        self.refused("libbpsclient.so.4711", "libbpsclient.so.4711", "cmake --install.*BPS_LIBRARY")

    def test_another_library(self):
        self.refused("libc.so.6", "libc.so.6 is no library of bps")

    def test_another_version(self):
        with mock.patch.object(_abi, "VERSION_MINOR", 99):
            self.refused(_library.find(), r"is version 0\.1\.0, and this package is for 0\.99", "same source")

    def test_a_function_is_missing(self):
        with mock.patch.object(_abi, "FUNCTIONS", [("bps_make_coffee", None, [])]):
            self.refused(_library.find(), "older than this package.*bps_make_coffee")

    def test_the_variable_names_no_file(self):
        with mock.patch.dict("os.environ", BPS_LIBRARY="/nowhere/libbpsclient.so.0"), self.assertRaises(Error) as caught:
            _library.find()
        self.assertIn("BPS_LIBRARY=/nowhere/libbpsclient.so.0: there is no such file", str(caught.exception))

    def test_without_the_variable(self):
        with mock.patch.dict("os.environ"):
            del __import__("os").environ["BPS_LIBRARY"]
            self.assertEqual(_library.find(), "libbpsclient.so.0")
