"""Errors of a step: turned into values, and agreed on by all ranks.

Ranks that leave a step at different places wait for each other in different collectives, for ever. So an error that one
rank alone may have is told to the others at a point that all of them reach, and all take the worst one for their own.
The hosts tell it to each other, so no rank waits for what its device still computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import is_fatal_device_error, is_out_of_memory
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker.step_splitting import StepError

P = ParamSpec("P")
T = TypeVar("T")
_NONE, _FAILED, _OUT_OF_MEMORY = 0, 1, 2
"""Worst last."""

logger = logging.getLogger(__name__)


class StepErrors:
    """The errors of this rank's steps."""

    def __init__(self, tp: TpGroup, platform: Platform) -> None:
        self._tp, self._platform = tp, platform

    def catch(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, StepError | None]:
        """(what the function returns, None), or (None, its error). Raises errors after which the device is lost.

        The function's tensors are freed before memory that the allocator keeps is returned to the device.
        """
        try:
            return function(*args, **kwargs), None
        except Exception as exception:  # the boundary of a part of a step
            if is_fatal_device_error(exception):
                raise
            logger.exception("a part of a step failed")
            error = StepError(f"internal error: {exception}", is_out_of_memory(exception))
        if error.out_of_memory:
            self._platform.release_cached_memory()
        return None, error

    def agree(self, errors: list[StepError | None]) -> list[StepError | None]:
        """For each place the worst error of all ranks. A collective, which every rank calls with as many places."""
        worst = self._tp.worst([_severity(error) for error in errors])
        return [_agreed(error, severity) for error, severity in zip(errors, worst, strict=True)]

    def of_rank_0(self, error: StepError | None, done: bool = False) -> tuple[StepError | None, bool]:
        """On every rank the error of rank 0, whose own is ``error``, and rank 0's ``done``. Rank 0 waits for nobody."""
        severity, was_done = divmod(self._tp.told(2 * _severity(error) + done), 2)
        return _agreed(error, severity), bool(was_done)


def _severity(error: StepError | None) -> int:
    if error is None:
        return _NONE
    return _OUT_OF_MEMORY if error.out_of_memory else _FAILED


def _agreed(own: StepError | None, severity: int) -> StepError | None:
    if severity == _severity(own):
        return own
    return StepError("internal error on another rank, whose log says more", severity == _OUT_OF_MEMORY)
