"""The garbage collector's settings of a process that is ready."""

import gc

from mmserve.runtime.memory.allocator import freeze_gc


def test_freeze_gc_excludes_existing_objects_from_later_collections() -> None:
    kept = [[number] for number in range(100)]
    try:
        freeze_gc()
        assert all(one is not kept for one in gc.get_objects())
        assert gc.get_freeze_count() > len(kept)
    finally:
        gc.unfreeze()
