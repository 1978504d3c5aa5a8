"""The CUDA driver is asked for GPUs; a driver without one, or one that fails, leads to the CPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmserve.supervisor.startup import cuda_driver, machine
from mmserve.supervisor.startup.cuda_driver import Gpus, ask, ask_in_child


class Driver:
    """Stands for libcuda: the results of its functions, and its GPUs' compute capabilities."""

    def __init__(
        self, *gpus: tuple[int, int], init: int = 0, get_count: int = 0, get: int = 0, get_attribute: int = 0
    ) -> None:
        self._gpus, self._init, self._get_count = gpus, init, get_count
        self._get, self._get_attribute = get, get_attribute

    def cuInit(self, flags: int) -> int:
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = len(self._gpus)
        return self._get_count

    def cuDeviceGet(self, device: Any, index: int) -> int:
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = index + 10
        return self._get

    def cuDeviceGetAttribute(self, number: Any, attribute: int, device: ctypes.c_int) -> int:
        capability = self._gpus[device.value - 10]
        ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = capability[(75, 76).index(attribute)]
        return self._get_attribute


def missing(name: str) -> Driver:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("load", "count", "problem"),
    [
        (lambda name: Driver((9, 0), (7, 5)), 2, ""),
        (lambda name: Driver(), 0, "sees no GPU"),
        (lambda name: Driver(init=100), 0, "sees no GPU"),
        (lambda name: Driver(init=804), 0, "CUDA error 804"),
        (lambda name: Driver((9, 0), get_count=3), 0, "CUDA error 3"),
        (lambda name: Driver((9, 0), get=101), 0, "cannot describe"),
        (lambda name: Driver((9, 0), get_attribute=101), 0, "cannot describe"),
        (missing, 0, "libcuda.so.1: cannot open"),
    ],
)
def test_the_drivers_answer(load: Callable[[str], Driver], count: int, problem: str) -> None:
    found = ask(load)
    assert found.num_gpus == count
    assert problem in found.problem
    assert bool(found.problem) == (count == 0)
    assert found.oldest == ((7, 5) if count else None)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('[2, \"\", [7, 5]]')", Gpus(2, "", (7, 5))),
        ("print('[0, \"the CUDA driver sees no GPU\", null]')", Gpus(0, "the CUDA driver sees no GPU")),
        ("import os; os.abort()", Gpus(0, "the CUDA driver crashes (exit code -6)")),
        ("while True: pass", Gpus(0, "does not answer")),
    ],
)
def test_the_child_that_asks_may_fail(program: str, expected: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([command[0], "-c", program], **options))
    found = ask_in_child(within_s=0.3 if "while" in program else 60)
    assert (found.num_gpus, found.oldest) == (expected.num_gpus, expected.oldest)
    assert expected.problem in found.problem


def test_the_child_runs_and_answers() -> None:
    assert sys.executable
    assert ask_in_child() == ask()


@pytest.mark.parametrize("gpus", [Gpus(1, "", (8, 0)), Gpus(0, "the CUDA driver sees no GPU")])
def test_a_driver_file_alone_is_no_gpu(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_DRIVER_FILES", (str(tmp_path),))
    monkeypatch.setattr(machine, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(cuda_driver, "ask_in_child", lambda: gpus)
    found = machine.look()
    assert (found.has_cuda, found.cuda_problem) == (gpus.num_gpus > 0, gpus.problem)
    assert found.oldest_gpu == gpus.oldest
    assert gpus.problem in caplog.text
    assert bool(caplog.text) == bool(gpus.problem)


def test_a_gpu_without_bfloat16_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_DRIVER_FILES", (str(tmp_path),))
    monkeypatch.setattr(machine, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(cuda_driver, "ask_in_child", lambda: Gpus(1, "", (7, 5)))
    found = machine.look()
    assert (found.has_cuda, found.oldest_gpu) == (True, (7, 5))
    assert "compute capability 7.5, and bfloat16 begins with 8.0, so --dtype auto is float16" in caplog.text
