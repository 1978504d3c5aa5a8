"""The whole server while /dev/shm and the disk of its run directory are full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from tests.e2e.stack import ask, run_dirs_of, running
from tests.fakes.cache import until
from training.sample import samples

pytestmark = pytest.mark.faults
TEXT = [{"role": "user", "content": "What can you do?"}]
PICTURES = [sample.messages for sample in islice(samples(3, 880_401, kinds=("colour",)), 3)]
IN_SMALL_DISKS = """
mkdir -p "$XDG_RUNTIME_DIR"
mount -t tmpfs -o size=8m tmpfs "$XDG_RUNTIME_DIR"
mount -t tmpfs -o size=64k tmpfs /dev/shm
head -c 65536 /dev/zero > /dev/shm/full
exec "$@"
"""


def _may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_mount(), reason="mounting is not permitted here")
def test_full_disks_keep_it_neither_from_starting_nor_from_replacing_dead_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = f"/tmp/mmserve-test-{os.getpid()}"  # a short path: sockets are in it
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    wrapper = ["unshare", "--mount", "sh", "-ec", IN_SMALL_DISKS, "sh"]
    try:
        with running(wrapper=wrapper) as stack, stack.client() as client:
            before = [ask(client, messages) for messages in (TEXT, *PICTURES)]
            (run_dir,) = run_dirs_of(stack.processes())
            full = Path(f"/proc/{stack.pid}/root{run_dir.parent}/full")
            with contextlib.suppress(OSError), full.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 20)):
                    pass
            titles = stack.titles()
            for title in ("router", "visualserver 0", "cache_server", "httpserver 0", "metrics", "health"):
                (process,) = stack.processes(f"mmserve: {title}")
                process.kill()
                process.wait()
                until(lambda: stack.answers and stack.titles() == titles, timeout_s=60)
            assert [ask(client, messages) for messages in (TEXT, *PICTURES)] == before
    finally:
        with contextlib.suppress(OSError):
            Path(runtime).rmdir()
