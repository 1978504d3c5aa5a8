"""A fault that is armed strikes once, in the next unit of work; without the option there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.ipc import faults
from mmserve.ipc.arena import Arena
from mmserve.ipc.faults import NO_FAULTS, FaultPoint, InjectedError, InjectedFault, arm, disarm, is_armed
from tests.fakes.pictures.media import fake_process, model_spec, write_preprocessor


@pytest.mark.parametrize(("kind", "error"), [("error", InjectedError), ("memory", MemoryError)])
def test_an_armed_fault_strikes_once(kind: InjectedFault, error: type[BaseException], tmp_path: Path) -> None:
    point = FaultPoint(tmp_path / "fault")
    point.pass_through()
    arm(tmp_path / "fault", kind)
    assert is_armed(tmp_path / "fault")
    with pytest.raises(error):
        point.pass_through()
    assert not is_armed(tmp_path / "fault")
    point.pass_through()


def test_a_slow_unit_begins_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(faults.time, "sleep", slept.append)
    point = FaultPoint(tmp_path / "fault")
    arm(tmp_path / "fault", "slow")
    point.pass_through()
    point.pass_through()
    assert slept == [faults.SLOW_S]


def test_a_fault_that_was_taken_back_or_meant_for_the_predecessor_does_not_strike(tmp_path: Path) -> None:
    point = FaultPoint(tmp_path / "fault")
    arm(tmp_path / "fault", "error")
    disarm(tmp_path / "fault")
    point.pass_through()
    arm(tmp_path / "fault", "error")
    FaultPoint(tmp_path / "fault").pass_through()


def test_other_bytes_do_nothing(tmp_path: Path) -> None:
    point = FaultPoint(tmp_path / "fault")
    (tmp_path / "fault").write_bytes(b"\xff")
    point.pass_through()


def test_a_process_takes_faults_only_with_the_option(tmp_path: Path) -> None:
    arena = Arena.create(1 << 14)
    try:
        spec = model_spec(write_preprocessor(tmp_path), hidden_size=4)
        process = fake_process("visualserver", tmp_path, arena, spec)
        assert process.fault_point() is NO_FAULTS
        with pytest.raises(FileNotFoundError):
            arm(process.endpoints.fault(process.name), "error")
        process = fake_process("visualserver", tmp_path, arena, spec, fault_injection=True)
        point = process.fault_point()
        arm(process.endpoints.fault(process.name), "error")
        with pytest.raises(InjectedError):
            point.pass_through()
    finally:
        arena.close()
