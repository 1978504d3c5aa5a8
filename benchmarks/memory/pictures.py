"""Request bodies with one large picture each. They are made once and changed slightly before each sending."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.load.workload import Workload, bodies

Body = dict[str, Any]
IGNORE_EOS: Mapping[str, object] = {"ignore_eos": True}
"""Every answer has the requested length."""
_NUMBER_NBYTES = 6
"""Eight characters of base64."""


class Pictures:
    """``count`` chat bodies, a distinct photo-like JPEG of ``side`` x ``height`` (``side`` x ``side``) each, from a
    seed; ``extra``: fields of every one."""

    def __init__(
        self, count: int, side: int, seed: int, *, height: int | None = None, extra: Mapping[str, object] = IGNORE_EOS
    ) -> None:
        size = (side, height or side)
        load = Workload("pictures", count, count, prompt_words=4, output_tokens=1, images=1, image_size=size)
        self._bodies = [_padded(body) for body in bodies(load, "", seed, extra)]
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def jpeg_nbytes(self) -> float:
        """Average size of a picture."""
        return sum(len(_url(body)["url"]) for body in self._bodies) * 3 / 4 / len(self._bodies)

    def bodies(self, model: str, tokens: int, count: int | None = None) -> list[Body]:
        """``count`` bodies (one per picture by default) with content that no server has seen."""
        fresh = self.endless(model, tokens)
        return [next(fresh) for _ in range(len(self) if count is None else count)]

    def endless(self, model: str, tokens: int) -> Iterator[Body]:
        """The pictures repeatedly, each with a new number appended to the JPEG, which makes its content new."""
        for body in itertools.cycle(self._bodies):
            number = base64.b64encode(next(self._numbers).to_bytes(_NUMBER_NBYTES, "big")).decode()
            yield body | {
                "model": model,
                "max_tokens": tokens,
                "messages": [_numbered(message, number) for message in body["messages"]],
            }


def _url(body: Body) -> dict[str, str]:
    found: dict[str, str] = next(part["image_url"] for part in body["messages"][0]["content"] if "image_url" in part)
    return found


def _padded(body: Body) -> Body:
    """Pad the JPEG to a multiple of three bytes, so that base64 text can be appended. Decoders ignore bytes behind the
    end."""
    head, _, data = _url(body)["url"].partition(",")
    jpeg = base64.b64decode(data)
    jpeg += bytes(-len(jpeg) % 3)
    _url(body)["url"] = f"{head},{base64.b64encode(jpeg).decode()}"
    return body


def _numbered(message: Body, number: str) -> Body:
    parts = [
        part | {"image_url": {"url": part["image_url"]["url"] + number}} if "image_url" in part else part
        for part in message["content"]
    ]
    return message | {"content": parts}
