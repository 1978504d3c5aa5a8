"""Orphans become children of a process that adopts them, and are reaped there; other children are not touched."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, select, subprocess, sys
from mmserve.supervisor.watching.orphans import adopt_orphans, reap_orphans

adopt_orphans()
known = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
apart = subprocess.Popen([sys.executable, "-c", "raise SystemExit(8)"], start_new_session=True)
read_fd, write_fd = os.pipe()
if os.fork() == 0:
    if (orphan := os.fork()) > 0:
        os.write(write_fd, orphan.to_bytes(4, "little"))
    os._exit(0)
orphan = int.from_bytes(os.read(read_fd, 4), "little")
for pid in (orphan, known.pid, apart.pid):
    select.select([os.pidfd_open(pid)], [], [])
reap_orphans([known.pid])
statuses = known.wait(), apart.wait()
reap_orphans([])
try:
    os.kill(orphan, 0)
except ProcessLookupError:
    print("reaped", *statuses)
"""


def test_orphans_are_reaped_and_other_children_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["reaped", "7", "8"]
