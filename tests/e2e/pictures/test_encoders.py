"""A server whose pictures an encoder, a process of its own, encodes too: ``mmserve encoder``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

from benchmarks.nodes.namespaces import network, why_not
from tests.e2e.stack import Stack, running
from tests.fakes.http.ports import free_port
from tests.fakes.pictures.cache import until
from training.sample import Sample, samples

CLIENTS = 24
_CUT_S = 10.0


@contextlib.contextmanager
def encoder(address: str, key: Path, output: Path, wrapper: Sequence[str] = ()) -> Iterator[psutil.Process]:
    program = (*wrapper, sys.executable, "-m", "mmserve", "encoder")
    command = [*program, "--model", "llava", "--dtype", "float32", "--join", address]
    options = ("--cluster-key-file", str(key), "--mm-cache-gb", "0.1")
    with output.open("w") as log:
        popen = subprocess.Popen([*command, *options], stdout=log, stderr=subprocess.STDOUT, env=os.environ)
        try:
            yield psutil.Process(popen.pid)
        finally:
            popen.terminate()
            popen.wait()
            print(output.read_text())


def joins(output: Path) -> int:
    """How often it has joined the server."""
    return output.read_text().count("joined")


async def _ask(client: openai.AsyncOpenAI, sample: Sample, salt: str) -> str:
    """The salt makes the picture one that was never seen."""
    reply = await client.chat.completions.create(
        model="llava", messages=sample.messages, temperature=0, extra_body={"cache_salt": salt}
    )
    return reply.choices[0].message.content or ""


async def _ask_all(stack: Stack, asked: list[Sample], salt: str) -> list[str]:
    async with stack.async_client() as client:
        return await asyncio.gather(*(_ask(client, sample, salt) for sample in asked))


def _disturbed(stack: Stack, asked: list[Sample], disturb: Callable[[], object]) -> list[str]:
    """The answers. ``disturb`` is called once an encoder has had some of the pictures."""
    offloaded = stack.metric("mm_images_offloaded_total")
    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(asyncio.run, _ask_all(stack, asked, "disturbed"))
        until(lambda: stack.metric("mm_images_offloaded_total") > offloaded or answers.done())
        disturb()
        return answers.result()


@pytest.mark.faults
def test_nothing_is_lost_when_an_encoder_is_killed_under_load(tmp_path: Path) -> None:
    asked = list(samples(CLIENTS, 550_101, kinds=("colour", "word")))
    address, key = f"127.0.0.1:{free_port()}", tmp_path / "key"
    with running("--encoders", address, "--cluster-key-file", str(key)) as stack:
        alone = asyncio.run(_ask_all(stack, asked, "alone"))
        with encoder(address, key, tmp_path / "output") as supervisor:
            until(lambda: joins(tmp_path / "output") > 0, timeout_s=60)
            assert asyncio.run(_ask_all(stack, asked, "with an encoder")) == alone
            offloaded = stack.metric("mm_images_offloaded_total")
            assert offloaded > 0

            def kill() -> None:
                for child in supervisor.children():
                    child.kill()

            before = joins(tmp_path / "output")
            assert _disturbed(stack, asked, kill) == alone
            until(lambda: joins(tmp_path / "output") > before, timeout_s=60)
            offloaded = stack.metric("mm_images_offloaded_total")
            assert asyncio.run(_ask_all(stack, asked, "back")) == alone
            assert stack.metric("mm_images_offloaded_total") > offloaded


@pytest.mark.nodes
def test_the_cable_of_an_encoder_is_pulled_for_ten_seconds(tmp_path: Path) -> None:
    """Server and encoder are in network namespaces."""
    if reason := why_not():
        pytest.skip(reason)
    asked = list(samples(CLIENTS, 550_102, kinds=("colour", "word")))
    key, output = tmp_path / "key", tmp_path / "output"
    with network(2) as machines, machines.from_switch():
        address = f"{machines.address(0)}:{free_port()}"
        options = ("--encoders", address, "--cluster-key-file", str(key), "--host", machines.address(0))
        with running(*options, "--node-timeout", "2", wrapper=machines.on(0)) as stack:
            alone = asyncio.run(_ask_all(stack, asked, "alone"))
            with encoder(address, key, output, machines.on(1)):
                until(lambda: joins(output) > 0, timeout_s=60)
                back = threading.Timer(_CUT_S, machines.plug, (1,), {"connected": True})

                def cut() -> None:
                    machines.plug(1, connected=False)
                    back.start()

                assert _disturbed(stack, asked, cut) == alone
                back.join()
                until(lambda: joins(output) > 1, timeout_s=60)
                offloaded = stack.metric("mm_images_offloaded_total")
                assert asyncio.run(_ask_all(stack, asked, "back")) == alone
                assert stack.metric("mm_images_offloaded_total") > offloaded
