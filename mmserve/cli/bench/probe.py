"""What a run needs to know of a server beforehand: its model, its tokens, whether it says where time goes."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmserve.cli.bench import plan
from mmserve.cli.bench.client import Record, run
from mmserve.runtime.errors import StartupError

_ANSWER_WITHIN_S = 10.0
_FEW_WORDS, _MANY_WORDS = 8, 136


@dataclass(frozen=True)
class Target:
    """A server under load."""

    name: str
    url: str
    model: str
    api_key: str | None = None


def names(urls: Sequence[str]) -> list[str]:
    """Of servers to measure. One that is compared with itself, which shows how much figures differ by chance, is
    numbered."""
    if len(urls) == 1:
        return ["server"]
    return [f"{url} ({place})" if urls.count(url) > 1 else url for place, url in enumerate(urls, 1)]


def served_model(url: str, api_key: str | None) -> str:
    """The first model that a server lists. Raises StartupError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        request = urllib.request.Request(f"{url}/v1/models", headers=headers)
        with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN_S) as reply:
            return str(json.load(reply)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StartupError(f"{url} does not say which models it serves ({error}); name one with --model") from None


def tokens_per_word(target: Target, load: plan.Load, timeout_s: float) -> float:
    """Of random words, as the server counts tokens; 1 if it does not. Raises StartupError if it does not answer."""
    counts = []
    for count in (_FEW_WORDS, _MANY_WORDS):
        record = _asked(target, replace(load, words=count), timeout_s)
        if record.error:
            raise StartupError(f"{target.url}: {record.error}")
        counts.append(record.prompt_tokens)
    return (counts[1] - counts[0]) / (_MANY_WORDS - _FEW_WORDS) or 1.0


def gives_stages(target: Target, load: plan.Load, timeout_s: float) -> bool:
    """Whether the server says where the time of an answer went. Others refuse or ignore the question."""
    record = _asked(target, replace(load, words=_FEW_WORDS, timed=True), timeout_s)
    return bool(record.stages_ms) and not record.error


def _asked(target: Target, load: plan.Load, timeout_s: float) -> Record:
    """One question of random words, answered with one token."""
    short = replace(load, requests=1, output_tokens=1, images=0, prompts=())
    (record,), _ = asyncio.run(run(target.url, plan.bodies(short, target.model, 0), 1, timeout_s, target.api_key))
    return record
