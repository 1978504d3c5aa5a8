"""Sampling defaults from a checkpoint's generation_config.json, for fields that a request leaves out.

Only keys that the file sets are used; Hugging Face's implicit defaults (top_k 50, greedy) are not.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec

logger = logging.getLogger(__name__)


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values of fields that a request leaves out, as in SamplingParams."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 0
    """Of chat completions and Responses. 0: the rest of the context."""


class _GenerationConfig(msgspec.Struct, frozen=True):
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = msgspec.field(name="max_new_tokens", default=None)


def read_sampling_defaults(checkpoint: str) -> SamplingDefaults:
    """Defaults of a checkpoint directory. Without a readable generation_config.json: SamplingDefaults()."""
    path = Path(checkpoint) / "generation_config.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_GenerationConfig)
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("ignored %s: %s", path, error)
        return SamplingDefaults()
    given = {name: value for name, value in msgspec.structs.asdict(found).items() if value is not None}
    if given.pop("do_sample", True) is False:
        given["temperature"] = 0.0
    return msgspec.convert(given, SamplingDefaults)
