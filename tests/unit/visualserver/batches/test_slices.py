"""A tower stops between its layers while ranks compute, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mmserve.runtime.step_times import StepTimes
from mmserve.visualserver.batches.pace import Pace
from mmserve.visualserver.batches.slices import Slices


class Tower(nn.Module):
    """Three layers, each of which takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(3))
        self.seconds = seconds
        self.events: list[str] = []
        self.now_s = self.busy_until_s = 0.0

    def forward(self) -> None:
        for layer in self.layers:
            layer(torch.zeros(1))
            self.launch("layer")

    def launch(self, what: str) -> None:
        self.events.append(what)
        self.busy_until_s = max(self.now_s, self.busy_until_s) + self.seconds

    def wait(self) -> None:
        self.events.append("wait")
        self.now_s = max(self.now_s, self.busy_until_s)

    def sleep(self, seconds: float) -> None:
        self.events.append(f"rest {1e3 * seconds:.0f} ms")
        self.now_s += seconds

    def targets(self) -> dict[str, None]:
        return {}


def slices(tower: Tower, step_s: float | None) -> Slices:
    return Slices(tower, Pace(1 / 3), lambda: step_s, tower.wait, clock=lambda: tower.now_s, sleep=tower.sleep)


def run(tower: Tower, step_s: float | None) -> list[str]:
    tower.events.clear()
    with slices(tower, step_s).call(100):
        tower()
    return tower.events


def test_without_steps_nothing_is_waited_for() -> None:
    assert run(Tower(0.001), None) == ["layer"] * 3


def test_a_slice_is_as_many_layers_as_fit_it() -> None:
    rest = ["wait", "rest 9 ms"]
    assert run(Tower(0.001), 0.008) == ["wait", "layer", "wait", "layer", *rest, "layer", *rest]


def test_a_layer_longer_than_a_slice_has_a_longer_rest() -> None:
    assert run(Tower(0.004), 0.004) == ["wait", *["layer", "wait", "rest 12 ms"] * 3]


@pytest.mark.parametrize(("step_s", "rest"), [(0.008, ["rest 9 ms"]), (0.1, [])])
def test_pictures_that_the_card_makes_are_in_slices_too(step_s: float, rest: list[str]) -> None:
    tower = Tower(0.001)
    limited = slices(tower, step_s)
    with limited.call(100):
        for _ in range(2):
            tower.launch("picture")
            limited.made_picture()
        tower.events.append("layers")
        tower()
    assert tower.events[: tower.events.index("layers")] == ["picture", "wait", "picture", "wait", *rest]
    assert limited.num_layers == 2 + 3 + 1


def test_pictures_that_the_card_makes_do_not_change_what_a_layer_is_thought_to_take() -> None:
    tower = Tower(0.001)
    limited = slices(tower, 0.008)
    for pictures in (0, 5):
        with limited.call(100):
            for _ in range(pictures):
                tower.launch("picture")
                limited.made_picture()
            tower()
        assert limited.num_pictures([60] * 9) == 3, "a layer takes 10 us a byte"


class WithMergers(Tower):
    """A short merger behind the first layer, as in Qwen3-VL."""

    def __init__(self) -> None:
        super().__init__(0.002)
        self.deepstack_mergers = nn.ModuleList([nn.Flatten()])

    def forward(self) -> None:
        super().forward()
        self.deepstack_mergers[0](torch.zeros(1, 1))


def test_mergers_are_no_layers() -> None:
    tower = WithMergers()
    made = slices(tower, None)
    with made.call(100):
        tower()
    assert made.num_layers == 3 + 1, "of the last layer its end too"


def test_what_was_launched_before_steps_began_counts_for_no_layer() -> None:
    tower, steps = Tower(0.001), [None, None, None, 0.004, 0.004]
    limited = Slices(tower, Pace(1 / 3), lambda: steps.pop(0), tower.wait, clock=lambda: tower.now_s, sleep=tower.sleep)
    with limited.call(100):
        tower()
    assert tower.events == ["layer", "layer", "wait", "layer", "wait", "rest 4 ms"]


def test_a_call_has_all_pictures_unless_steps_are_computed() -> None:
    tower = Tower(0.001)
    assert slices(tower, None).num_pictures([5, 5, 5]) == 3
    assert slices(tower, 0.008).num_pictures([5, 5, 5]) == 1


def test_ranks_tell_how_long_their_steps_are_while_they_compute(tmp_path: Path) -> None:
    times, seen = StepTimes(tmp_path / "times", 3), StepTimes(tmp_path / "times", 3)
    assert seen.shortest_s((0, 1, 2)) is None
    times.write(0, 1, 0.0)
    assert seen.shortest_s((0,)) == 1e-6, "a step is computed, and none was measured"
    times.write(0, 2, 0.006)
    times.write(2, 1, 0.005)
    assert seen.shortest_s((0, 1)) == 0.006
    assert seen.shortest_s((0, 1, 2)) == 0.005
    assert seen.shortest_s((1,)) is None
    times.write(0, 0, 0.006)
    assert seen.shortest_s((0, 1)) is None
