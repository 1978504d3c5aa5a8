"""The arena made known to the CUDA driver, so that copies from it to a GPU are asynchronous and need no staging."""

from __future__ import annotations

import logging
from contextlib import suppress

import torch

from mmserve.ipc.arena import Arena

_PORTABLE = 1
"""cudaHostRegisterPortable: for every context of this process."""

logger = logging.getLogger(__name__)


def pin(arena: Arena, device: torch.device) -> None:
    """Register the whole arena (cudaHostRegister) for as long as this process lives; once, as it takes a while.

    Where the driver refuses (a limit on locked memory, say), copies to ``device`` still work, through its own staging
    buffer.
    """
    whole = torch.frombuffer(arena.mapping(), dtype=torch.uint8)
    driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = int(driver.cudaHostRegister(whole.data_ptr(), whole.numel(), _PORTABLE))
    if error:
        _forget_last_error(device)
        logger.warning("the arena could not be registered with the GPU's driver (error %d): copies are slower", error)


def _forget_last_error(device: torch.device) -> None:
    """The runtime keeps an error until it is asked for the last one, which torch does after each launch, and raises it.
    Not every torch has a call for that alone, so here is a launch for it to be raised by."""
    with suppress(RuntimeError):
        torch.ones(1, device=device)
