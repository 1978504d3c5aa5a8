from __future__ import annotations

import pytest

from mmserve.cluster.on_ray.gpus import gpus_of_each
from mmserve.runtime.errors import StartupError


def test_servers_have_a_gpu_for_each_rank_where_there_are_gpus() -> None:
    assert gpus_of_each("auto", 2, 4, 8.0) == 2
    assert gpus_of_each("cuda", 1, 4, 4.0) == 1
    assert gpus_of_each("auto", 2, 4, 0.0) == 0
    assert gpus_of_each("cpu", 2, 4, 1.0) == 0


@pytest.mark.parametrize(("device", "there"), [("auto", 7.0), ("cuda", 0.0)])
def test_more_than_there_are_end_the_start_in_place_of_a_wait_without_end(device: str, there: float) -> None:
    with pytest.raises(StartupError, match="need 8 GPUs"):
        gpus_of_each(device, 2, 4, there)  # type: ignore[arg-type]
