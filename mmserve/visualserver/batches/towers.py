"""The way of decoded pictures to a vision tower: their bytes go to its device, and become numbers there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from mmserve.config.resolved.gpu_memory import ranks_on
from mmserve.config.resolved.process import Process
from mmserve.ipc.arena import Arena
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.pictures.resize import PictureResize
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.vision.interface import PixelTensors, Tower
from mmserve.model_backend.vision.pixels import PixelInputs
from mmserve.processors.interface import PixelForm
from mmserve.runtime.step_times import StepTimes
from mmserve.visualserver.batches.encode import ComputeRows, EncoderDevice
from mmserve.visualserver.batches.pace import Pace
from mmserve.visualserver.batches.slices import Slices


def computing_rows(
    tower: Tower,
    form: PixelForm | None,
    platform: Platform,
    slices: Slices | None = None,
    resize: PictureResize | None = None,
) -> ComputeRows:
    """``form``: of the family's image processor. ``slices``: of a tower that shares its card with ranks. ``resize``:
    where the platform makes the views of whole pictures."""
    dtype = platform.layer_context(TpGroup()).dtype
    made_picture = (lambda: None) if slices is None else slices.made_picture
    inputs = PixelInputs(form, platform.transfers(), dtype, resize, made_picture)

    def compute(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        return tower(inputs(pictures))

    def compute_in_slices(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        assert slices is not None
        with slices.call(sum(picture.nbytes for picture in pictures)):
            return compute(pictures)

    return compute if slices is None else compute_in_slices


def slices_of(tower: Tower, process: Process, platform: Platform) -> Slices | None:
    """None: no rank is on the tower's card, or the user wants no bound."""
    config, card = process.deployment.config, platform.device.index
    if card is None or config.visual_share >= 1:
        return None
    if not (ranks := ranks_on(card, config.tp, platform.num_devices)):
        return None
    transfers, times = platform.transfers(), StepTimes(process.endpoints.step_times(), config.tp)
    nothing = torch.empty(0, device=platform.device)
    wait: Callable[[], object] = lambda: transfers.to_host(nothing).wait()  # noqa: E731
    return Slices(tower, Pace(config.visual_share), partial(times.shortest_s, ranks), wait)


def encoder_device(
    platform: Platform, arena: Arena | None, slices: Slices | None, *, takes_whole: bool = False
) -> EncoderDevice:
    """Once a process: it prepares the arena for copies."""
    copies, release = platform.row_copies(arena), platform.release_cached_memory
    device = EncoderDevice(platform.use_in_thread, platform.transfers(), copies, release, takes_whole=takes_whole)
    if slices is None:
        return device
    return device._replace(num_pictures=slices.num_pictures, progress=lambda: slices.num_layers)
