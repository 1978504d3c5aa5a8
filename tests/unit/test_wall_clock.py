"""Durations are measured on the monotonic clock: the time of day may jump by hours when it is set.

Only what is shown to people may be the time of day.
"""

from __future__ import annotations

import ast
from pathlib import Path

import mmserve

ROOT = Path(mmserve.__file__).parent
WALL_CLOCK = {
    ("time", name) for name in ("time", "time_ns", "ctime", "localtime", "gmtime", "strftime", "CLOCK_REALTIME")
} | {(name, method) for name in ("datetime", "date") for method in ("now", "utcnow", "today")}
SHOWN = {
    "cli/doctor/machine_checks.py",  # whether the date is set at all
    "httpserver/batch_store/store.py",  # "created_at", and how long a file or a batch is kept over restarts
    "cli/bench/command.py",  # when a run was made
    "httpserver/api/models.py",  # "created" of a model
    "cluster/front/request/forwarded.py",  # "created" of an answer
    "httpserver/call.py",
    "httpserver/api/openai/responses/compact.py",  # "created_at"
    "httpserver/api/openai/responses/events/fold.py",  # "completed_at"
    "httpserver/api/openai/responses/parse.py",
    "httpserver/prompt/template/chat_template.py",  # templates may say today's date
    "monitoring/metrics/state_page.py",  # when a sample of the last hour was taken
    "httpserver/request/tracing/otlp_export.py",  # when a span began
    "router/kv_events/feed.py",  # when a batch of events was made
    "cache_server/embedding_events.py",
}


def _uses(path: Path) -> bool:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    attributes = {
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    names = {(node.module, one.name) for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names}
    return bool((attributes | names) & WALL_CLOCK)


def test_the_time_of_day_is_only_shown() -> None:
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if _uses(path)}
    assert found == SHOWN
