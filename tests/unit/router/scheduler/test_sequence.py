from __future__ import annotations

import msgspec
import pytest

from mmserve.router.kv_cache.manager import BlockTable, PrefixMatch
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus
from tests.unit.router.builders import request


def test_a_sequence_runs_waits_and_ends() -> None:
    sequence = Sequence(request("a", [1, 2, 3], output=[4]), 0, 0.0, 100)
    assert (sequence.num_prompt_tokens, sequence.num_output_tokens, sequence.num_remaining_tokens) == (3, 1, 4)
    sequence.start(5, BlockTable([0], [], PrefixMatch([], num_tokens=2)))
    assert (sequence.status, sequence.slot, sequence.num_remaining_tokens) == (SequenceStatus.RUNNING, 5, 2)
    assert sequence.num_cached_tokens == 2
    assert [sequence.plan_chunk(1), sequence.plan_chunk(1)] == [False, True]
    assert (sequence.length, sequence.num_remaining_tokens) == (5, 1)
    sequence.requeue()
    sequence.reset()
    assert (sequence.status, sequence.block_table, sequence.num_remaining_tokens) == (SequenceStatus.WAITING, None, 4)
    sequence.finish()
    with pytest.raises(AssertionError):
        sequence.finish()


@pytest.mark.parametrize("prompt_ids", [b"", b"\0" * 9])
def test_an_empty_or_cut_off_prompt_is_refused(prompt_ids: bytes) -> None:
    message = msgspec.structs.replace(request("a", [1]), prompt_ids=prompt_ids)
    with pytest.raises(ValueError, match=r"prompt|bytes"):
        Sequence(message, 0, 0.0, 100)


@pytest.mark.parametrize(
    ("output", "max_tokens", "min_tokens", "context_tokens", "finish"),
    [
        ([7], 5, 0, 100, None),
        ([7, 3], 5, 0, 100, "stop"),
        ([7, 3], 5, 2, 100, "stop"),
        ([7, 3], 5, 3, 100, None),
        ([7, 8], 2, 0, 100, "length"),
        ([7, 3], 2, 0, 100, "stop"),
        ([7, 8], 5, 0, 5, "length"),
        ([7, 8], 5, 0, 6, None),
        ([3, 7], 5, 0, 100, None),
    ],
)
def test_finish_reason(
    output: list[int], max_tokens: int, min_tokens: int, context_tokens: int, finish: str | None
) -> None:
    message = request("a", [1, 3, 3], max_tokens=max_tokens, min_tokens=min_tokens, output=output, stop_ids=(3,))
    assert Sequence(message, 0, 0.0, context_tokens).finish_reason() == finish


@pytest.mark.parametrize("num_stop_ids", [1, 60], ids=["few", "many"])
def test_the_model_and_the_client_each_have_stop_tokens(num_stop_ids: int) -> None:
    stop_ids = tuple(range(100, 100 + num_stop_ids))
    message = request("a", [1], min_tokens=2, stop_ids=stop_ids)
    message = msgspec.structs.replace(message, sampling=msgspec.structs.replace(message.sampling, eos_token_ids=(3,)))
    for last in (3, stop_ids[-1]):
        sequence = Sequence(message, 0, 0.0, 100)
        assert sequence.append(1, (last,)) is None, "before min_tokens"
        assert sequence.append(2, (7,)) is None
        assert sequence.append(3, (last,)) == "stop"
