"""Registers the arena with the CUDA driver, so that copies from it to a GPU are asynchronous and need no staging."""

from __future__ import annotations

import logging
from contextlib import suppress

import torch

from mmserve.ipc.arena import Arena

_PORTABLE = 1
"""cudaHostRegisterPortable: for every context of this process."""

logger = logging.getLogger(__name__)


def pin(arena: Arena, device: torch.device) -> None:
    """Register the whole arena (cudaHostRegister) for the life of this process. It takes a while: call it once.

    If the driver refuses, for instance because locked memory is limited, copies to ``device`` still work through the
    driver's own staging buffer.
    """
    whole = torch.frombuffer(arena.mapping(), dtype=torch.uint8)
    driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = int(driver.cudaHostRegister(whole.data_ptr(), whole.numel(), _PORTABLE))
    if error:
        _clear_last_error(device)
        logger.warning("the arena could not be registered with the GPU's driver (error %d): copies are slower", error)


def _clear_last_error(device: torch.device) -> None:
    """The runtime keeps an error until it is asked for the last one. Torch asks after each launch, and raises it.

    Some torch versions have no call that only clears it, so a launch is made that raises it here.
    """
    with suppress(RuntimeError):
        torch.ones(1, device=device)
