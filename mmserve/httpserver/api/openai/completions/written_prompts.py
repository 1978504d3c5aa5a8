"""The written prompts of a body: ``prompt`` of completions, ``input`` of embeddings."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mmserve.httpserver.conversation import WrittenPrompt
from mmserve.runtime.errors import InvalidRequest

MAX_PROMPTS = 256
"""In one request."""

WrittenInput = str | list[str | int | list[int]]
"""A text, several texts, the token ids of one prompt, or those of several."""


def read_written_prompts(
    value: WrittenInput | None, param: str, *, add_special_tokens: bool = True
) -> tuple[WrittenPrompt, ...]:
    """One WrittenPrompt for each prompt in ``value``; null is the empty text. Raises InvalidRequest naming ``param``.

    Whether the model has the token ids is checked when the prompt is built.
    """
    if value is None or isinstance(value, str):
        return (WrittenPrompt(value or "", param, add_special_tokens),)
    if not value:
        raise InvalidRequest(f"{param} has no prompt", param=param)
    if isinstance(value[0], int):
        return (WrittenPrompt(_ids(value, param), param, add_special_tokens),)
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"{param} may have {MAX_PROMPTS} prompts", param=param)
    return tuple(
        WrittenPrompt(_content(one, f"{param}[{index}]", type(value[0])), f"{param}[{index}]", add_special_tokens)
        for index, one in enumerate(value)
    )


def _content(one: str | int | list[int], param: str, type_: type) -> str | array[int]:
    if not isinstance(one, type_) or isinstance(one, int):
        raise InvalidRequest("prompts must be all texts, or all lists of token ids", param=param)
    return one if isinstance(one, str) else _ids(one, param)


def _ids(ids: Sequence[object], param: str) -> array[int]:
    try:
        return array("q", ids)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        raise InvalidRequest("a list of token ids must hold integers that the vocabulary has", param=param) from None
