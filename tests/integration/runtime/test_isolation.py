"""A child that dies of a request is replaced for the next one, and never outlives its parent's object."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import pytest

from mmserve.runtime.isolation.killable import ChildDied, KillableChild
from tests.fakes.pictures.cache import until

MODULE = "tests.fakes.processes.obedient_child"


@pytest.fixture(params=[0, 1 << 20], ids=["main thread", "small stack"])
def child(request: pytest.FixtureRequest) -> Iterator[KillableChild]:
    environment = {"STACK_NBYTES": str(request.param), "MINE": "yes"}
    with closing(KillableChild(MODULE, b"set up", deadline_s=0.5, environment=environment)) as made:
        yield made


def test_a_child_gets_its_setup_and_environment_and_answers(child: KillableChild) -> None:
    assert child.pid is None, "started when it is needed"
    assert [child.ask(request) for request in (b"setup", b"variable MINE", b"echo")] == [b"set up", b"yes", b""]
    pid, long = child.pid, b"x" * (3 << 20)
    assert child.ask(memoryview(b"echo " + long)) == long
    assert child.ask(b"interrupt") == b"", "its parent alone decides when it ends"
    assert child.ask(b"allocate 1000") == b""
    assert child.ask(b"allocate 100000000") == b"refused"
    assert child.pid == pid


def test_a_request_that_ends_the_child_says_how_and_the_next_one_has_another(child: KillableChild) -> None:
    deaths = {b"exit 3": "exit code 3", b"kill %d" % signal.SIGSEGV: "SIGSEGV", b"loop": "SIGALRM"}
    for request, cause in deaths.items():
        with pytest.raises(ChildDied, match=cause) as died:
            child.ask(request)
        assert died.value.took_too_long == (request == b"loop")
        assert child.pid is None
        assert child.ask(b"echo again") == b"again"


def test_an_idle_child_can_be_ended_and_one_that_works_is_killed_by_close() -> None:
    with closing(KillableChild(MODULE, b"", deadline_s=600)) as child:
        child.ask(b"echo")
        first = psutil.Process(child.pid)
        child.end_idle()
        assert not first.is_running()
        child.ask(b"echo")
        second = psutil.Process(child.pid)
        idle_s = second.cpu_times().user
        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(child.ask, b"loop")
            until(lambda: second.cpu_times().user > idle_s + 0.05)
            child.end_idle()
            assert second.is_running()
            child.close()
            assert isinstance(working.exception(), ChildDied)
        assert not second.is_running()


def test_a_child_that_does_not_start_is_an_error_of_its_own() -> None:
    with closing(KillableChild(MODULE, b"fail", deadline_s=1)) as child:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"did not start \(exit code 7\)"):
                child.ask(b"echo")
