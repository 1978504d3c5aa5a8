"""A server for clients in other processes: python -m tests.clients.server [NAME ...]. Serves until SIGTERM.

Prints its URL. A real HTTP worker with a real tokenizer, chat template and grammars; the engine behind it follows a
script. Its model is named ``tiny``, and NAME as well.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import uvloop

from mmserve.messages.request import GenerateRequest
from tests.clients.assistant import answer
from tests.fakes.http.http_upstream import Upstream
from tests.fakes.http.http_worker import Worker, http_worker
from tests.fakes.models.chat_models import HERMES, write_chat_model
from tests.fakes.ranks.scripted_model import ScriptedModel

_EFFORT = "{% if reasoning_effort %}{% endif %}"
"""A template that can be told how much to think, and makes nothing of it."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="test-mmserve-") as directory:
        checkpoint = write_chat_model(Path(directory), template=HERMES + _EFFORT)

        async def serve() -> None:
            async with http_worker(checkpoint=checkpoint, aliases=frozenset(sys.argv[1:])) as worker:
                follow_script(worker, checkpoint)
                print(worker.url, flush=True)
                await worker.serving

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())


def follow_script(worker: Worker, checkpoint: Path) -> None:
    """Give the worker of this checkpoint an engine that answers as tests.clients.assistant does, and makes vectors."""
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    model = worker.context.deployment.model
    scripted, hidden_size = ScriptedModel(model, tokenizer, answer), model.text.hidden_size

    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        if request.pooling:
            vector = np.zeros(hidden_size, "<f4")
            vector[:2] = (len(request.prompt_ids) // 8, 1)
            upstream.reply(request, finish="length", embedding=vector.tobytes())
        else:
            await scripted.behave(upstream, request)

    worker.upstream.behave = behave


if __name__ == "__main__":
    main()
