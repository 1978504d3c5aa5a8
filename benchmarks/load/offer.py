"""Asks a server before it is measured: its model's name, how many tokens a word is, whether it takes images."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass

from benchmarks.load.client import Record
from benchmarks.load.measure import Asking, sent
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload

_FEW_WORDS, _MANY_WORDS = 8, 136
_ANSWER_WITHIN_S = 10.0


@dataclass(frozen=True)
class Offer:
    """``tokens_per_word``: of the prompts that are sent; 1 where a server does not count them."""

    tokens_per_word: float
    takes_pictures: bool


def served_model(url: str, api_key: str | None) -> str:
    """The first that /v1/models names. Raises OSError, and LookupError or ValueError when that is no such list."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=_ANSWER_WITHIN_S
    ) as reply:
        return str(json.load(reply)["data"][0]["id"])


def offer_of(target: Target, asking: Asking) -> Offer:
    """Asks three short questions. Raises ConnectionError when one without a picture is not answered."""
    few, many = (_answered(target, count, asking) for count in (_FEW_WORDS, _MANY_WORDS))
    counted = (many.prompt_tokens - few.prompt_tokens) / (_MANY_WORDS - _FEW_WORDS)
    picture = _asked(target, Workload("picture", 1, 1, 1, 1, images=1, image_size=(64, 64)), asking)
    return Offer(tokens_per_word=counted or 1.0, takes_pictures=not picture.error)


def _answered(target: Target, num_words: int, asking: Asking) -> Record:
    record = _asked(
        target, Workload("words", concurrency=1, requests=1, prompt_words=num_words, output_tokens=1), asking
    )
    if record.error:
        raise ConnectionError(f"{target.url}: {record.error}")
    return record


def _asked(target: Target, load: Workload, asking: Asking) -> Record:
    (record,), _ = sent(target, load, 0, asking)
    return record
