"""LLM and AsyncLLM: answers from a server of the program's own, which ends with it.

None of the shared servers could be used: to start and to stop its own is what an LLM does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from mmserve import LLM, ServerError
from tests.e2e.stack import LITTLE_MEMORY

PICTURE = Path(__file__).parents[3] / "examples/picture.png"
QUESTION = "What colour is the circle?"
LITTLE = {
    flag[2:].replace("-", "_"): value for flag, value in zip(LITTLE_MEMORY[::2], LITTLE_MEMORY[1::2], strict=True)
}


def _servers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.cmdline() and child.cmdline()[0].startswith("mmserve")]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    before = set(_servers())
    with LLM("llava", dtype="float32", **LITTLE) as llm:
        processes = set(_servers()) - before
        assert len(processes) > 3
        yield llm
    assert not psutil.wait_procs(processes, timeout=10)[1]
    with pytest.raises(RuntimeError, match="is closed"):
        llm.chat("hello")


def test_a_picture_is_answered(llm: LLM) -> None:
    answer = llm.chat(QUESTION, images=PICTURE, temperature=0)
    assert (answer.text, answer.finish_reason) == ("green", "stop")
    assert answer.usage["completion_tokens"] > 0
    assert answer.seconds > 0


def test_a_list_is_answered_in_order_and_a_bad_one_harms_itself(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    with Image.open(PICTURE) as picture:
        images = [PICTURE, "/no/such.png", picture.copy()]
    answers = llm.chat([QUESTION, QUESTION, [{"role": "user", "content": QUESTION}]], images=images, temperature=0)
    assert [answer.text for answer in answers] == ["green", "", "green"]
    assert answers[0].error is None
    assert "/no/such.png" in str(answers[1].error)
    assert "3/3" in capsys.readouterr().err


def test_a_running_event_loop_does_not_matter(llm: LLM) -> None:
    async def cell() -> list[str]:
        with_bar = llm.chat(["hello"], max_tokens=2, progress=False)
        return [llm.chat(QUESTION, images=[PICTURE], temperature=0).text, str(with_bar[0].error)]

    assert asyncio.run(cell()) == ["green", "None"]


def test_an_answer_is_streamed_and_may_be_left(llm: LLM) -> None:
    stream = llm.stream(QUESTION, images=PICTURE, temperature=0)
    assert "".join(stream) == stream.answer.text == "green"
    assert stream.answer.finish_reason == "stop"
    long = llm.stream("hello", min_tokens=1500, max_tokens=1500)
    next(long)
    long.close()
    assert not long.answer.finish_reason


def test_a_schema_holds(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["green", "red"]}}, "required": ["colour"]}
    answer = llm.chat(QUESTION, images=PICTURE, schema=schema, temperature=0, max_tokens=40)
    assert '"colour"' in answer.text


def test_a_refusal_is_the_servers_own(llm: LLM) -> None:
    with pytest.raises(ServerError, match="HTTP 400: temperature"):
        llm.chat("hello", temperature=9)
    with pytest.raises(ServerError, match="HTTP 400"):
        llm.chat("hello", no_such_field=9)


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_copy_of_the_process_says_why_it_cannot(llm: LLM) -> None:
    read_fd, write_fd = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            llm.chat("hello")
        except RuntimeError as error:
            os.write(write_fd, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    os.waitpid(pid, 0)
    with open(read_fd, "rb") as pipe:
        assert b"after a fork" in pipe.read()
    assert llm.chat("hello", max_tokens=1).finish_reason == "length"


_SCRIPT = f"""
import asyncio, sys
import psutil
from mmserve import AsyncLLM

async def main():
    async with AsyncLLM("llava", dtype="float32", **{LITTLE!r}) as llm:
        answer = await llm.chat({QUESTION!r}, images={str(PICTURE)!r}, temperature=0)
        pieces = [piece async for piece in llm.stream({QUESTION!r}, images={str(PICTURE)!r}, temperature=0)]
        print(answer, "".join(pieces), *[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
        asyncio.create_task(llm.chat("hello", min_tokens=1500, max_tokens=1500))
        await asyncio.sleep(0.1)
        raise KeyError("of the script")

asyncio.run(main())
"""


def test_processes_end_with_a_script_that_fails() -> None:
    """The script comes from stdin and has no ``if __name__``."""
    ended = subprocess.run(
        [sys.executable, "-"], input=_SCRIPT, capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "KeyError: 'of the script'" in ended.stderr
    answer, streamed, *pids = ended.stdout.split()
    assert (answer, streamed) == ("green", "green")
    assert len(pids) > 3
    assert not [pid for pid in map(int, pids) if psutil.pid_exists(pid)]
