"""Start, stop and killed processes of the real server: live streams continue, and no process, socket or memory is
left behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import httpx2
import openai
import psutil
import pytest

from benchmarks.load.server import serve
from tests.e2e.stack import LITTLE_MEMORY, Stack, ask, run_dirs_of, running
from training.sample import samples

PROMPT = [{"role": "user", "content": "What can you do?"}]
LONG = {"max_tokens": 400, "temperature": 0, "extra_body": {"ignore_eos": True}}


async def _long_answer(stack: Stack, client: openai.AsyncOpenAI, started: asyncio.Event) -> str:
    pieces = []
    stream = await client.chat.completions.create(model="llava", messages=PROMPT, stream=True, **LONG)
    async for event in stream:
        if event.choices and (text := event.choices[0].delta.content):
            pieces.append(text)
            started.set()
    return "".join(pieces)


def _gone(processes: list[psutil.Process], within_s: float = 15.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not alive


VICTIMS = [
    "router",
    "model_backend",
    "fork_server",
    "torch_fork_server",
    "httpserver",
    "visualserver",
    "cache_server",
    "metrics",
]


@pytest.mark.faults
@pytest.mark.parametrize("victim", VICTIMS)
def test_streams_survive_a_killed_process(restarting_stack: Stack, victim: str) -> None:
    """The stream continues with the same text. A killed HTTP worker may break its own connections."""
    stack = restarting_stack

    async def scenario() -> tuple[str, str | None]:
        async with stack.async_client() as client:
            expected = await _long_answer(stack, client, asyncio.Event())
            started = asyncio.Event()
            live = asyncio.create_task(_long_answer(stack, client, started))
            await started.wait()
            for process in stack.processes(f"mmserve: {victim}"):
                process.kill()
            try:
                return expected, await live
            except (openai.APIError, httpx2.HTTPError):
                return expected, None

    expected, seen = asyncio.run(scenario())
    assert seen == expected if victim != "httpserver" else seen in (None, expected)
    sample = next(samples(1, seed=3, kinds=("colour",)))
    with stack.client().with_options(max_retries=8) as client:
        # The salt makes the picture a cache miss after the tests of other victims, so it is encoded again.
        assert ask(client, sample.messages, extra_body={"cache_salt": victim}).strip() == sample.answer


@pytest.mark.faults
def test_sighup_under_load_replaces_the_http_worker_without_a_failed_request(restarting_stack: Stack) -> None:
    stack = restarting_stack

    async def ask_until(replaced: asyncio.Event, client: openai.AsyncOpenAI) -> int:
        """Requests on connections that are kept, and without a retry."""
        count = 0
        while not replaced.is_set():
            await client.chat.completions.create(model="llava", messages=PROMPT, max_tokens=2)
            count += 1
        return count

    async def scenario(before: list[psutil.Process]) -> tuple[str, str, list[int]]:
        async with stack.async_client() as patient, contextlib.AsyncExitStack() as clients:
            client = patient.with_options(max_retries=0)
            expected = await _long_answer(stack, client, asyncio.Event())
            started, replaced = asyncio.Event(), asyncio.Event()
            live = asyncio.create_task(_long_answer(stack, client, started))
            others = [await clients.enter_async_context(stack.async_client()) for _ in range(4)]
            asking = [asyncio.create_task(ask_until(replaced, other.with_options(max_retries=0))) for other in others]
            await started.wait()
            psutil.Process(stack.pid).send_signal(signal.SIGHUP)
            assert await asyncio.to_thread(_gone, before, 60.0)
            replaced.set()
            return expected, await live, await asyncio.gather(*asking)

    for title in ("mmserve: httpserver 1", "mmserve: httpserver 0"):  # the successor takes the free index
        expected, seen, counts = asyncio.run(scenario(stack.processes("mmserve: httpserver")))
        assert seen == expected
        assert all(counts)
        assert [other for other in stack.titles() if "httpserver" in other] == [title]


def test_sigterm_under_load_finishes_live_requests_and_leaves_nothing() -> None:
    with running() as stack:
        family = [psutil.Process(stack.pid), *stack.processes()]
        run_dirs = run_dirs_of(family)
        assert run_dirs

        async def scenario() -> tuple[str, int]:
            async with stack.async_client() as client:
                started = asyncio.Event()
                live = asyncio.create_task(_long_answer(stack, client, started))
                await started.wait()
                psutil.Process(stack.pid).send_signal(signal.SIGTERM)
                refused = 200
                while not live.done() and refused == 200:
                    try:
                        await client.chat.completions.create(model="llava", messages=PROMPT, max_tokens=1)
                    except openai.APIStatusError as error:
                        refused = error.status_code
                return await live, refused

        text, refused = asyncio.run(scenario())
        assert text
        assert refused == 503
        assert _gone(family)
        assert not any(path.exists() for path in run_dirs)


@pytest.mark.faults
@pytest.mark.parametrize("tp", ["1", "2"])
def test_sigkill_of_the_supervisor_ends_all_processes(tp: str) -> None:
    with running("--tp", tp) as stack:
        family = [psutil.Process(stack.pid), *stack.processes()]
        run_dirs = run_dirs_of(family)
        assert run_dirs
        psutil.Process(stack.pid).kill()
        assert _gone(family)
        assert not any(path.exists() for path in run_dirs)


@pytest.mark.faults
def test_sigkill_of_all_processes_under_load_leaves_nothing() -> None:
    pictures = [sample.messages for sample in samples(24, seed=8, kinds=("colour",))]
    with running() as stack:
        family = [psutil.Process(stack.pid), *stack.processes()]
        run_dirs, memory = run_dirs_of(family), _memory_files(family)
        assert run_dirs
        assert memory

        async def scenario() -> list[BaseException | object]:
            async with stack.async_client() as client:
                started = asyncio.Event()
                asked = [client.chat.completions.create(model="llava", messages=each, **LONG) for each in pictures]
                live = [asyncio.create_task(task) for task in (*asked, _long_answer(stack, client, started))]
                await started.wait()
                for process in family:
                    process.kill()
                return await asyncio.gather(*live, return_exceptions=True)

        assert all(isinstance(end, openai.APIError | httpx2.HTTPError) for end in asyncio.run(scenario()))
        assert _gone(family)
        assert not memory & _memory_files(psutil.process_iter())
    with running():  # the killed processes could not remove their sockets; the next start does
        assert not any(path.exists() for path in run_dirs)


def _memory_files(processes: Iterable[psutil.Process]) -> set[int]:
    """Inodes of the memory files that the processes have open: arenas."""
    found = set()
    for process in processes:
        for link in Path(f"/proc/{process.pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(("/memfd:", "/dev/shm/")):
                    found.add(link.stat().st_ino)
    return found


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mmserve", "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "/no/such/model"), "/no/such/model"),
        (("--tp", "3"), "tp"),
        (("--kv-cache-gb", "9999"), "kv-cache-gb"),
        (("--mm-cache-gb", "9999"), "mm-cache-gb"),
        (("--port", "70000"), "port"),
        (("--max-model-len", "999999"), "max-model-len"),
    ],
)
def test_a_failed_start_prints_its_reason_in_one_line(arguments: tuple[str, ...], named: str) -> None:
    process = _start("--port", "0", *arguments) if "--port" not in arguments else _start(*arguments)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in printed
    assert named in printed.strip().splitlines()[-1]


def test_a_port_in_use_is_reported_before_the_model_loads(default_stack: Stack) -> None:
    port = default_stack.url.rsplit(":", 1)[1]
    process = _start("--port", port)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert port in printed
    assert "Traceback" not in printed


def test_processes_that_use_the_arena_map_all_of_it_with_prefault() -> None:
    with serve("--prefault", *LITTLE_MEMORY) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        for title in ("httpserver", "visualserver", "model_backend"):
            (process,) = stack.processes(f"mmserve: {title}")
            mapped = [each.rss for each in process.memory_maps() if each.path.startswith("/memfd:mmserve-arena")]
            assert sum(mapped) >= 0.1 * (1 << 30), title


def test_a_server_at_rest_takes_less_than_900_mib() -> None:
    """With the default options: KV cache and arena take memory when they are used."""
    with serve("--http-workers", "1") as target:
        assert target.pid is not None
        root = psutil.Process(target.pid)
        taken = sum(each.memory_full_info().pss for each in (root, *root.children(recursive=True)))
    assert taken < 900 << 20


def test_ctrl_c_while_loading_leaves_nothing() -> None:
    process = _start("--port", "0")
    try:
        root = psutil.Process(process.pid)
        deadline = time.monotonic() + 30
        while len(children := root.children(recursive=True)) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=30)
        assert "Traceback" not in printed
        assert _gone(children)
    finally:
        process.kill()
