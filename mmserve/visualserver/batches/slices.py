"""Stops a vision tower between its layers, and between pictures that are made for it, while ranks compute on its card
(``pace``)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import nn

from mmserve.model_backend.vision.interface import Tower
from mmserve.visualserver.batches.pace import Pace


class Slices:
    """Of one tower, in the thread that calls it.

    ``step_s``: how long the ranks' steps are now; None: they compute nothing, and the tower stops nowhere. ``wait``:
    until the device has computed what was issued.
    """

    def __init__(
        self,
        tower: Tower,
        pace: Pace,
        step_s: Callable[[], float | None],
        wait: Callable[[], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._pace, self._step_s, self._wait, self._clock, self._sleep = pace, step_s, wait, clock, sleep
        self.num_layers = 0
        """Grows with every layer, also while the tower rests for longer than it computes."""
        self._nbytes = 0
        self._began_s: float | None = None
        """When the layer or the picture began that is being computed, if ranks computed then."""
        self._in_layers = False
        for layer in _layers(tower):
            layer.register_forward_pre_hook(self._before_layer)

    def num_pictures(self, nbytes: Sequence[int]) -> int:
        """How many of the next pictures, with so many bytes of pixels, one call of the tower gets."""
        step_s = self._step_s()
        return len(nbytes) if step_s is None else self._pace.num_pictures(nbytes, step_s)

    @contextmanager
    def call(self, nbytes: int) -> Iterator[None]:
        """One call of the tower for pictures of so many bytes, within the block."""
        self._nbytes, self._in_layers = nbytes, False
        self._began_s = None if self._step_s() is None else self._clock()
        yield
        self._between(partial(self._pace.rest_s, nbytes=nbytes, last=True))

    def made_picture(self) -> None:
        """Within ``call``, behind each picture that the device has to make before the first layer."""
        self._between(self._pace.rest_before_layers_s)

    def _before_layer(self, *_: object) -> None:
        if self._in_layers:
            self._between(partial(self._pace.rest_s, nbytes=self._nbytes))
        else:
            self._in_layers = True
            self._between(self._pace.rest_before_layers_s)

    def _between(self, rest_of: Callable[..., float]) -> None:
        self.num_layers += 1
        step_s = self._step_s()
        if step_s is None:
            self._began_s = None
            return
        self._wait()
        if self._began_s is not None and (rest_s := rest_of(self._clock() - self._began_s, step_s=step_s)):
            self._sleep(rest_s)
        self._began_s = self._clock()


def _layers(tower: Tower) -> list[nn.Module]:
    """Members of lists of modules, of the class that most of them have.

    Mergers of DeepStack are in a list too, but take less time than a layer, so that a layer behind one would not fit.
    """
    members = [each for modules in tower.modules() if isinstance(modules, nn.ModuleList) for each in modules]
    (kind, _), *_ = Counter(map(type, members)).most_common(1) or [(nn.Module, 0)]
    return [each for each in members if type(each) is kind]
