"""The tables of several runs of vs_peers, which together are one of all loads and servers.

    python -m benchmarks.peers.pieces W2.json W4.json

A run of everything takes an hour. In pieces each has its peers beside mmserve: ratios are within a piece, and a load of
two pieces has two figures of mmserve. Figures that miss their target are bold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.load.report import Row, table
from benchmarks.peers.limits import SHARE, THROUGHPUT, check_limits
from benchmarks.peers.servers import MODES, OURS, PEERS

_MIXED = "W6"
_UNITS = {
    "tokens_per_s": "tokens/s",
    "requests_per_s": "requests/s",
    "pictures_per_s": "pictures/s",
    "ttft_p50_ms": "TTFT",
    "start_s": "start",
    "pss_mib": "PSS",
}
_TIMES = {"ttft_p50_ms": "TTFT p50 ms", "itl_p50_ms": "ITL p50 ms", "itl_p99_ms": "ITL p99 ms"}
_OF_SERVERS = {"start_s": "ready after s", "pss_mib": "PSS MiB after the load"}
Piece = Sequence[Row]
"""The measured rows of one run."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="that vs_peers wrote with --json")
    pieces = [measured(json.loads(file.read_text())["rows"]) for file in parser.parse_args().files]
    print(f"throughput (mmserve's over it)\n\n{table(throughput(pieces))}\n\ntargets\n\n{table(targets(pieces))}")
    for figure, title in (_TIMES | _OF_SERVERS).items():
        print(f"\n{title}\n\n{table(times(pieces, figure))}")


def measured(rows: Iterable[Row]) -> Piece:
    """Those of servers; the others are targets."""
    return [row for row in rows if "server" in row]


def throughput(pieces: Sequence[Piece]) -> list[Row]:
    """A row for each load and figure, a column for each server, with the ratio to it."""
    rows = list[Row]()
    for load, figures in THROUGHPUT.items():
        for figure in figures:
            cells: dict[str, list[str]] = {}
            for ours, row in _beside_ours(pieces, load):
                cell = f"{_cell(row, figure)} ({_number(ours, figure) / _number(row, figure):.3g})"
                cells.setdefault(str(row["server"]), []).append(_cell(row, figure) if row is ours else cell)
            if cells:
                shares = ", ".join(f"{_number(row, SHARE):.3g}" for row in _ours(pieces, load))
                rows.append({"load": f"{load} {_UNITS[figure]}"} | _columns(pieces, cells) | {SHARE: shares})
    return rows


def times(pieces: Sequence[Piece], figure: str) -> list[Row]:
    """A row for each load that has the figure, a column for each server."""
    rows = list[Row]()
    for load in THROUGHPUT:
        cells: dict[str, list[str]] = {}
        for _, row in _beside_ours(pieces, load):
            if figure not in row:
                continue
            cells.setdefault(str(row["server"]), []).append(_cell(row, figure))
        if cells:
            rows.append({"load": load} | _columns(pieces, cells))
    return rows


def targets(pieces: Sequence[Piece]) -> list[Row]:
    """A row for each load, a column for each peer: ratio, whose figure, and the target; bold if missed."""
    found: dict[str, dict[str, list[str]]] = {}
    for piece in pieces:
        mixed = [row for row in piece if row["load"] == _MIXED]
        for row in check_limits([row for row in piece if row["load"] != _MIXED], mixed):
            figure, _, server = str(row["figure"]).removesuffix("'s").partition(" over ")
            column = next((peer for peer, modes in MODES.items() if server in modes), "itself")
            cell = f"{_UNITS.get(figure, figure)} {float(str(row['got'])):.3g} x {server}, {row['target']}"
            cell = cell if row["met"] == "yes" else f"**{cell}**"
            found.setdefault(str(row["setting"]), {}).setdefault(column, []).append(cell)
    columns = (*MODES, "itself")
    return [
        {"load": load} | {column: "; ".join(found[load].get(column, [])) for column in columns}
        for load in sorted(found)
    ]


def _ours(pieces: Sequence[Piece], load: str) -> list[Row]:
    return [row for piece in pieces for row in piece if (row["load"], row["server"]) == (load, OURS)]


def _beside_ours(pieces: Sequence[Piece], load: str) -> Iterable[tuple[Row, Row]]:
    """Every row of the load, each with mmserve's of the same piece before it."""
    for piece in pieces:
        if ours := next(iter(_ours([piece], load)), None):
            yield from ((ours, row) for row in piece if row["load"] == load)


def _columns(pieces: Sequence[Piece], cells: Mapping[str, Sequence[str]]) -> Row:
    """Of the servers of all pieces, in the order of PEERS."""
    measured_servers = {row["server"] for piece in pieces for row in piece}
    names = (peer.name for peer in PEERS if peer.name in measured_servers)
    return {name: ", ".join(cells.get(name, [])) for name in names}


def _number(row: Row, figure: str) -> float:
    return float(str(row.get(figure, "nan")))


def _cell(row: Row, figure: str) -> str:
    value = _number(row, figure)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
