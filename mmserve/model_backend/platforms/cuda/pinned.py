"""Registers the arena with the CUDA driver, so that copies from it to a GPU are asynchronous and need no staging."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from typing import Any

import torch

from mmserve.ipc.arena import Arena

_PORTABLE = 1
"""cudaHostRegisterPortable: for every context of this process."""

logger = logging.getLogger(__name__)


class PinnedArena:
    """The whole arena, registered and mapped for as long as this lives. Registering takes a while: once a process.

    Memory that is unmapped while it is registered leaves its addresses to the driver: a later arena at the same ones
    could not be registered, and copies would read the memory that was there before.

    If the driver refuses, for instance because locked memory is limited, copies to ``device`` still work through the
    driver's own staging buffer.
    """

    def __init__(self, arena: Arena, device: torch.device) -> None:
        whole = torch.frombuffer(arena.mapping(), dtype=torch.uint8)
        driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(driver.cudaHostRegister(whole.data_ptr(), whole.numel(), _PORTABLE))
        if error:
            _clear_last_error(device)
            logger.warning(
                "the arena could not be registered with the GPU's driver (error %d): copies are slower", error
            )
        else:
            # At the end of the process the driver lets go of it by itself.
            weakref.finalize(self, _unregister, driver, whole, device).atexit = False


def _unregister(driver: Any, whole: torch.Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # copies may be under way
    driver.cudaHostUnregister(whole.data_ptr())


def _clear_last_error(device: torch.device) -> None:
    """The runtime keeps an error until it is asked for the last one. Torch asks after each launch, and raises it.

    Some torch versions have no call that only clears it, so a launch is made that raises it here.
    """
    with suppress(RuntimeError):
        torch.ones(1, device=device)
