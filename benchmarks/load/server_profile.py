"""Asks a server before it is measured: its model's name, how many tokens a word is, whether it takes images."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass

from benchmarks.load.measure import RequestOptions, sent
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload
from mmserve.cli.bench.client import Record

_FEW_WORDS, _MANY_WORDS = 8, 136
_ANSWER_WITHIN_S = 10.0


@dataclass(frozen=True)
class ServerProfile:
    """``tokens_per_word``: of the generated prompts; 1 if the server does not report token counts."""

    tokens_per_word: float
    takes_pictures: bool


def served_model(url: str, api_key: str | None) -> str:
    """The first model that /v1/models lists. Raises OSError; LookupError or ValueError if the reply is no such list."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=_ANSWER_WITHIN_S
    ) as reply:
        return str(json.load(reply)["data"][0]["id"])


def profile_of(target: Target, request_options: RequestOptions) -> ServerProfile:
    """Send three short requests. Raises ConnectionError if a request without a picture fails."""
    few, many = (_answered(target, count, request_options) for count in (_FEW_WORDS, _MANY_WORDS))
    counted = (many.prompt_tokens - few.prompt_tokens) / (_MANY_WORDS - _FEW_WORDS)
    picture = _asked(target, Workload("picture", 1, 1, 1, 1, images=1, image_size=(64, 64)), request_options)
    return ServerProfile(tokens_per_word=counted or 1.0, takes_pictures=not picture.error)


def _answered(target: Target, num_words: int, request_options: RequestOptions) -> Record:
    record = _asked(
        target, Workload("words", concurrency=1, requests=1, prompt_words=num_words, output_tokens=1), request_options
    )
    if record.error:
        raise ConnectionError(f"{target.url}: {record.error}")
    return record


def _asked(target: Target, load: Workload, request_options: RequestOptions) -> Record:
    (record,), _ = sent(target, load, 0, request_options)
    return record
