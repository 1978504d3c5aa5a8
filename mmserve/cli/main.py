"""The command line ``mmserve``: dispatches to one module a command. Imports nothing heavy, so that --help is fast."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from mmserve.cli.batch import add_batch, batch
from mmserve.cli.bench.command import add_bench, bench
from mmserve.cli.chaos.command import add_chaos, chaos
from mmserve.cli.chat.command import add_chat, chat
from mmserve.cli.completion import add_completion, completion
from mmserve.cli.doctor.command import add_doctor, doctor
from mmserve.cli.encoder import add_encoder, encoder
from mmserve.cli.explain import add_explain, explain
from mmserve.cli.front import add_front, front
from mmserve.cli.models import add_models, models
from mmserve.cli.plan.command import add_plan, plan
from mmserve.cli.serve import add_serve, serve
from mmserve.cli.status import add_status, status
from mmserve.config.options import OptionError
from mmserve.runtime.errors import StartupError

USAGE_ERROR = 2
_COMMANDS = {
    "batch": batch,
    "bench": bench,
    "chaos": chaos,
    "chat": chat,
    "doctor": doctor,
    "encoder": encoder,
    "explain": explain,
    "front": front,
    "models": models,
    "plan": plan,
    "status": status,
}
"""Those that take no further arguments than their parser knows."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the process's exit code."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except OptionError as error:
        print(f"mmserve: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except StartupError as error:
        print(f"mmserve: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Who read the output, as head does, has seen enough. Python would complain when it flushes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: Sequence[str]) -> int:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.command is None:
        parser.print_help()
        return USAGE_ERROR
    if arguments.command == "serve":
        return serve(arguments, unknown)
    if arguments.command == "completion" and not unknown:
        return completion(arguments.shell, parser)
    if unknown:
        raise OptionError(f"unknown argument {unknown[0]} (see mmserve {arguments.command} --help)")
    return _COMMANDS[arguments.command](arguments)


def _parser() -> _Parser:
    parser = _Parser(prog="mmserve", description="A multi-process server for vision-language models.")
    parser.add_argument("--version", action="version", version=f"mmserve {metadata.version('mmserve')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    add_serve(commands)
    add_chat(commands)
    add_batch(commands)
    add_bench(commands)
    add_doctor(commands)
    add_encoder(commands)
    add_explain(commands)
    add_front(commands)
    add_models(commands)
    add_plan(commands)
    add_chaos(commands)
    add_status(commands)
    add_completion(commands)
    return parser
