"""``import mmserve``: light, and complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mmserve


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import mmserve; dir(mmserve)\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == ["mmserve"]


def test_the_offline_api_does_not_import_torch() -> None:
    code = "import sys\nfrom mmserve import LLM, AsyncLLM, Answer, ServerError\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_is_found() -> None:
    for name in mmserve.__all__:
        assert getattr(mmserve, name).__name__ == name
        assert name in dir(mmserve)
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = mmserve.LMM
