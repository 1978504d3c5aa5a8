"""``mmserve chaos``: an operator's drill against a running server of this machine."""

from __future__ import annotations

import argparse
import os
from typing import Any

_DESCRIPTION = """\
Stream answers from a server on this machine while its processes are killed, frozen and sent garbage, one after another,
and compare every answer with that of an undisturbed run. A server with --fault-injection also has errors inside its
processes. Never use it on a server that others use."""


def add_chaos(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "chaos",
        help="drill: kill and freeze processes of a server under load, and compare all answers",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=900.0, help="duration of the part with faults (%(default)g)")
    parser.add_argument("--clients", type=int, default=64, help="streams at once (%(default)d)")
    parser.add_argument("--questions", type=int, default=48, help="different requests (%(default)d)")
    parser.add_argument("--seed", type=int, default=1, help="of questions and of random faults (%(default)d)")
    parser.add_argument("--no-pictures", action="store_true", help="for a text model")
    parser.add_argument("--faults", metavar="A,B,...", help="only these, as in kill,error (all)")
    parser.add_argument("--api-key", default=os.environ.get("MMSERVE_API_KEY"), help="default: MMSERVE_API_KEY")


def chaos(arguments: argparse.Namespace) -> int:
    """Run the command; the exit code is 1 if the drill found something. Raises StartupError."""
    # Imported here: these libraries would slow down --help.
    from mmserve.cli.chaos.drill import Plan, run
    from mmserve.cli.chaos.questions import default_questions
    from mmserve.cli.chaos.report import render
    from mmserve.cli.chaos.schedule import chosen

    plan = Plan(arguments.seconds, arguments.clients, arguments.seed, chosen(arguments.faults))
    questions = default_questions(arguments.questions, pictures=not arguments.no_pictures, seed=arguments.seed)
    result = run(arguments.url.rstrip("/"), plan, questions, lambda text: print(text, flush=True), arguments.api_key)
    print(render(result))
    return 0 if result.passed else 1
