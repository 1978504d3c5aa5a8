from __future__ import annotations

import pytest

from mmserve.router.scheduler.sequence import Sequence
from mmserve.router.scheduler.stopping import finish_reason
from tests.unit.router.builders import request


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
    assert finish_reason(Sequence(message, 0, 0.0, context_tokens)) == finish
