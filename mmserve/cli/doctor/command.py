"""``mmserve doctor``: its flags, the order of the checks, and how findings are printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mmserve.config.options import OPTIONS, OptionError

if TYPE_CHECKING:
    from mmserve.cli.doctor.finding import Check, Finding

_EPILOG = """\
Exit code 0 without failures, 1 with one (with --strict also with a warning). With --url the server's key is read from
MMSERVE_API_KEY; one text and one picture are asked."""
_COLOURS = {"ok": "\x1b[32m", "warning": "\x1b[33m", "failure": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def add_doctor(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine and installation, or a running server",
        description="Check this machine and installation, or with --url a running server, and say what to do.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="check the server there, with or without /v1")
    parser.add_argument(
        "--port", type=int, default=OPTIONS["port"].default, help="port that a server will use [%(default)s]"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this check alone; may be repeated")
    parser.add_argument("--strict", action="store_true", help="a warning counts as a failure")
    parser.add_argument("--json", action="store_true", help="print JSON")


def doctor(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if something is wrong. Raises OptionError for an unknown check."""
    from mmserve.cli.doctor.finding import run_checks

    chosen = _chosen(arguments)
    findings = []
    for finding in run_checks(chosen):
        findings.append(finding)
        if not arguments.json:
            print(render(finding, max(len(check.name) for check in chosen), colours=_has_colours()), flush=True)
    if arguments.json:
        print(_as_json(findings))
    bad = {"failure", "warning"} if arguments.strict else {"failure"}
    return 1 if any(finding.status in bad for finding in findings) else 0


def _chosen(arguments: argparse.Namespace) -> list[Check]:
    if arguments.url:
        from mmserve.cli.doctor.server_checks import RunningServer

        checks = RunningServer(arguments.url, os.environ.get("MMSERVE_API_KEY")).checks()
    else:
        from mmserve.cli.doctor import machine_checks, software_checks

        checks = [*machine_checks.checks(arguments.port), *software_checks.checks()]
    if not arguments.only:
        return checks
    names = [check.name for check in checks]
    for name in arguments.only:
        if name not in names:
            raise OptionError(f"--only {name}: there is no such check, only {', '.join(names)}")
    return [check for check in checks if check.name in arguments.only]


def render(finding: Finding, width: int, *, colours: bool) -> str:
    """One or two lines for a terminal."""
    status = f"{finding.status:<7}"
    shown = f"{_COLOURS[finding.status]}{status}{_PLAIN}" if colours else status
    line = f"{shown}  {finding.name:<{width}}  {finding.found}"
    return f"{line}\n{'':<{width + 11}}-> {finding.do}" if finding.do else line


def _as_json(findings: Iterable[Finding]) -> str:
    import msgspec

    return json.dumps([msgspec.to_builtins(finding) for finding in findings], ensure_ascii=False)


def _has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
