"""Settings of the allocator and of the garbage collector of a process that is ready."""

import gc
import subprocess
import sys

from mmserve.runtime.memory.allocator import freeze_gc, importing


def test_freeze_gc_excludes_existing_objects_from_later_collections() -> None:
    kept = [[number] for number in range(100)]
    try:
        freeze_gc()
        assert all(one is not kept for one in gc.get_objects())
        assert gc.get_freeze_count() > len(kept)
    finally:
        gc.unfreeze()


def test_nothing_is_collected_during_imports_and_what_they_make_is_passed_over_later() -> None:
    try:
        with importing():
            assert not gc.isenabled()
            kept = [[number] for number in range(100)]
        assert gc.isenabled()
        assert all(one is not kept for one in gc.get_objects())
    finally:
        gc.unfreeze()


def test_freed_memory_of_the_heap_can_be_returned() -> None:
    program = """
from pathlib import Path
from mmserve.runtime.memory.allocator import keep_freed_memory, return_heap
def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
keep_freed_memory()
blocks = [bytes([1]) * (4 << 20) for _ in range(16)]
del blocks
before = resident()
return_heap()
print((before - resident()) * 4096 >> 20)
"""
    returned = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(returned.stdout) >= 56
