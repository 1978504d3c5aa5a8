"""While the container's memory is nearly used up, requests with images are refused; shortages are logged once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from mmserve.httpserver.limits.shortages import Shortages
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import Unavailable
from mmserve.runtime.memory.cgroup import MemoryLimit, limited_groups
from tests.fakes.processes.samples import Samples
from tests.fakes.processes.shortages import cgroup, no_more_descriptors

MIB = 1 << 20


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def _groups(path: Path) -> Sequence[MemoryLimit]:
    """A group with 100 MiB in one with 1000 MiB; nearly nothing of either is used."""
    cgroup(path / "fs/outer", memory_max=str(1000 * MIB), memory_current="0", memory_stat="")
    cgroup(path / "fs/outer/inner", memory_max=str(100 * MIB), memory_current="0", memory_stat="")
    (path / "own").write_text("0::/outer/inner\n")
    return limited_groups(path / "fs", path / "own")


def _shortages(groups: Sequence[MemoryLimit], samples: Samples | None = None) -> Shortages:
    return Shortages(cast(MetricsClient, samples or Samples()), groups)


def _taken(shortages: Shortages) -> bool:
    """Whether a request with images is taken now; it ends at once."""
    try:
        with shortages.images():
            return True
    except Unavailable:
        return False


@pytest.mark.parametrize(("group", "used_mib"), [("outer/inner", 99.5), ("outer", 995)])
def test_images_are_refused_until_memory_is_free_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, group: str, used_mib: float
) -> None:
    samples, current = Samples(), tmp_path / "fs" / group / "memory.current"
    shortages = _shortages(_groups(tmp_path), samples)
    shortages.look()
    assert _taken(shortages)
    assert not caplog.records

    current.write_text(str(int(used_mib * MIB)))
    for _ in range(3):
        shortages.look()
        with pytest.raises(Unavailable) as refused, shortages.images():
            pass
    assert refused.value.retry_after_s is not None
    assert samples.total("admission_rejections", "memory") == 3

    current.write_text("0")
    shortages.look()
    assert _taken(shortages)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].endswith("are refused (503)")
    assert lines[1].endswith("served again")


@pytest.mark.parametrize(("group", "used_mib"), [("outer/inner", 96), ("outer", 960)])
def test_a_container_that_is_always_nearly_full_serves_one_request_with_images_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, group: str, used_mib: int
) -> None:
    shortages = _shortages(_groups(tmp_path))
    (tmp_path / "fs" / group / "memory.current").write_text(str(used_mib * MIB))
    with shortages.images():
        for _ in range(3):
            shortages.look()
            assert not _taken(shortages), "one is under way already"
    for _ in range(3):
        shortages.look()
        assert _taken(shortages)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "one at a time" in line


@pytest.mark.parametrize(
    ("limit_mib", "left_mib", "taken"), [(1000, 49, 1), (1000, 51, 2), (64_000, 255, 1), (64_000, 257, 2)]
)
def test_the_margin_is_five_per_cent_and_at_most_256_mib(
    tmp_path: Path, limit_mib: int, left_mib: int, taken: int
) -> None:
    shortages = _shortages(_groups(tmp_path))
    limit = {"memory_max": str(limit_mib * MIB), "memory_current": str((limit_mib - left_mib) * MIB)}
    cgroup(tmp_path / "fs/outer", memory_max="max")
    cgroup(tmp_path / "fs/outer/inner", **limit)
    shortages.look()
    with shortages.images():
        assert 1 + _taken(shortages) == taken


def test_page_cache_that_can_be_dropped_is_no_shortage(tmp_path: Path) -> None:
    shortages = _shortages(_groups(tmp_path))
    cgroup(tmp_path / "fs/outer/inner", memory_current=str(99 * MIB), memory_stat=f"inactive_file {50 * MIB}\n")
    shortages.look()
    with shortages.images():
        assert _taken(shortages)


def test_memory_that_cannot_be_looked_at_is_as_short_as_it_was(tmp_path: Path) -> None:
    shortages = _shortages(_groups(tmp_path))
    cgroup(tmp_path / "fs/outer/inner", memory_current=str(100 * MIB))
    shortages.look()
    with no_more_descriptors():
        shortages.look()
    assert not _taken(shortages)


def test_without_a_limit_nothing_is_refused() -> None:
    shortages = _shortages([])
    shortages.look()
    assert _taken(shortages)


def test_lack_of_descriptors_is_logged_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    shortages = _shortages([])
    with no_more_descriptors():
        for _ in range(3):
            shortages.look()
    for _ in range(3):
        shortages.look()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "ulimit -n" in caplog.records[0].getMessage()
