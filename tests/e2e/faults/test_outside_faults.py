"""The whole server while disks are full, and while its processes have no descriptors left."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import openai
import psutil
import pytest

from tests.e2e.stack import ask, run_dirs_of, running
from tests.fakes.pictures.cache import until
from training.sample import samples

pytestmark = pytest.mark.faults
TEXT = [{"role": "user", "content": "What can you do?"}]
PICTURES = [sample.messages for sample in islice(samples(3, 880_401, kinds=("colour",)), 3)]
IN_SMALL_DISKS = """
mkdir -p "$XDG_RUNTIME_DIR"
mount -t tmpfs -o size=8m tmpfs "$XDG_RUNTIME_DIR"
for full in /dev/shm "$TMPDIR"; do
    mount -t tmpfs -o size=64k tmpfs "$full"
    head -c 65536 /dev/zero > "$full"/full
done
exec "$@"
"""


def _may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_mount(), reason="mounting is not permitted here")
@pytest.mark.parametrize("tp", [1, 2])
def test_full_disks_keep_it_neither_from_starting_nor_from_replacing_dead_processes(
    tp: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime = f"/tmp/mmserve-test-{os.getpid()}"  # a short path: sockets are in it
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    wrapper = ["unshare", "--mount", "sh", "-ec", IN_SMALL_DISKS, "sh"]
    try:
        with running("--tp", str(tp), wrapper=wrapper) as stack, stack.client() as client:
            before = [ask(client, messages) for messages in (TEXT, *PICTURES)]
            (run_dir,) = run_dirs_of(stack.processes())
            full = Path(f"/proc/{stack.pid}/root{run_dir.parent}/full")
            with contextlib.suppress(OSError), full.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 20)):
                    pass
            titles = stack.titles()
            others = ("visualserver 0", "cache_server", "httpserver 0", "metrics", "health")
            for title in (
                "router",
                *(f"model_backend rank {rank}" for rank in range(tp)),
                *(others if tp == 1 else ()),
            ):
                (process,) = stack.processes(f"mmserve: {title}")
                process.kill()
                process.wait()
                until(lambda: stack.titles() == titles and stack.answers, timeout_s=60)
            assert [ask(client, messages) for messages in (TEXT, *PICTURES)] == before
    finally:
        with contextlib.suppress(OSError):
            Path(runtime).rmdir()


def test_without_descriptors_anywhere_requests_are_answered_and_afterwards_served() -> None:
    with running() as stack, stack.client(timeout=20) as client, stack.client(timeout=20) as other:
        text = ask(client, TEXT)
        assert ask(other, TEXT) == text  # its connection is open from now on
        everything = [psutil.Process(stack.pid), *stack.processes()]
        # The HTTP worker refuses images itself while it has no descriptor. Without one in the others it must not wait.
        for short in (everything, [one for one in everything if one not in stack.processes("mmserve: httpserver")]):
            with _no_descriptors(short):
                assert ask(client, TEXT) == text
                with pytest.raises(openai.InternalServerError) as caught:
                    ask(other, PICTURES[0])
                assert caught.value.status_code == 503
                assert float(caught.value.response.headers["retry-after"]) > 0
        titles = stack.titles()
        answers = [ask(client, messages) for messages in PICTURES]
        with _no_descriptors(everything[1:]):
            assert ask(client, TEXT) == text
        assert [ask(other, messages) for messages in PICTURES] == answers
        assert stack.titles() == titles


def test_an_engine_that_starts_again_connects_to_an_http_worker_without_descriptors() -> None:
    """With the descriptor of its dead connection. libzmq would end a process that has none for a new one."""
    with running() as stack, stack.client() as client:
        answer = ask(client, TEXT)
        (worker,), (router,) = stack.processes("mmserve: httpserver"), stack.processes("mmserve: router")
        with _no_descriptors([worker]):
            router.kill()
            router.wait()
            until(lambda: _answer(client) == answer, timeout_s=60)
            assert worker.is_running()


def _answer(client: openai.OpenAI) -> str | None:
    """None while requests are refused."""
    with contextlib.suppress(openai.InternalServerError):
        return ask(client, TEXT)
    return None


@contextlib.contextmanager
def _no_descriptors(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Within the block, these processes can open nothing beyond what they have open."""
    limits = [process.rlimit(psutil.RLIMIT_NOFILE) for process in processes]
    try:
        for process, (_, hard) in zip(processes, limits, strict=True):
            used = set(os.listdir(f"/proc/{process.pid}/fd"))
            process.rlimit(psutil.RLIMIT_NOFILE, (next(n for n in count() if str(n) not in used), hard))
        yield
    finally:
        for process, limit in zip(processes, limits, strict=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(psutil.RLIMIT_NOFILE, limit)
