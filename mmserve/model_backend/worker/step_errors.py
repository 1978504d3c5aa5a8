"""Errors of a step: turned into values, and agreed on by all ranks.

Ranks that leave a step at different places wait for each other in different collectives, for ever. So an error that one
rank alone may have is told to the others at a point that all of them reach, and all take the worst one for their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import is_fatal_device_error, is_out_of_memory
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker.step_splitting import StepError

P = ParamSpec("P")
T = TypeVar("T")
_NONE, _FAILED, _OUT_OF_MEMORY = 0, 1, 2
"""Worst last."""
_ERROR_TOKEN = -100
"""In place of tokens: _ERROR_TOKEN - severity. Below all keys of ``sampler.FAILURES``."""

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
        if self._tp.size == 1:
            return errors
        severities = torch.tensor([_severity(error) for error in errors], device=self._platform.device)
        worst = self._tp.max(severities).tolist()
        return [_agreed(error, severity) for error, severity in zip(errors, worst, strict=True)]

    def tokens_for(self, error: StepError | None, count: int) -> torch.Tensor:
        """What rank 0 broadcasts instead of ``count`` tokens that it could not sample, at least one."""
        return torch.full((count,), _ERROR_TOKEN - _severity(error), device=self._platform.device)

    def in_tokens(self, error: StepError | None, tokens: torch.Tensor) -> StepError | None:
        """The error of rank 0, whose own is ``error``, found in the broadcast tokens. Waits for them."""
        if self._tp.size == 1:
            return error
        return _agreed(error, max(_NONE, _ERROR_TOKEN - int(tokens[0])))


def _severity(error: StepError | None) -> int:
    if error is None:
        return _NONE
    return _OUT_OF_MEMORY if error.out_of_memory else _FAILED


def _agreed(own: StepError | None, severity: int) -> StepError | None:
    if severity == _severity(own):
        return own
    return StepError("internal error on another rank, whose log says more", severity == _OUT_OF_MEMORY)
