"""``mmserve status``: processes, load and phase of a running server, from its health port."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from mmserve.cli.tables import aligned
from mmserve.runtime.errors import StartupError

_TIMEOUT_S = 5.0
_INTERVAL_S = 1.0
"""Between two looks; tokens a second are counted over this time."""
_CLEAR = "\x1b[H\x1b[2J"
_MIB = 1 << 20
Report = Mapping[str, Any]


def add_status(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "status", help="show processes and load of a running server", description="Show what a running server does."
    )
    parser.add_argument("--url", help="health port of the server, as its ready line shows it; default: look for it")
    parser.add_argument("--watch", action="store_true", help="show it again every second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print JSON, one line a look")


def status(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if the server does not serve. Raises StartupError if none answers."""
    url = arguments.url or _find()
    before = _ask(url)
    try:
        while True:
            time.sleep(_INTERVAL_S)
            now = _ask(url)
            report = {**now, "tokens_per_s": tokens_per_s(before, now)}
            text = json.dumps(report) if arguments.json else render(report)
            print(text if arguments.json or not arguments.watch else _CLEAR + text, flush=True)
            if not arguments.watch:
                return 0 if report["status"] == "ok" else 1
            before = now
    except KeyboardInterrupt:
        return 0


def tokens_per_s(before: Report, now: Report) -> float | None:
    """Tokens generated a second between two reports; None without figures, or if the server was restarted."""
    if not before["load"] or not now["load"] or now["time_s"] <= before["time_s"]:
        return None
    tokens = now["load"]["generation_tokens"] - before["load"]["generation_tokens"]
    return round(tokens / (now["time_s"] - before["time_s"]), 1) if tokens >= 0 else None


def render(report: Report) -> str:
    """The report as text for a terminal."""
    supervisor, epochs = report["supervisor"], report["epochs"]
    rows: list[tuple[str, ...]] = [("process", "pid", "state", "uptime", "restarts", "heartbeat", "work")]
    rows.append(("supervisor", str(supervisor["pid"]), "", _duration(supervisor["uptime_s"]), "", "", ""))
    rows += [_row(process) for process in report["processes"].values()]
    lines = [
        f"{report['phase']} ({report['status']})" + "".join(f"; {reason}" for reason in report["reasons"]),
        "",
        *aligned(rows),
        "",
        f"epochs: engine {epochs['engine']}, visual {' '.join(map(str, epochs['visual'])) or '-'}, "
        f"cache {epochs['cache']}",
        *_load(report),
    ]
    return "\n".join(lines)


def _row(process: Report) -> tuple[str, ...]:
    age_s = process["heartbeat_age_s"]
    stalled_s = process["without_progress_s"]
    work = f"no progress for {stalled_s:.0f} s" if stalled_s >= 5 else "busy" if process["busy"] else "idle"
    return (
        process["title"],
        str(process["pid"] or "-"),
        process["state"],
        _duration(process["uptime_s"]),
        str(process["restarts"]),
        "-" if age_s is None else f"{age_s:.1f} s ago",
        work if process["state"] == "ready" else "",
    )


def _load(report: Report) -> list[str]:
    load, rate = report["load"], report["tokens_per_s"]
    if load is None:
        return ["load: the metrics server does not answer"]
    used, size = load["arena_used_bytes"] / _MIB, load["arena_bytes"] / _MIB
    return [
        f"requests in flight: {load['requests_in_flight']:.0f}; sequences running: {load['sequences_running']:.0f}, "
        f"waiting: {load['sequences_waiting']:.0f}; KV cache: {load['kv_cache_usage']:.0%}",
        f"images waiting: {load['images_waiting']:.0f}, decoding: {load['images_decoding']:.0f}; "
        f"arena: {used:.0f} of {size:.0f} MiB in {load['arena_slots']:.0f} slots, {load['leases']:.0f} leases",
        f"tokens/s: {'-' if rate is None else rate}; generated since the start: {load['generation_tokens']:.0f}",
    ]


def _duration(seconds: float) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    if hours >= 24:
        return f"{hours // 24:.0f} d {hours % 24:.0f} h"
    return f"{hours:.0f} h {minutes % 60:.0f} min" if hours else f"{minutes:.0f} min {seconds % 60:.0f} s"


def _ask(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/status", timeout=_TIMEOUT_S) as response:
            report = json.load(response)
    except (OSError, ValueError) as error:
        raise StartupError(
            f"no status from {url}: {error}; --url is the health port, which the ready line shows"
        ) from None
    if not isinstance(report, dict) or "processes" not in report:
        raise StartupError(f"{url} is not the health port of mmserve: the ready line shows it")
    return report


def _find() -> str:
    """The health port of the only server of this user. Raises StartupError if there is none, or more than one."""
    # Imported here: it would slow down --help.
    from mmserve.supervisor.startup.run_directory import health_urls

    urls = [url for url in health_urls() if _answers(url)]
    if not urls:
        raise StartupError("no running server was found: name its health port with --url")
    if len(urls) > 1:
        raise StartupError(f"several servers run: name one with --url: {', '.join(urls)}")
    return urls[0]


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/live", timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
