"""What doctor and plan say of a small container, from made-up files of its control groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmserve.cli import main as cli
from mmserve.cli.doctor import machine_checks
from mmserve.cli.doctor.finding import Finding
from mmserve.runtime.cpu import topology
from mmserve.runtime.memory import cgroup
from mmserve.supervisor.startup import machine
from tests.fakes.processes.shortages import cgroup as write_group

MIB = 1 << 20
SMALL = {
    "cpu_max": "100000 100000\n",
    "memory_max": f"{2048 * MIB}\n",
    "memory_current": f"{348 * MIB}\n",
    "memory_stat": f"anon 1\ninactive_file {100 * MIB}\n",
    "pids.max": "max\n",
}
"""One CPU and 2 GiB, of which 248 MiB are in use and no page cache."""


def _container(directory: Path, monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """This process is in a container of version 2 with these files."""
    root, own = directory / "fs", directory / "own"
    write_group(root, **SMALL | changes)
    own.write_text("0::/\n")
    directories, groups, cores = cgroup.directories, cgroup.memory_groups, machine.num_cores
    monkeypatch.setattr(cgroup, "ROOT", root)
    monkeypatch.setattr(cgroup, "directories", lambda *places: directories(*places or (root, own)))
    monkeypatch.setattr(cgroup, "memory_groups", lambda: groups(root, own))
    monkeypatch.setattr(machine, "num_cores", lambda: cores(root, own, topology.SYSTEM))


def _finding(name: str) -> Finding:
    (check,) = (check for check in machine_checks.checks(0) if check.name == name)
    return check.run()


def test_one_cpu_is_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _container(tmp_path, monkeypatch)
    found = _finding("cpu")
    assert (found.status, " 1 of " in found.found) == ("warning", True)


@pytest.mark.parametrize(
    ("used_mib", "status", "free"),
    [(348, "ok", "1.8 GiB free"), (900, "warning", "1.2 GiB free"), (1500, "failure", "0.6 GiB free")],
)
def test_memory_is_what_the_container_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used_mib: int, status: str, free: str
) -> None:
    _container(tmp_path, monkeypatch, memory_current=str(used_mib * MIB))
    found = _finding("memory")
    assert (found.status, found.found) == (status, f"{free}, limited by this container (2.0 GiB)")
    assert ("--kv-cache-gb" in (found.do or "")) == (status != "ok")


def test_few_processes_are_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _container(tmp_path, monkeypatch, **{"pids.max": "100\n"})
    found = _finding("processes")
    assert (found.status, "allows 100 processes" in found.found) == ("failure", True)


@pytest.mark.parametrize(
    ("mode", "free", "status", "says"),
    [
        ("always [madvise] never", "300\n", "ok", "madvise; reserved for --arena-huge-pages: 300 of 2 MiB"),
        (
            "always madvise [never]",
            "0\n",
            "warning",
            "never; reserved for --arena-huge-pages: none",
        ),
    ],
)
def test_both_kinds_of_huge_pages_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, free: str, status: str, says: str
) -> None:
    (tmp_path / "enabled").write_text(mode)
    (tmp_path / "free_hugepages").write_text(free)
    monkeypatch.setattr(machine_checks, "_TRANSPARENT_PAGES", tmp_path / "enabled")
    monkeypatch.setattr(machine_checks, "_RESERVED_PAGES", tmp_path)
    found = _finding("huge pages")
    assert (found.status, says in found.found) == (status, True)


def test_a_plan_is_for_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _container(tmp_path, monkeypatch)
    assert cli.main(["plan", "--model", "llava", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["hardware"] == "1 core"
    assert planned["memory_bytes"] == 1800 * MIB
    parts = ("text_weights_bytes", "tower_weights_bytes", "other_bytes", "arena_bytes")
    needed = sum(planned[part] for part in parts) + planned["kv_tokens"] * planned["kv_bytes_per_token"]
    assert needed <= 0.9 * 1800 * MIB
    assert any(flag.startswith("--kv-cache-gb 0.") for flag in planned["flags"])


def test_a_plan_says_what_does_not_fit_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _container(tmp_path, monkeypatch, memory_max=str(1024 * MIB))
    assert cli.main(["plan", "--model", "llava"]) == 1
    assert "does not fit" in capsys.readouterr().out
