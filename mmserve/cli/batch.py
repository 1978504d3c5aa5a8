"""``mmserve batch``: its flags, and the choice between a server of its own and one that runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from mmserve.cli.serve import add_options
from mmserve.config.options import OPTIONS, OptionError
from mmserve.runtime.errors import StartupError

_DESCRIPTION = """\
Answer the requests of a file in OpenAI's batch format, and write each answer when it comes:

  mmserve batch in.jsonl out.jsonl --model llava
  mmserve batch in.jsonl out.jsonl --url http://localhost:8000

A line of the input: {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}. The order of
the output is that in which answers are ready. A line without an answer is in the file of errors, with the reason.
After an interruption the same command goes on where it stopped."""
_EPILOG = """\
Without --url a server is started and stopped afterwards; every option of mmserve serve is taken for it.
The key of --url is read from MMSERVE_API_KEY or OPENAI_API_KEY. The exit code is 1 if a line has no answer."""
_SHOWN = ("tp", "dtype", "quantization", "kv_cache_gb", "mm_cache_gb", "max_model_len", "max_num_seqs", "speculative")
_NOT_TAKEN = ("model", "host", "port", "health_port", "api_key", "api_key_file")
_IN_FLIGHT = 136


def add_batch(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "batch",
        help="answer a file of requests (OpenAI's batch format)",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="mmserve batch INPUT OUTPUT [--url URL | --model MODEL] [option ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("input", metavar="INPUT", type=Path, help="file with a request a line")
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="file for the answers; they are added to its end")
    parser.add_argument("--errors", type=Path, metavar="FILE", help="for lines without an answer [OUTPUT.errors]")
    parser.add_argument("--retry-errors", action="store_true", help="send the lines with an error again")
    parser.add_argument("--url", help="server to ask, with or without /v1; default: start one")
    parser.add_argument(
        "--in-flight",
        type=int,
        metavar="N",
        help=f"requests at once [{_IN_FLIGHT}; of an own server --max-num-seqs + 8]",
    )
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    group = parser.add_argument_group("as in mmserve serve")
    group.add_argument("--model", help="packaged name, checkpoint directory, or hub id [llava]")
    add_options(group, [OPTIONS[name] for name in _SHOWN])
    others = [option for name, option in OPTIONS.items() if name not in (*_SHOWN, *_NOT_TAKEN)]
    add_options(group, others, hidden=True)


def batch(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if a line has no answer. Raises StartupError."""
    # Imported here: these would slow down --help.
    from mmserve.batch.resume import opened
    from mmserve.batch.source import check

    options = {name: value for name, value in vars(arguments).items() if name in OPTIONS and name != "model"}
    if arguments.url and (options or arguments.model):
        name = next(iter(options), "model")
        raise OptionError(f"{OPTIONS[name].flag} is for a server that is started: leave it out, or leave out --url")
    if arguments.in_flight is not None and arguments.in_flight < 1:
        raise OptionError(f"--in-flight {arguments.in_flight}: it must be at least 1")
    errors = arguments.errors or arguments.output.with_name(arguments.output.name + ".errors")
    try:
        checked = check(arguments.input)
        with opened(arguments.input, checked, arguments.output, errors, retry_errors=arguments.retry_errors) as files:
            if files.answered + files.failed >= checked.total:
                answered, failed = files.answered, files.failed
            else:
                answered, failed = _run(arguments, options, checked, files)
    except OSError as error:
        raise StartupError(f"{error.filename or arguments.output}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        print("mmserve: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"{answered} of {checked.total} lines have an answer" + (f", {failed} an error: {errors}" if failed else ""))
    return 0 if answered == checked.total else 1


def _run(arguments: argparse.Namespace, options: dict[str, Any], checked: Any, files: Any) -> tuple[int, int]:
    """Lines with an answer, and with an error. Raises StartupError and OSError."""
    from mmserve.client.offline.batch_file import answer_file
    from mmserve.client.offline.options import checked as checked_options
    from mmserve.client.own_server import own_server

    with contextlib.ExitStack() as stack:
        if arguments.url:
            url, in_flight = arguments.url.rstrip("/").removesuffix("/v1"), _IN_FLIGHT
            key = os.environ.get("MMSERVE_API_KEY") or os.environ.get("OPENAI_API_KEY")
        else:
            config, flags = checked_options(options)
            server = stack.enter_context(own_server(arguments.model or "llava", flags))
            url, key, in_flight = server.url, server.api_key, config.max_num_seqs + 8
        progress = asyncio.run(
            answer_file(
                arguments.input,
                checked,
                files,
                url,
                key,
                arguments.in_flight or in_flight,
                show_progress=not arguments.no_progress,
            )
        )
    return progress.answered, progress.failed
