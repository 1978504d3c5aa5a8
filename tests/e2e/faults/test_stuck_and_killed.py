"""Processes of the real server that are killed or suspended under load: every stream has the text it would have had."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from tests.e2e.faults.streams import TEXT, Answer, answer_of, answers_of
from tests.e2e.stack import Stack, running
from tests.fakes.pictures.cache import until

NUM_LINES = 200
"""Of a batch: it is far from done when its first answer is seen and its leader is killed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    batches = ("--batch-dir", str(tmp_path_factory.mktemp("batches")))
    with running("--overlap-scheduling", "--http-workers", "2", "--stuck-timeout", "5", *batches) as stack:
        yield stack


@pytest.fixture(scope="module")
def expected(server: Stack) -> list[Answer]:
    return asyncio.run(answers_of(server))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("victim", "how"),
    [("router", "kill"), ("model_backend", "suspend"), ("cache_server", "suspend")],
)
def test_every_stream_has_the_text_that_it_would_have_had(
    server: Stack, expected: list[Answer], victim: str, how: str
) -> None:
    (process,) = server.processes(f"mmserve: {victim}")
    titles = server.titles()
    answers = asyncio.run(answers_of(server, process.kill if how == "kill" else process.suspend))
    assert [answer.texts for answer in answers] == [answer.texts for answer in expected]
    assert answers == expected
    psutil.wait_procs([process], timeout=30)
    assert not process.is_running()
    until(lambda: server.titles() == titles and server.answers, timeout_s=60)
    assert server.eventually("mm_leases", 0) == 0


@pytest.mark.faults
def test_the_sequences_of_a_killed_http_worker_end_and_another_workers_streams_never_notice(
    server: Stack, expected: list[Answer]
) -> None:
    """The engine holds no sequence of the killed worker any more when its successor is not even ready."""
    endless = {"messages": TEXT, "temperature": 0, "max_tokens": 300, "extra_body": {"ignore_eos": True}}
    workers = server.processes("mmserve: httpserver")
    restarts = server.metric("process_restarts_total", role="httpserver")

    async def scenario() -> list[Answer | BaseException]:
        async with server.async_client() as client:
            client.max_retries = 0
            live: list[asyncio.Task[Answer]] = []
            # The kernel spreads connections over both workers, as it likes: perhaps not the first twelve.
            while not all(map(_num_clients, workers)):
                assert len(live) < 120, "one worker has no connections"
                started = [asyncio.Event() for _ in range(12)]
                live += [asyncio.create_task(answer_of(client, endless, event)) for event in started]
                await asyncio.gather(*(event.wait() for event in started))
            workers[0].kill()
            return await asyncio.gather(*live, return_exceptions=True)

    answers = asyncio.run(scenario())
    whole = [answer for answer in answers if isinstance(answer, Answer)]
    assert 0 < len(whole) < len(answers)
    assert all(answer == whole[0] for answer in whole)
    until(lambda: server.answers and server.metric("process_restarts_total", role="httpserver") > restarts)
    assert server.eventually("num_requests_running", 0) == 0
    assert server.eventually("mm_leases", 0) == 0


@pytest.mark.faults
def test_a_batch_goes_on_in_the_other_http_worker_and_each_line_has_one_answer(server: Stack) -> None:
    body = {"model": "llava", "messages": TEXT, "temperature": 0, "max_tokens": 100, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    names = [f"{number:03}" for number in range(NUM_LINES)]
    content = "\n".join(json.dumps({"custom_id": name, **line}) for name in names)
    client = server.client()
    file = client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    (leader,) = filter(_runs_batches, server.processes("mmserve: httpserver"))

    def state() -> openai.types.Batch:
        """Asked again where the connection is to the worker that is killed."""
        return client.with_options(max_retries=5).batches.retrieve(batch.id)

    until(lambda: (counts := state().request_counts) is not None and counts.completed > 0, timeout_s=60)
    leader.kill()
    until(lambda: state().status == "completed", timeout_s=120)
    counts, output = state().request_counts, state().output_file_id
    assert counts is not None
    assert output is not None
    assert (counts.total, counts.completed, counts.failed) == (NUM_LINES, NUM_LINES, 0)
    answered = [json.loads(text)["custom_id"] for text in client.files.content(output).text.splitlines()]
    assert sorted(answered) == names
    assert not leader.is_running()


def _runs_batches(worker: psutil.Process) -> bool:
    """It reads the pipe through which it is woken."""
    links = (link for link in Path(f"/proc/{worker.pid}/fd").iterdir())
    return any(os.path.basename(os.readlink(link)) == "wake" for link in links)  # noqa: PTH119 - a name of a link


def _num_clients(worker: psutil.Process) -> int:
    return sum(one.status == psutil.CONN_ESTABLISHED for one in worker.net_connections("tcp"))
