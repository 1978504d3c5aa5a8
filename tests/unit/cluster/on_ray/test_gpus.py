from __future__ import annotations

import pytest

from mmserve.cluster.on_ray.gpus import gpus_of_each
from mmserve.runtime.errors import StartupError


def test_servers_have_a_gpu_for_each_rank_where_there_are_gpus() -> None:
    assert gpus_of_each("auto", 2, 4, [8.0]) == 2
    assert gpus_of_each("auto", 2, 4, [3.0, 5.0, 0.0, 2.0]) == 2
    assert gpus_of_each("cuda", 1, 4, [1.0, 3.0]) == 1
    assert gpus_of_each("auto", 2, 4, [0.0, 0.0]) == 0
    assert gpus_of_each("cpu", 2, 4, [1.0]) == 0


@pytest.mark.parametrize(
    ("device", "machines", "there"),
    [("auto", [7.0], "7"), ("auto", [3.0, 5.0, 0.0], r"3 \+ 5"), ("cuda", [0.0], "none"), ("cuda", [], "none")],
)
def test_more_than_there_are_end_the_start_in_place_of_a_wait_without_end(
    device: str, machines: list[float], there: str
) -> None:
    with pytest.raises(StartupError, match=f"need 8 GPUs.*Ray knows of {there};"):
        gpus_of_each(device, 2, 4, machines)  # type: ignore[arg-type]
