"""``mmserve explain``: what a request becomes: its prompt, its pictures, its sampling, and what of it is cached."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmserve.cli.tables import aligned
from mmserve.runtime.errors import StartupError

_DESCRIPTION = """\
Say what a chat completion becomes: the rendered prompt by messages, with the places of its pictures, their grids,
tokens and keys, what of both the server has already, and which sampling applies and why. REQUEST is a file with the
JSON body, or - for the standard input.

  mmserve explain request.json --url http://localhost:8000
  mmserve explain request.json --model llava"""
_PATIENCE_S = 10.0
_RENDER = "/v1/chat/completions/render"
_STORED = {"absent": "not in the arena", "bytes": "bytes in the arena", "embedding": "embedding in the arena"}


def add_explain(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "explain",
        help="say what a request becomes: prompt, pictures, sampling",
        description=_DESCRIPTION,
        epilog="The key of --url is read from MMSERVE_API_KEY or OPENAI_API_KEY.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("request", metavar="REQUEST", help="file with the body of a chat completion, or -")
    parser.add_argument("--url", help="a running mmserve, with or without /v1; default: start one")
    parser.add_argument("--model", help="of the server that is started: packaged name, directory, or hub id [llava]")
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")


def explain(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if the server refuses the request. Raises StartupError."""
    # Imported here: these would slow down --help.
    from mmserve.client.completions import ServerError
    from mmserve.client.own_server import own_server

    if arguments.url and arguments.model:
        raise StartupError("--model is for a server that is started: leave it out, or leave out --url")
    body = _read(arguments.request)
    key = os.environ.get("MMSERVE_API_KEY") or os.environ.get("OPENAI_API_KEY")
    with contextlib.ExitStack() as stack:
        if arguments.url:
            url = arguments.url.rstrip("/").removesuffix("/v1")
        else:
            server = stack.enter_context(own_server(arguments.model or "llava"))
            url, key = server.url, server.api_key
        try:
            found = asyncio.run(_ask(url, key, body))
        except ServerError as error:
            print(f"mmserve: {error}", file=sys.stderr)
            return 1
    print(json.dumps(found) if arguments.json else render(found))
    return 0


def _read(place: str) -> dict[str, Any]:
    try:
        body = json.loads(sys.stdin.read() if place == "-" else Path(place).read_text())
    except (OSError, ValueError) as error:
        raise StartupError(f"{place}: {error}") from None
    if not isinstance(body, dict):
        raise StartupError(f"{place}: the body of a chat completion is a JSON object")
    return body


async def _ask(url: str, key: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
    """The server's answer. Raises ServerError."""
    from mmserve.client.completions import ServerError, refusal
    from mmserve.client.posts import PostClient

    async with PostClient(url, key, _PATIENCE_S) as client:
        reply = await client.post(_RENDER, json.dumps(body).encode())
        if reply.status != 200:
            raise ServerError(refusal(reply.status, reply.content))
        found: dict[str, Any] = json.loads(reply.content)
    return found


def render(found: Mapping[str, Any]) -> str:
    """The answer as text for a terminal."""
    from mmserve.cli.chat.answer import printable

    images = found["images"]
    cached = f"{found['cached_tokens']} of them in the prefix cache"
    lines = [f"{found['model']}: {found['num_tokens']} tokens of {found['max_model_len']}, {cached}", "", "prompt"]
    turns = {turn["start"]: turn for turn in found["turns"]}
    for part in found["parts"]:
        if part["start"] in turns:
            lines.append(f"  -- {_heading(turns[part['start']])}")
        text = part.get("text")
        if text is None:
            image = images[part["image"]]
            size, stored = f"{image['width']}x{image['height']}", _STORED[image["stored"]]
            text = f"[{part['tokens']} x image {part['image']}, {size}, {image['key'][:8]}, {stored}]"
        lines += [f"  {part['start']:>6}  {line}" for line in printable(text).split("\n")]
    if images:
        lines += ["", *aligned(_table(images))]
    sampling = [("sampling", "value", "from")]
    sampling += [(name, json.dumps(one["value"]), one["source"]) for name, one in found["sampling"].items()]
    lines += ["", *aligned(sampling)]
    return "\n".join(lines)


def _heading(turn: Mapping[str, Any]) -> str:
    named = [f"{index}, {role}" for index, role in zip(turn["messages"], turn["roles"], strict=True)]
    return f"{'message' if len(named) == 1 else 'messages'} {'; '.join(named)}" if named else "of the template alone"


def _table(images: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("image", "pixels", "tokens", "grids (time x height x width)", "now", "key")]
    for number, image in enumerate(images):
        size, stored = f"{image['width']}x{image['height']}", _STORED[image["stored"]]
        rows.append((str(number), size, str(image["tokens"]), _grids(image["grids"]), stored, image["key"]))
    return rows


def _grids(grids: list[list[int]]) -> str:
    shown = ", ".join("x".join(map(str, grid)) for grid in grids[:4])
    return shown + (f", and {len(grids) - 4} more" if len(grids) > 4 else "")
