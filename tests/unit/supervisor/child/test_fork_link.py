"""The supervisor's side of a fork server, against a fork server that is played here."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from mmserve.supervisor.child import fork_link
from mmserve.supervisor.child.fork_link import ForkedProcess, ForkLink
from mmserve.supervisor.child.fork_messages import Ended, Forked, ForkRequest, NotForked, Serving, receive, send

REQUEST = ForkRequest(role="model_backend", index=1, title="rank 1", target="module:run", fds=("report_fd",))


@pytest.fixture
def link() -> Iterator[ForkLink]:
    with closing(ForkLink()) as link:
        yield link


@pytest.fixture
def process() -> Iterator[tuple[int, int]]:
    """The pid and pidfd of a process that is not this one's child."""
    script = f"{sys.executable} -c 'import signal; signal.pause()' >/dev/null & echo $!"
    pid = int(subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout)
    pidfd = os.pidfd_open(pid)
    yield pid, pidfd
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)


def test_nothing_is_asked_of_a_fork_server_that_does_not_serve_yet(link: ForkLink) -> None:
    assert link.fork(REQUEST, ()) is None
    link.theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(link.theirs)


def test_the_request_and_its_descriptors_arrive(link: ForkLink, process: tuple[int, int]) -> None:
    pid, pidfd = process
    send(link.theirs, Serving())
    send(link.theirs, Ended(77, 1))  # of another process, at the same moment
    send(link.theirs, Forked(pid), (pidfd,))
    with open(os.devnull) as file:
        forked = link.fork(REQUEST, (file.fileno(),))
        assert forked is not None
        received = receive(link.theirs)
    assert received is not None
    assert received[0] == REQUEST
    assert os.fstat(received[1][0]).st_rdev == os.stat(os.devnull).st_rdev
    assert forked[0].pid == pid
    assert link.returncode(77) == 1
    for fd in (forked[1], *received[1]):
        os.close(fd)


@pytest.mark.parametrize("says_so", [True, False])
def test_how_a_process_ended(link: ForkLink, process: tuple[int, int], says_so: bool) -> None:
    pid, pidfd = process
    send(link.theirs, Serving())
    send(link.theirs, Forked(pid), (pidfd,))
    forked = link.fork(REQUEST, ())
    assert forked is not None
    child, own_pidfd = forked
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0)
    child.send_signal(signal.SIGKILL)
    if says_so:
        send(link.theirs, Ended(pid, -signal.SIGKILL))
    else:
        link.theirs.close()
    child.wait(10)
    assert child.returncode == (-signal.SIGKILL if says_so else None)
    child.send_signal(signal.SIGKILL)  # does nothing
    os.close(own_pidfd)


def test_how_a_process_ended_that_has_become_a_child_of_this_one(link: ForkLink) -> None:
    popen = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    child = ForkedProcess(popen.pid, pidfd := os.pidfd_open(popen.pid), link)
    link.theirs.close()
    child.wait(60)
    assert child.returncode == 3
    os.close(pidfd)
    popen.wait()  # forgets it


def test_a_machine_without_room_for_a_process(link: ForkLink) -> None:
    send(link.theirs, Serving())
    send(link.theirs, NotForked(errno.EAGAIN))
    with pytest.raises(BlockingIOError) as raised:
        link.fork(REQUEST, ())
    assert raised.value.errno == errno.EAGAIN


def test_a_process_is_ended_if_no_descriptor_is_left_to_watch_it(link: ForkLink, process: tuple[int, int]) -> None:
    pid, pidfd = process
    send(link.theirs, Serving())
    send(link.theirs, Forked(pid))  # what arrives then
    with pytest.raises(OSError, match="open files"):
        link.fork(REQUEST, ())
    assert select.select([pidfd], [], [], 10)[0], "it runs on"


def test_a_fork_server_that_has_ended(link: ForkLink) -> None:
    send(link.theirs, Serving())
    link.theirs.close()
    assert link.fork(REQUEST, ()) is None


def test_a_fork_server_that_does_not_answer(link: ForkLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_link, "_ANSWER_S", 0.05)
    send(link.theirs, Serving())
    with pytest.raises(TimeoutError):
        link.fork(REQUEST, ())
