"""Ranks see on how many cores the vision tower computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.runtime.cpu.core_usage import BusyCores
from mmserve.visualserver.run import _sharing_cores
from tests.fakes.pictures.media import fake_process, model_spec, one_tile, write_preprocessor


def test_the_tower_announces_half_of_the_cores_only_while_it_computes(tmp_path: Path) -> None:
    arena = Arena.create(1 << 14)
    process = fake_process("visualserver", tmp_path, arena, model_spec(write_preprocessor(tmp_path), hidden_size=4))
    # float16 does not use the CPU kernels, so their thread count, which is global in this process, stays unchanged.
    deployment = msgspec.structs.replace(process.deployment, dtype="float16", cpu_threads=8)
    path = process.endpoints.busy_cores("visualserver")
    rank, seen = BusyCores(path, 1), []

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        seen.extend(rank.counts)
        return [pictures[0].pixels]

    shared = _sharing_cores(
        tower, replace(process, deployment=deployment), platform_for("cpu", "float16"), BusyCores(path, 1)
    )
    assert list(rank.counts) == [0]
    shared([PixelTensors.of(one_tile(0))])
    assert (seen, list(rank.counts)) == ([4], [0])
    arena.close()
