from __future__ import annotations

from importlib.util import find_spec

if find_spec("triton") is None:  # of Linux alone
    collect_ignore_glob = ["test_*.py"]
