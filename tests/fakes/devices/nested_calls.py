"""Calls of one kernel function by another in Triton's interpreter, in less time.

At each call, nested ones included, the interpreter looks through all of ``triton.language`` for functions to replace by
its own. Within a launch they are replaced already.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def quick_nested_calls() -> Iterator[None]:
    """Within it the interpreter looks once a launch."""
    import triton.language as tl  # here: it is of Linux alone
    from triton.runtime import interpreter

    replace = interpreter._patch_lang

    def replace_once(function: Any) -> Any:
        modules = [each for each in function.__globals__.values() if inspect.ismodule(each) and each in (tl, tl.core)]
        if any(tl.core.is_builtin(module.load) for module in modules):
            return replace(function)
        return interpreter._LangPatchScope()

    with patch.object(interpreter, "_patch_lang", replace_once):
        yield
