#!/usr/bin/env python3
"""The rules of the house that a compiler does not see: layers, homes, sizes, habits.

    check.py ROOT             check the tree; prints file:line: rule: what to do; exit 1 on any finding
    check.py --self-test      prove that every rule finds a violation and leaves clean code alone
"""
import pathlib
import re
import sys
import tempfile

FOLDERS = ("cmake", "proto", "server", "scheduler", "client", "tests", "bench", "deploy")
CODE = (".h", ".hpp", ".c", ".cc", ".cu", ".inc")
TEXT = CODE + (".py", ".sh", ".md", ".fbs", ".txt", ".cmake", ".in", ".yml", ".yaml", ".toml")
MAX_LINES = 600

# Who may include whom. The longest prefix that matches a path names its layer.
LAYERS = {
    "proto/base/": "base",
    "proto/reduce/": "reduce",
    "proto/wire/": "wire",
    "proto/auth/": "auth",
    "proto/transport/": "transport",
    "proto/session/": "session",
    "proto/daemon/": "daemon",
    "server/": "server",
    "scheduler/": "scheduler",
    "client/": "client",
    "client/include/": "public",
    "client/examples/": "example",
    "deploy/": "deploy",
    "bench/": "bench",
    "tests/": "tests",
}
TRANSPORT = {"base", "wire", "transport"}
GROUND = TRANSPORT | {"auth"}
EVERYTHING = GROUND | {"reduce", "session", "daemon", "server", "scheduler", "client", "public", "deploy", "bench",
                       "tests"}
MAY_INCLUDE = {
    "base": {"base"},
    "reduce": {"base", "reduce"},
    "wire": {"base", "wire"},
    "auth": {"base", "wire", "auth"},
    "transport": TRANSPORT,
    "session": GROUND | {"session"},
    "daemon": GROUND | {"daemon"},
    "server": GROUND | {"reduce", "session", "daemon", "server"},
    "scheduler": GROUND | {"daemon", "scheduler"},
    "client": GROUND | {"reduce", "session", "client", "public"},
    "public": {"public"},
    "example": {"public", "example"},
    "deploy": EVERYTHING,
    "bench": EVERYTHING,
    "tests": EVERYTHING,
}

# What has one home. (name, what betrays it, the files where it lives, files that are no part of the
# product's threads and settings and may use it too)
HOMES = [
    ("asio", r'#\s*include\s*[<"]boost/(asio|beast)\b',
     r"proto/base/loop/asio_loop[._]|proto/transport/stream/", None),
    ("flatbuffers", r'#\s*include\s*[<"]([\w/]*_generated\.h|flatbuffers/)', r"proto/wire/codec", None),
    ("spdlog", r'#\s*include\s*[<"]spdlog/', r"proto/base/log/log\.", None),
    ("highway", r'#\s*include\s*[<"]hwy/', r"proto/reduce/", None),
    ("openssl", r'#\s*include\s*[<"]openssl/', r"proto/auth/|proto/transport/tls/", None),
    ("verbs", r'#\s*include\s*[<"](infiniband|rdma)/', r"proto/transport/rdma/", None),
    ("cuda", r'#\s*include\s*[<"](cuda|cuda_runtime\w*|nccl)\.h', r"client/src/gpu/(driver|nccl)/", r"^client/examples/"),
    ("getenv", r"\b(secure_)?getenv\s*\(|\benviron\b", r"proto/base/config/env[._]", None),
    ("thread", r"\bstd::(jthread|thread|async)\b|\bpthread_create\b|#\s*include\s*<thread>", r"proto/base/",
     r"_test\.cc$|^tests/|^bench/|^client/examples/"),
    ("mutex", r"\bstd::(\w*mutex|condition_variable\w*|scoped_lock|unique_lock|lock_guard|shared_lock|call_once)\b|"
     r"#\s*include\s*<(mutex|shared_mutex|condition_variable)>", r"proto/base/",
     r"_test\.cc$|^tests/|^bench/|^client/examples/"),
]

# Habits that have no place anywhere. (name, pattern, which files, advice)
HABITS = [
    ("unfinished", r"\b(TODO|FIXME|XXX|HACK)\b", r"", "finish it, or open an issue"),
    ("sleep", r"\b(sleep_for|sleep_until|u?sleep|nanosleep|clock_nanosleep)\s*\(|\btime\.sleep\(|"
     r"(^|[;&|]|\bdo\b|\bthen\b)\s*sleep\s+[\d$.]",
     r"", "wait for the event itself, with a deadline"),
    ("volatile", r"(?<!asm )(?<!asm__ )\bvolatile\b", r"\.(h|hpp|cc)$", "use std::atomic, or the loop's post"),
    ("detach", r"\.detach\(\)", r"\.(h|hpp|cc)$", "keep the thread and join it"),
    ("disabled test", r'TEST_CASE\([^)]*\[(\.|!hide|!mayfail|!shouldfail)|\bDISABLED\b', r"(_test\.cc|CMakeLists\.txt)$",
     "mend the test or remove it"),
    ("relative include", r'#\s*include\s*"\.\.?/', r"\.(h|hpp|c|cc)$", "include from the root: \"proto/wire/frame.h\""),
]

INCLUDE = re.compile(r'#\s*include\s*"([^"]+)"')


def without_comments_and_strings(text):
    """Blanks comments, and literals other than include paths; keeps the line structure."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)

    def blank(match):
        found = match.group(0)
        line_start = text.rfind("\n", 0, match.start()) + 1
        if found.startswith('"') and re.match(r"\s*#\s*include\s*$", text[line_start:match.start()]):
            return found
        return re.sub(r"[^\n]", " ", found)

    return pattern.sub(blank, text)


def layer_of(path):
    prefix = max((p for p in LAYERS if path.startswith(p)), key=len, default=None)
    return LAYERS[prefix] if prefix else None


def target_of(include, path):
    """The path from the root that an include means; None for third-party headers."""
    if include.startswith("bps/"):
        return "client/include/" + include
    return include if include.split("/")[0] in FOLDERS else None


def check_file(root, path, report):
    raw = (root / path).read_text(encoding="utf-8", errors="replace")
    suffix = pathlib.PurePath(path).suffix
    lines = raw.count("\n")
    if lines > MAX_LINES and suffix in CODE + (".py", ".sh"):
        report(path, 1, "size", f"{lines} lines, more than {MAX_LINES}: find the second idea in it")
    if suffix in (".h", ".hpp") and "#pragma once" not in raw and not re.search(r"#ifndef \w+_(H|HPP)_", raw):
        if not path.endswith("-inl.h"):
            report(path, 1, "guard", "begin the header with #pragma once")
    text = without_comments_and_strings(raw) if suffix in CODE else raw
    for number, (line, raw_line) in enumerate(zip(text.splitlines(), raw.splitlines()), 1):
        if suffix in CODE:
            check_include(root, path, number, line, report)
            for name, pattern, home, exempt in HOMES:
                if re.search(pattern, line) and not re.match(home, path) and not (exempt and re.search(exempt, path)):
                    report(path, number, name, f"its home is {home}")
        for name, pattern, files, advice in HABITS:
            # Unfinished work hides in comments; everything else is meant as code.
            subject = raw_line if name in ("unfinished", "disabled test") else line
            if re.search(files, path) and suffix != ".md" and re.search(pattern, subject):
                report(path, number, name, advice)


def check_include(root, path, number, line, report):
    match = INCLUDE.search(line)
    if not match:
        return
    target = target_of(match.group(1), path)
    here = layer_of(path)
    if target is None:
        if here == "public":
            report(path, number, "layer", "public headers include nothing but the standard library and bps/")
        return
    if not (root / target).exists():
        report(path, number, "layer", f"{target} does not exist from the root")
    there = layer_of(target)
    if here and there and there not in MAY_INCLUDE[here]:
        report(path, number, "layer", f"{here} must not include {there}")


def check_classes(root, path, known, report):
    """Two classes of one name in one namespace become one when both are linked into a program, and no linker says so."""
    if not path.endswith(".h") or layer_of(path) in ("public", "example"):
        return
    text = without_comments_and_strings((root / path).read_text(encoding="utf-8", errors="replace"))
    namespace = re.search(r"^namespace ([\w:]+) \{", text, re.M)
    for match in re.finditer(r"^(?:class|struct) (\w+)(?: final)?(?:\s*:(?!:)[^;{]*)?\s*\{", text, re.M):
        name = (namespace.group(1) if namespace else "", match.group(1))
        if known.setdefault(name, path) != path:
            report(path, text.count("\n", 0, match.start()) + 1, "class name",
                   f"{name[1]} is a class of {known[name]}, too: name one of them otherwise")


def check_tree(root):
    findings = []
    classes = {}

    def report(path, line, rule, what):
        findings.append((path, line, rule, what))

    count = 0
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root).as_posix()
            if not file.is_file() or "__pycache__" in path or path == "tests/layers/check.py":
                continue
            if file.suffix in TEXT:
                count += 1
                check_file(root, path, report)
                check_classes(root, path, classes, report)
    return findings, count


# path -> (content, rule that must fire, or None)
SAMPLES = {
    "proto/base/clean.h": ("#pragma once\n#include <vector>\n#include \"proto/base/other.h\"\n", None),
    "proto/base/other.h": ("#pragma once\n#include <mutex>\nstd::mutex m;  // std::thread is at home here\n", None),
    "proto/base/up.cc": ('#include "proto/wire/frame.h"\n', "layer"),
    "proto/wire/frame.h": ("#pragma once\n", None),
    "proto/wire/up.cc": ('#include "proto/transport/t.h"\n', "layer"),
    "proto/transport/t.h": ("#pragma once\n", None),
    "proto/auth/a.h": ("#pragma once\n", None),
    "proto/auth/up.cc": ('#include "proto/transport/t.h"\n', "layer"),
    "proto/reduce/r.h": ("#pragma once\n", None),
    "proto/reduce/up.cc": ('#include "proto/wire/frame.h"\n', "layer"),
    "scheduler/sum.cc": ('#include "proto/reduce/r.h"\n', "layer"),
    "client/src/group/sum.cc": ('#include "proto/reduce/r.h"\n', None),
    "proto/transport/down.cc": ('#include "proto/auth/a.h"\n', "layer"),
    "proto/session/s.h": ('#pragma once\n#include "proto/auth/a.h"\n#include "proto/transport/t.h"\n', None),
    "proto/session/up.cc": ('#include "server/s.h"\n', "layer"),
    "proto/transport/up.cc": ('#include "proto/session/s.h"\n', "layer"),
    "scheduler/session.cc": ('#include "proto/session/s.h"\n', "layer"),
    "client/src/session.cc": ('#include "proto/session/s.h"\n', None),
    "proto/daemon/d.h": ('#pragma once\n#include "proto/auth/a.h"\n#include "proto/transport/t.h"\n', None),
    "proto/auth/daemon.cc": ('#include "proto/daemon/d.h"\n', "layer"),
    "scheduler/main.cc": ('#include "proto/daemon/d.h"\n', None),
    "client/src/daemon.cc": ('#include "proto/daemon/d.h"\n', "layer"),
    "server/auth.cc": ('#include "proto/auth/a.h"\n', None),
    "proto/auth/crypto.cc": ("#include <openssl/hmac.h>\n", None),
    "proto/transport/tls/tls.cc": ("#include <openssl/ssl.h>\n", None),
    "proto/transport/tcp/tls.cc": ("#include <openssl/ssl.h>\n", "openssl"),
    "server/crypto.cc": ("#include <openssl/hmac.h>\n", "openssl"),
    "server/s.h": ('#pragma once\n#include "proto/transport/t.h"\n', None),
    "scheduler/s.h": ("#pragma once\n", None),
    "scheduler/x.cc": ('#include "server/s.h"\n', "layer"),
    "server/x.cc": ('#include "scheduler/s.h"\n', "layer"),
    "client/src/x.cc": ('#include "server/s.h"\n', "layer"),
    "client/src/good.cc": ('#include "bps/bps.h"\n#include "proto/wire/frame.h"\n', None),
    "client/include/bps/bps.h": ("#pragma once\n#include <stdint.h>\n", None),
    "client/include/bps/bad.h": ('#pragma once\n#include "proto/base/clean.h"\n', "layer"),
    "client/examples/bad.cc": ('#include "proto/base/clean.h"\n', "layer"),
    "deploy/run.cc": ('#include "server/s.h"\n#include "scheduler/s.h"\n', None),
    "proto/base/gone.cc": ('#include "proto/base/nowhere.h"\n', "layer"),
    "server/asio.cc": ("#include <boost/asio/io_context.hpp>\n", "asio"),
    "proto/transport/stream/asio.cc": ("#include <boost/asio/io_context.hpp>\n", None),
    "server/flat.cc": ('#include "control_generated.h"\n', "flatbuffers"),
    "proto/wire/codec_data.cc": ('#include "control_generated.h"\n', None),
    "server/log.cc": ("#include <spdlog/spdlog.h>\n", "spdlog"),
    "client/src/simd.cc": ("#include <hwy/highway.h>\n", "highway"),
    "proto/reduce/simd.cc": ('#include "hwy/highway.h"\n', None),
    "server/verbs.cc": ("#include <infiniband/verbs.h>\n", "verbs"),
    "client/src/cuda.cc": ("#include <cuda_runtime.h>\n", "cuda"),
    "client/src/gpu/group.cc": ("#include <cuda.h>\n", "cuda"),
    "client/src/gpu/driver/headers.cc": ("#include <cuda.h>\n", None),
    "bench/cuda.cu": ("#include <cuda_runtime.h>\n", "cuda"),
    "client/examples/cuda.cu": ("#include <cuda_runtime.h>\n", None),
    "client/src/env.cc": ('auto* home = std::getenv("HOME");\n', "getenv"),
    "server/thread.cc": ("std::thread worker;\n", "thread"),
    "server/thread_test.cc": ("std::thread worker;\n", None),
    "server/mutex.cc": ("std::lock_guard hold(m);\n", "mutex"),
    "server/this.cc": ("auto id = std::this_thread::get_id();\n", None),
    "server/todo.cc": ("int x;  // TODO: later\n", "unfinished"),
    "deploy/todo.sh": ("# FIXME\n", "unfinished"),
    "tests/sim/sleepy_test.cc": ("std::this_thread::sleep_for(1s);\n", "sleep"),
    "tests/sleepy.sh": ("wait_for x\n  sleep 0.5\n", "sleep"),
    "tests/sleepy_loop.sh": ("while busy; do sleep 0.1; done\n", "sleep"),
    "server/asm.cc": ('asm volatile("" ::: "memory");\n', None),
    "tests/sleepy.py": ("import time\ntime.sleep(1)\n", "sleep"),
    "server/comment.cc": ("// never sleep_for(1) here, nor std::mutex, nor getenv()\nconst char* s = \"std::thread\";\n", None),
    "server/volatile.cc": ("volatile int x;\n", "volatile"),
    "server/detach.cc": ("t.detach();\n", "detach"),
    "server/hidden_test.cc": ('TEST_CASE("x", "[.]") {}\n', "disabled test"),
    "server/relative.cc": ('#include "../proto/base/clean.h"\n', "relative include"),
    "server/long.cc": ("int x;\n" * (MAX_LINES + 1), "size"),
    "server/guard.h": ("int x;\n", "guard"),
    "server/handoff.h": ("#pragma once\nnamespace bps {\nclass Handoff final : public Owner {\n};\n}\n", None),
    "scheduler/handoff.h": ("#pragma once\nnamespace bps {\nstruct Handoff {\n};\n}\n", "class name"),
    "tests/sim/handoff.h": ("#pragma once\nnamespace bps::sim {\nstruct Handoff {\n};\n}\n", None),
}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, (content, _) in SAMPLES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content, encoding="utf-8")
        findings, _ = check_tree(root)
    wrong = []
    for path, (_, expected) in SAMPLES.items():
        rules = {rule for found, _, rule, _ in findings if found == path}
        if rules != ({expected} if expected else set()):
            wrong.append(f"{path}: expected {expected}, found {sorted(rules)}")
    untested = {h[0] for h in HOMES} | {h[0] for h in HABITS} | {"layer", "size", "guard", "class name"}
    untested -= {expected for _, expected in SAMPLES.values()}
    wrong += [f"no sample breaks rule {rule}" for rule in sorted(untested)]
    print("\n".join(wrong) or f"self-test: {len(SAMPLES)} samples judged rightly")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 64
    findings, count = check_tree(pathlib.Path(sys.argv[1]))
    for path, line, rule, what in findings:
        print(f"{path}:{line}: {rule}: {what}")
    print(f"{count} files checked, {len(findings)} findings")
    return 1 if findings or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
