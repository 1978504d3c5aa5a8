"""A server for clients in other processes: python -m tests.clients.server. Prints its URL, serves until SIGTERM.

A real HTTP worker with a real tokenizer, chat template and grammars; the engine behind it follows a script.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import tokenizers
import uvloop

from tests.clients.assistant import answer
from tests.fakes.chat_models import HERMES, write_chat_model
from tests.fakes.http_worker import http_worker
from tests.fakes.scripted_model import ScriptedModel


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="test-mmserve-") as directory:
        checkpoint = write_chat_model(Path(directory), template=HERMES)

        async def serve() -> None:
            async with http_worker(checkpoint=checkpoint) as worker:
                tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
                worker.upstream.behave = ScriptedModel(worker.context.deployment.model, tokenizer, answer).behave
                print(worker.url, flush=True)
                await worker.serving

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())


if __name__ == "__main__":
    main()
