"""``mmserve serve`` and its flags, made from Config's fields. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

from msgspec import inspect

from mmserve.config.config import Config
from mmserve.config.options import OPTIONS, Option, OptionError, did_you_mean, resolve
from mmserve.runtime.errors import StartupError

USAGE_ERROR = 2
_METAVARS: dict[type[inspect.Type], str] = {
    inspect.IntType: "N",
    inspect.FloatType: "X",
    inspect.VarTupleType: "A,B,...",
}
_EPILOG = """\
Every flag can also be set by an environment variable, MMSERVE_ and its name (MMSERVE_MAX_NUM_SEQS=64), and in a
YAML or TOML file (max_num_seqs: 64). A flag wins over the environment, the environment over the file."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the process's exit code."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except OptionError as error:
        print(f"mmserve: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except StartupError as error:
        print(f"mmserve: error: {error}", file=sys.stderr)
        return 1


def _run(argv: Sequence[str]) -> int:
    if argv[:1] == ["bench"]:
        return _bench(argv[1:])
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.command is None:
        parser.print_help()
        return USAGE_ERROR
    if unknown:
        word = unknown[0].split("=")[0]
        raise OptionError(f"unknown argument {word}{did_you_mean(word, _flags())} (see mmserve serve --help)")
    flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    config = resolve(flags, os.environ, arguments.config)
    if arguments.print_config:
        print(render(config), end="")
        return 0
    # Imported here: the supervisor's libraries cost more than --help should take.
    from mmserve.supervisor.run import serve

    return serve(config)


def _bench(argv: Sequence[str]) -> int:
    try:
        # The benchmarks are in the repository and not in the package, as is the HTTP client they need.
        module = importlib.import_module("benchmarks.serve")
    except ImportError as error:
        raise StartupError(f"mmserve bench needs the repository, installed with make install: {error}") from None
    module.main(argv, prog="mmserve bench")
    return 0


def _parser() -> _Parser:
    parser = _Parser(prog="mmserve", description="A multi-process server for vision-language models.")
    parser.add_argument("--version", action="version", version=f"mmserve {metadata.version('mmserve')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    serve = commands.add_parser(
        "serve",
        help="serve a model to OpenAI-style clients (all options: mmserve serve --help)",
        description="Serve a model to OpenAI-style clients.",
        usage="mmserve serve [--model MODEL] [--tp N] [--port N] [option ...]",
        epilog=_EPILOG,
        allow_abbrev=False,
        add_help=False,
        formatter_class=_formatter,
    )
    commands.add_parser("bench", help="measure a server with several loads (all options: mmserve bench --help)")
    _add_options(serve)
    general = serve.add_argument_group("general")
    general.add_argument("--config", metavar="FILE", help="YAML or TOML file with options")
    general.add_argument(
        "--print-config", action="store_true", help="print all options as they would be used, and exit"
    )
    general.add_argument("-h", "--help", action="help", help="show this help and exit")
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=38, width=118)


def _add_options(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS.values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        groups[option.group].add_argument(option.flag, dest=option.name, **_argument(option))


def _argument(option: Option) -> dict[str, Any]:
    common = {"default": argparse.SUPPRESS, "help": _help(option).replace("%", "%%")}
    match option.kind:
        case inspect.BoolType():
            return {**common, "action": argparse.BooleanOptionalAction}
        case inspect.LiteralType():
            return {**common, "metavar": "|".join(option.choices)}
    return {**common, "metavar": _METAVARS.get(type(option.kind), "TEXT")}


def _help(option: Option) -> str:
    if option.default is None or option.default == ():
        return option.help
    return f"{option.help} [{shown(option.default)}]"


def shown(default: Any) -> str:
    """A default as help and documentation print it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _flags() -> list[str]:
    negated = ["--no-" + o.flag[2:] for o in OPTIONS.values() if isinstance(o.kind, inspect.BoolType)]
    return [option.flag for option in OPTIONS.values()] + negated + ["--config", "--print-config", "--help"]


def render(config: Config) -> str:
    """``config`` as a YAML file that ``--config`` reads; the API key is left out."""
    import yaml

    values = {name: getattr(config, name) for name in OPTIONS if name != "api_key"}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    secret = "# api_key is set; not shown\n" if config.api_key is not None else ""
    return secret + yaml.safe_dump(plain, sort_keys=False)
