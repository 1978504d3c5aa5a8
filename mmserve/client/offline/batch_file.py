"""Answers the lines of a batch file with a server that runs, and shows how far it is."""

from __future__ import annotations

import time
from pathlib import Path

from tqdm import tqdm

from mmserve.batch.lines import BatchLine
from mmserve.batch.output import BatchFiles, BatchWriter
from mmserve.batch.run import NoReply, Progress, run_batch
from mmserve.batch.source import Checked, read_lines
from mmserve.client.completions import ServerError
from mmserve.client.posts import PostClient
from mmserve.runtime.patience import Reply

_PATIENCE_S = 600.0
"""For a server that is full, or being restarted."""


async def answer_file(
    source: Path,
    checked: Checked,
    files: BatchFiles,
    url: str,
    api_key: str | None,
    max_in_flight: int,
    *,
    show_progress: bool,
) -> Progress:
    """Returns how many lines have results, earlier ones included. Raises OSError."""
    progress = Progress(files.answered, files.failed)
    started_s = time.monotonic()
    before = files.answered + files.failed
    with tqdm(total=checked.total, initial=before, unit="line", disable=not show_progress) as bar:

        def on_result() -> None:
            seconds = time.monotonic() - started_s
            bar.set_postfix_str(f"{progress.completion_tokens / seconds:.0f} tokens/s", refresh=False)
            bar.update()

        async with PostClient(url, api_key, _PATIENCE_S) as client, BatchWriter(files) as writer:

            async def answer(line: BatchLine) -> Reply:
                try:
                    return await client.post(line.url, line.body)
                except ServerError as error:
                    raise NoReply(str(error)) from None

            await run_batch(
                read_lines(source), files.done, answer, writer, max_in_flight, progress, on_result=on_result
            )
    return progress
