"""A multi-process server for vision-language models. ``from mmserve import LLM`` uses one without HTTP clients.

Importing this package imports nothing else; what it offers is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmserve.client.completions import ServerError
    from mmserve.client.offline.answer import Answer
    from mmserve.client.offline.async_llm import AsyncLLM
    from mmserve.client.offline.llm import LLM

__all__ = ["LLM", "Answer", "AsyncLLM", "ServerError"]
_MODULES = {
    "LLM": "mmserve.client.offline.llm",
    "Answer": "mmserve.client.offline.answer",
    "AsyncLLM": "mmserve.client.offline.async_llm",
    "ServerError": "mmserve.client.completions",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mmserve' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
