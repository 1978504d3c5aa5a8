"""Only ``platforms/`` asks where a model runs: other modules test no device, dtype, weight format or platform class."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mmserve.model_backend

ROOT = Path(mmserve.model_backend.__path__[0])
FORBIDDEN = {
    "a device test": r"\.is_cuda|\.is_cpu|\.is_mkldnn|device\.type|cuda\.is_available",
    "a dtype test": r"dtype (is|==|!=|in) |dtype is not ",
    "a weight's form guessed from its shape": r"weight\.(dim\(\)|ndim)|packed\.(dim\(\)|ndim)",
    "the class of a platform's part": r"isinstance\([^)]*(Attention|Platform|Ops|Executor|KernelLinear|PlainLinear)",
    "an import of one platform": r"import.*platforms\.(cpu|cuda|reference)\b|from .*platforms\.(cpu|cuda|reference)\b",
}
ALLOWED = {
    "a device test": {
        "distributed.py",  # gloo or nccl
    }
}


def sources() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "platforms"]


@pytest.mark.parametrize("name", list(FORBIDDEN))
def test_no_module_outside_platforms_contains(name: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        if str(path.relative_to(ROOT)) not in ALLOWED.get(name, ())
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(FORBIDDEN[name], line)
    }
    assert not found


def test_there_are_modules_to_search() -> None:
    assert len(sources()) > 20
