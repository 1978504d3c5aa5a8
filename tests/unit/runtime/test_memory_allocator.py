"""What a process tells the collector when it is ready."""

import gc

from mmserve.runtime.memory_allocator import freeze_gc


def test_what_lives_when_a_process_settles_is_not_looked_through_again() -> None:
    kept = [[number] for number in range(100)]
    try:
        freeze_gc()
        assert all(one is not kept for one in gc.get_objects())
        assert gc.get_freeze_count() > len(kept)
    finally:
        gc.unfreeze()
