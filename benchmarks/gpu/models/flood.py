"""A vision tower in a process of its own that encodes without an end, beside an engine's steps on the same device.

As a child: ``python -m benchmarks.gpu.models.flood SETTINGS FILE``. For each line of its input, a share, it encodes
until the next line or the end comes, and prints how many pictures those were. FILE: of ``StepTimes``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.checks import Settings
from benchmarks.gpu.rates.device import device_of
from mmserve.runtime.step_times import StepTimes

if TYPE_CHECKING:
    from types import TracebackType

_MODEL, _GRID, _SMALL_GRID, _PICTURES = "Qwen2.5-VL-7B", (1, 34, 46), (1, 4, 6), 8
_READY = "ready"


class Flood:
    """The parent's side. ``with``: the child is there inside the block."""

    def __init__(self, settings: Settings, times: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.models.flood", json.dumps(settings._asdict()), str(times)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Flood:
        if self._line() != _READY:
            raise RuntimeError("the tower could not be made; the log says why")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.terminate()
        self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()

    def begin(self, share: float) -> None:
        """Encode with this --visual-share from now on."""
        self._say(str(share))

    def end(self) -> int:
        """Pictures that were encoded since ``begin``."""
        self._say("")
        return int(self._line())

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n")
        self._child.stdin.flush()

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


def main(settings: Settings, path: Path) -> None:
    """See the module's text."""
    from benchmarks.gpu.models.shapes import SHAPES, SMALL
    from benchmarks.gpu.models.weights import random_tower
    from mmserve.model_backend.platforms.device import platform_for
    from mmserve.model_backend.vision.interface import ViewTensors
    from mmserve.visualserver.batches.pace import Pace
    from mmserve.visualserver.batches.slices import Slices

    shape, device = (SMALL if settings.small else SHAPES)[_MODEL], device_of(settings)
    tower, grid = random_tower(shape, settings), _SMALL_GRID if settings.small else _GRID
    patches = torch.randn(grid[0] * grid[1] * grid[2], shape.tower.patch_nums).to(device)
    pictures = [ViewTensors(patches, torch.tensor([grid], dtype=torch.int32))] * _PICTURES
    transfers, nothing = platform_for(device.type, "float32").transfers(), torch.empty(0, device=device)
    times, shares = StepTimes(path, 1), [1.0]
    nbytes = [patches.numel()] * _PICTURES
    slices = Slices(
        tower,
        Pace(0.3),
        lambda: times.shortest_s((0,)) if shares[0] < 1 else None,
        lambda: transfers.to_host(nothing).wait(),
    )
    tower(pictures)
    lines: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    print(_READY, flush=True)
    while line := lines.get():
        shares[0], encoded = float(line), 0
        while lines.empty():
            count = slices.num_pictures(nbytes)
            with slices.call(count * nbytes[0]):
                tower(pictures[:count])
            transfers.to_host(nothing).wait()
            encoded += count
        lines.get()
        print(encoded, flush=True)


def _read(lines: SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line.strip())
    lines.put(None)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Settings(**given | {"only_families": tuple(given["only_families"])}), Path(sys.argv[2]))
