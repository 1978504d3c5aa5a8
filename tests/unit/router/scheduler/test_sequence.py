from __future__ import annotations

import msgspec
import pytest

from mmserve.router.kv_cache.manager import BlockTable, Match
from mmserve.router.scheduler.sequence import Phase, Sequence
from tests.unit.router.builders import request


def test_a_sequence_runs_waits_and_ends() -> None:
    sequence = Sequence(request("a", [1, 2, 3], output=[4]), 0, 0.0, 100)
    assert (sequence.num_prompt_tokens, sequence.num_output_tokens, sequence.num_remaining) == (3, 1, 4)
    sequence.run(5, BlockTable([0], [], Match([])), 2)
    assert (sequence.phase, sequence.slot, sequence.num_remaining) == (Phase.RUNNING, 5, 2)
    assert [sequence.plan(1), sequence.plan(1)] == [False, True]
    assert (sequence.length, sequence.num_remaining) == (5, 1)
    sequence.wait()
    sequence.leave()
    assert (sequence.phase, sequence.holding, sequence.num_remaining) == (Phase.WAITING, None, 4)
    sequence.end()
    with pytest.raises(AssertionError):
        sequence.end()


@pytest.mark.parametrize("prompt_ids", [b"", b"\0" * 9])
def test_a_prompt_that_is_none_is_refused(prompt_ids: bytes) -> None:
    message = msgspec.structs.replace(request("a", [1]), prompt_ids=prompt_ids)
    with pytest.raises(ValueError, match=r"prompt|bytes"):
        Sequence(message, 0, 0.0, 100)
