"""Which processes run and are ready, and which are started: with processes that exist only here."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from mmserve.runtime.errors import StartupError
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.protocol import Ready
from mmserve.supervisor.children import Children
from mmserve.supervisor.topology import Member, Role
from mmserve.supervisor.watching.watch import HANDLED, Watch

CACHE, HTTP = Member(Role("cache_server", ""), 0), Member(Role("httpserver", "", listens="http"), 0)
RANK, ROUTER = Member(Role("model_backend", "", engine=True), 0), Member(Role("router", "", engine=True), 0)
VISUAL = Member(Role("visualserver", "", after=("cache_server",)), 0)


@dataclass(eq=False)
class _Child:
    member: Member
    incarnation: int
    ends_when_killed: bool = True
    pid: int = 4711
    started_s: float = 1.0
    ready_s: float = 2.0
    ready: Ready | None = None
    accepting: bool = False
    signals: list[signal.Signals] = field(default_factory=list)

    def send_signal(self, signum: signal.Signals) -> None:
        self.signals.append(signum)

    def wait(self, timeout_s: float) -> bool:
        return self.ends_when_killed


class _Machine:
    """Starts fake processes while it has ``num_left`` for them, and is the watch that they are given to."""

    def __init__(self) -> None:
        self.num_left = 100
        self.started: list[_Child] = []
        self.watched: list[Child] = []
        self.mask: set[int] = set()

    def spawn(self, member: Member, incarnation: int) -> Child:
        if not self.num_left:
            raise OSError(24, "Too many open files")
        self.num_left -= 1
        self.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        self.started.append(_Child(member, incarnation))
        return cast(Child, self.started[-1])

    def add(self, child: Child) -> None:
        self.watched.append(child)

    def remove(self, child: Child) -> None:
        self.watched.remove(child)


Of = Callable[..., Children]


@pytest.fixture
def machine() -> _Machine:
    return _Machine()


@pytest.fixture
def children_of(machine: _Machine) -> Of:
    return lambda *members: Children(list(members), machine.spawn, cast(Watch, machine))


def _get_ready(machine: _Machine, *members: Member) -> None:
    for child in machine.started:
        if child.member in members:
            child.ready = Ready(details={})


def _titles(children: Children) -> list[str]:
    return [child.member.title for child in children]


def test_a_process_starts_when_its_predecessors_are_ready(machine: _Machine, children_of: Of) -> None:
    children = children_of(CACHE, VISUAL)
    children.start_unblocked()
    assert _titles(children) == ["cache_server"]
    _get_ready(machine, CACHE)
    assert children.missing() == [VISUAL]
    children.start_unblocked()
    assert _titles(children) == ["cache_server", "visualserver"]
    _get_ready(machine, VISUAL)
    assert children.missing() == []
    assert machine.watched == list(children)


def test_signals_are_blocked_only_while_a_process_is_started(machine: _Machine, children_of: Of) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    children_of(CACHE).start_missing()
    assert machine.mask >= set(HANDLED)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_start_without_descriptors_fails_and_a_later_one_waits(machine: _Machine, children_of: Of) -> None:
    machine.num_left = 1
    children = children_of(CACHE, HTTP)
    with pytest.raises(StartupError, match=r"httpserver cannot be started: .*Too many open files"):
        children.start_unblocked()
    assert not children.start_missing()
    assert children.of(HTTP) is None
    machine.num_left = 1
    assert children.start_missing()
    assert _titles(children) == ["cache_server", "httpserver"]


def test_the_engine_is_one_group_and_ready_as_a_whole(machine: _Machine, children_of: Of) -> None:
    children = children_of(CACHE, RANK, ROUTER)
    children.start_missing()
    _get_ready(machine, RANK)
    assert not children.engine_ready
    _get_ready(machine, ROUTER)
    assert children.engine_ready
    assert children.group(RANK) == [RANK, ROUTER]
    assert children.group(CACHE) == [CACHE]
    assert children.http_workers() == []


def test_killed_processes_are_no_longer_watched(machine: _Machine, children_of: Of) -> None:
    children = children_of(CACHE, HTTP)
    children.start_missing()
    old = children.of(HTTP)
    assert old is not None
    assert children.is_current(old)
    children.kill([HTTP])
    assert machine.started[1].signals == [signal.SIGKILL]
    assert machine.watched == [children.of(CACHE)]
    assert not children.is_current(old)
    children.kill([HTTP])  # it does not run: no effect
    children.incarnations[HTTP.group] += 1
    children.start_missing()
    assert not children.is_current(old)
    assert machine.started[2].incarnation == 1


def test_a_process_that_survives_its_kill_is_logged(
    machine: _Machine, children_of: Of, caplog: pytest.LogCaptureFixture
) -> None:
    children = children_of(CACHE)
    children.start_missing()
    machine.started[0].ends_when_killed = False
    children.kill([CACHE])
    assert "does not end even when killed" in caplog.text
    assert list(children) == []


def test_signals_go_to_those_that_run(machine: _Machine, children_of: Of) -> None:
    children = children_of(CACHE, HTTP)
    children.start_missing()
    (cache, http) = children
    children.forget(http)
    children.send_signal([CACHE, HTTP], signal.SIGTERM)
    assert [child.signals for child in machine.started] == [[signal.SIGTERM], []]
    assert list(children) == [cache]


def test_the_table_has_a_row_for_each_member(machine: _Machine, children_of: Of) -> None:
    children = children_of(CACHE, RANK, HTTP)
    machine.num_left = 2
    children.start_missing()
    _get_ready(machine, CACHE)
    children.incarnations["engine"] = 3
    rows = children.table().processes
    assert [(row.title, row.pid, row.ready_s, row.restarts) for row in rows] == [
        ("cache_server", 4711, 2.0, 0),
        ("model_backend", 4711, None, 3),
        ("httpserver", 0, None, 0),
    ]
