"""Checks of the machine and of the container's limits. They read files and try system calls."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import time
from pathlib import Path

import psutil

from mmserve.cli.doctor.finding import Check, Finding, failure, ok, warning
from mmserve.runtime.memory import cgroup
from mmserve.supervisor.startup import machine

_GIB = 1 << 30
_LEAST_FREE_NBYTES, _TOO_LITTLE_NBYTES = 3 * _GIB // 2, _GIB
"""The packaged model with caches of half a GiB, and with the smallest that are suggested here."""
_LEAST_DESCRIPTORS = 4096
_LEAST_PROCESSES = 512
"""Of this user: processes and threads. A server on two cores has about 60."""
_LEAST_DISK_NBYTES = 20 * _GIB
"""A model of 8 billion parameters in bfloat16."""
_GOOD_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen"})
_INSTRUCTION_SETS = (
    ("amx_bf16", "AMX-BF16"),
    ("avx512_bf16", "AVX512-BF16"),
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
    ("asimd", "NEON"),
    ("bf16", "BF16"),
    ("i8mm", "I8MM"),
)
"""Flags of ``/proc/cpuinfo``, and how people call them."""
_SAMPLES = 20_000
_TRANSPARENT_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_RESERVED_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")


def checks(port: int) -> list[Check]:
    """All of them. ``port``: of the server that will be started."""
    return [
        Check("cpu", _cpu),
        Check("memory", _memory),
        Check("shared memory", _shared_memory),
        Check("huge pages", _huge_pages),
        Check("descriptors", _descriptors),
        Check("processes", _processes),
        Check("system calls", _system_calls),
        Check("clock", _clock),
        Check("port", lambda: _port(port)),
        Check("disk", _disk),
    ]


def _cpu() -> Finding:
    info = Path("/proc/cpuinfo").read_text()
    name = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "CPU")
    flags = set(next((line for line in info.splitlines() if line.startswith(("flags", "Features"))), "").split())
    sets = [words for flag, words in _INSTRUCTION_SETS if flag in flags]
    cores, all_cores = machine.num_cores(), os.cpu_count() or 1
    found = f"{name}, {cores} of {all_cores} cores may be used, {', '.join(sets) or 'no vector instructions known'}"
    if not sets:
        return warning(found, "the C++ kernels are made for x86-64 with AVX2 and for ARM: expect a slow server")
    if cores == 1:
        return warning(found, "give the container two cores or more: pictures and text share one now")
    return ok(found)


def _memory() -> Finding:
    free, limited_by = machine.free_memory()
    found = f"{free / _GIB:.1f} GiB free, limited by {limited_by}"
    if groups := cgroup.memory_groups():
        found += f" ({min(group.limit_nbytes for group in groups) / _GIB:.1f} GiB)"
    if free < _LEAST_FREE_NBYTES:
        do = "give it 2 GiB or more, or start with --kv-cache-gb 0.25 --mm-cache-gb 0.1"
        return failure(found, do) if free < _TOO_LITTLE_NBYTES else warning(found, do)
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        return warning(f"{found}; overcommit is off", "sysctl vm.overcommit_memory=0: caches are mapped before use")
    if psutil.swap_memory().used > free:
        return warning(f"{found}; much is swapped out", "end what uses the memory: a swapped server is slow")
    return ok(found)


def _shared_memory() -> Finding:
    try:
        fd = os.memfd_create("mmserve-doctor", os.MFD_CLOEXEC)
    except OSError as error:
        return failure(f"memfd_create: {error.strerror}", "allow this system call in the container's seccomp profile")
    try:
        os.ftruncate(fd, 1 << 20)
        os.posix_fallocate(fd, 0, 1 << 20)
    except OSError as error:
        return failure(f"no page of shared memory: {error.strerror}", "give the container more memory")
    finally:
        os.close(fd)
    shm = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    return ok(f"memfd works; /dev/shm has {shm >> 20} MiB, of which the arena needs none")


def _huge_pages() -> Finding:
    free = _reserved_pages()
    reserved = f"; reserved for --arena-huge-pages: {f'{free} of 2 MiB are free' if free else 'none is free'}"
    if not _TRANSPARENT_PAGES.exists():
        return ok(f"the kernel has no transparent huge pages{reserved}")
    mode = _TRANSPARENT_PAGES.read_text().partition("[")[2].partition("]")[0]
    found = f"transparent huge pages: {mode}{reserved}"
    if mode == "never":
        return warning(found, f"echo madvise > {_TRANSPARENT_PAGES}: large weights are read faster")
    return ok(found)


def _reserved_pages() -> int:
    try:
        return int((_RESERVED_PAGES / "free_hugepages").read_text())
    except (OSError, ValueError):  # a kernel without them
        return 0


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = float("inf") if hard == resource.RLIM_INFINITY else hard
    found = f"{soft} files may be open; the server raises this to {'65536' if limit >= 65536 else hard}"
    return ok(found) if limit >= _LEAST_DESCRIPTORS else warning(found, "ulimit -Hn 65536, or --ulimit nofile=65536")


def _processes() -> Finding:
    limits = {"ulimit -u": resource.getrlimit(resource.RLIMIT_NPROC)[0]}
    for path in {directory / "pids.max" for directory in (*cgroup.directories(), cgroup.ROOT / "pids")}:
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits[str(path)] = int(text)
    limited = {name: limit for name, limit in limits.items() if 0 <= limit < _LEAST_PROCESSES}
    if limited:
        where, limit = min(limited.items(), key=lambda item: item[1])
        return failure(f"{where} allows {limit} processes and threads", f"allow {_LEAST_PROCESSES} or more")
    least = min((limit for limit in limits.values() if limit >= 0), default=None)
    return ok("no limit" if least is None else f"{least} processes and threads")


def _system_calls() -> Finding:
    missing = []
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        missing.append(f"pidfd_open ({error.strerror})")
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError as error:
        missing.append(f"sched_setaffinity ({error.strerror})")
    if ctypes.CDLL(None, use_errno=True).prctl(3, 0, 0, 0, 0) < 0:  # PR_GET_DUMPABLE, which changes nothing
        missing.append(f"prctl ({os.strerror(ctypes.get_errno())})")
    if missing:
        return failure(f"refused: {', '.join(missing)}", "allow them in the container's seccomp profile")
    return ok("pidfd_open, sched_setaffinity and prctl are allowed")


def _clock() -> Finding:
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    source = path.read_text().strip() if path.exists() else "unknown"
    started_s = time.perf_counter()
    for _ in range(_SAMPLES):
        time.monotonic()
    nanoseconds = (time.perf_counter() - started_s) / _SAMPLES * 1e9
    found = f"source {source}, {nanoseconds:.0f} ns a call"
    if time.time() < time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, 0)):
        return failure(f"{found}; the date is {time.ctime()}", "set the date: TLS of picture URLs fails with this one")
    if source not in _GOOD_CLOCKS and nanoseconds > 1000:
        return warning(found, "a clock that is read by a system call slows each token; tsc is the usual one")
    return ok(found)


def _port(port: int) -> Finding:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            return warning(f"port {port}: {error.strerror}", "start with --port and another one, or 0 for a free one")
    return ok(f"port {port} is free")


def _disk() -> Finding:
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / _GIB:.0f} GiB free for models in {cache}"
    if not os.access(existing, os.W_OK):
        return warning(f"{found}, which is not writable", "set HF_HOME to a directory that is")
    if free < _LEAST_DISK_NBYTES:
        return warning(found, "enough for small models; a model of 8 billion parameters takes 16 GiB: set HF_HOME")
    return ok(found)
