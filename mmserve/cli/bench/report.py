"""A report of runs: as lines for a terminal, and as one HTML file without scripts, which loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from mmserve.cli.bench.bars import Bar, bars
from mmserve.cli.bench.client import Record
from mmserve.cli.bench.figures import samples
from mmserve.cli.bench.stages import REST, stages_ms
from mmserve.cli.bench.svg import Series, chart

_COLUMNS = (
    ("completed", "ok"),
    ("failed", "failed"),
    ("request_throughput", "requests/s"),
    ("request_goodput", "good/s"),
    ("output_throughput", "tokens/s"),
    ("p50_ttft_ms", "TTFT p50"),
    ("p99_ttft_ms", "p99"),
    ("p50_tpot_ms", "TPOT p50"),
    ("p99_tpot_ms", "p99"),
    ("p50_itl_ms", "ITL p50"),
    ("p99_itl_ms", "p99"),
    ("p50_e2el_ms", "E2E p50"),
    ("p99_e2el_ms", "p99"),
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff; }
table { border-collapse: collapse; } td, th { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
svg { width: 100%; } .grid { stroke: #ddd; } text { font-size: 11px; fill: #444; }
.late { border: 3px solid #b3261e; background: #fdecea; padding: 0 1rem; font-weight: 600; }
.title { font-size: 14px; font-weight: 600; fill: #222; }
"""


@dataclass(frozen=True)
class Run:
    """``label``: what was measured. ``level``: its rate or concurrency. ``figures``: medians over repeats; ``records``
    and ``server``: of the last repeat. ``late``: why the figures are the client's and not the server's, or empty."""

    label: str
    server: str
    level: float
    figures: Mapping[str, Any]
    records: Sequence[Record]
    late: str = ""


def rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A table: a heading, and a row for each run."""
    columns = [column for column in _COLUMNS if any(column[0] in run.figures for run in runs)]
    heading = ("times in ms", *(title for _, title in columns))
    return [heading, *((_label(run), *(_cell(run.figures.get(name, math.nan)) for name, _ in columns)) for run in runs)]


def warnings(runs: Sequence[Run]) -> list[str]:
    """A line for each run whose figures are not the server's."""
    return [f"{run.label}: these are NOT the server's figures: the client {run.late}" for run in runs if run.late]


def errors(runs: Sequence[Run]) -> list[str]:
    """Different errors, each with how often it came."""
    counts: dict[str, int] = {}
    for record in (record for run in runs for record in run.records if record.error):
        counts[record.error] = counts.get(record.error, 0) + 1
    return [f"{count} x {error}" for error, count in sorted(counts.items(), key=lambda item: -item[1])]


def html(title: str, about: Sequence[str], runs: Sequence[Run]) -> str:
    """The whole report. Every text is escaped; what a server answered may be in it."""
    heading, *lines = rows(runs)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>\n" for line in lines)
    failures = "".join(f"<li>{escape(error)}</li>" for error in errors(runs))
    banner = "".join(f"<p>{escape(line)}</p>" for line in warnings(runs))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
{f'<div class="late" role="alert">{banner}</div>' if banner else ""}
{"".join(f"<p>{escape(line)}</p>" for line in about)}
<table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table>
<p>Times in ms, as vLLM's benchmark defines them.</p>
{f"<h2>Errors</h2><ul>{failures}</ul>" if failures else ""}
{_stages(runs)}
<div class="charts">
{chr(10).join(_charts(runs))}
</div></body></html>
"""


def _stages(runs: Sequence[Run]) -> str:
    """A bar for each run with the stages of its answers, and the same as a table."""
    told = {run.label: found for run in runs if (found := stages_ms(run.records))}
    if not told:
        return "<p>No chart of stages: no server says where the time of its answers goes, as mmserve does.</p>"
    names = list(dict.fromkeys(name for found in told.values() for name in found))
    head = "".join(f"<th>{escape(cell)}</th>" for cell in ("mean ms", *names))
    body = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{_cell(found.get(name, 0.0))}</td>' for name in names)}</tr>\n"
        for label, found in told.items()
    )
    silent = ", ".join(run.label for run in runs if run.label not in told)
    return f"""<h2>Where the time of an answer goes</h2>
{bars("Stages of an answer, mean", "ms", [Bar(label, found) for label, found in told.items()])}
<table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table>
<p>Stages as the server times them; {REST}: network, client, and what the server does not time.
{escape(f"Without stages, since the server gives none: {silent}." if silent else "")}</p>"""


def _charts(runs: Sequence[Run]) -> list[str]:
    servers = list(dict.fromkeys(run.server for run in runs))
    made = []
    if len(runs) > len(servers):  # several levels
        for figure, what in (("p50_e2el_ms", "E2E p50, ms"), ("p99_ttft_ms", "TTFT p99, ms")):
            series = [
                Series(name, [(r.figures["output_throughput"], r.figures[figure]) for r in runs if r.server == name])
                for name in servers
            ]
            made.append(chart(f"{what} against throughput", "tokens/s", what, series, dots=True))
    for metric, title in (("ttft", "TTFT"), ("itl", "ITL"), ("e2el", "E2E")):
        made.append(chart(f"{title}: share of values up to", "ms", "share", [_ecdf(run, metric) for run in runs]))
    timelines = [Series(run.label, _in_flight(run.records)) for run in runs]
    made.append(chart("Requests in flight", "s", "requests", timelines))
    return made


def _ecdf(run: Run, metric: str) -> Series:
    values = sorted(samples([record for record in run.records if not record.error])[metric])
    return Series(run.label, [(value, (place + 1) / len(values)) for place, value in enumerate(values)])


def _in_flight(records: Sequence[Record]) -> list[tuple[float, float]]:
    changes = [(record.start_s, 1) for record in records] + [(record.start_s + record.end_s, -1) for record in records]
    count, points = 0, []
    for time_s, change in sorted(changes):
        points.append((time_s, float(count)))
        count += change
        points.append((time_s, float(count)))
    return points


def _label(run: Run) -> str:
    return f"{run.label} (client late)" if run.late else run.label


def _cell(value: float) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
