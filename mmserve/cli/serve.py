"""``mmserve serve``: its flags, made from Config's fields, and the call of the supervisor."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import inspect

from mmserve.cli.replicas import serve_replicas
from mmserve.config.config import Config
from mmserve.config.options import OPTIONS, Option, OptionError, did_you_mean, resolve
from mmserve.runtime.memory.allocator import importing

_METAVARS: dict[type[inspect.Type], str] = {
    inspect.IntType: "N",
    inspect.FloatType: "X",
    inspect.VarTupleType: "A,B,...",
    inspect.DictType: "JSON",
}
_EPILOG = """\
Every flag can also be set by an environment variable, MMSERVE_ and its name (MMSERVE_MAX_NUM_SEQS=64), and in a
YAML or TOML file (max_num_seqs: 64). A flag wins over the environment, the environment over the file."""


def add_serve(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "serve",
        help="serve a model to OpenAI-style clients (all options: mmserve serve --help)",
        description="Serve a model to OpenAI-style clients.",
        usage="mmserve serve [--model MODEL] [--tp N] [--port N] [option ...]",
        epilog=_EPILOG,
        allow_abbrev=False,
        add_help=False,
        formatter_class=_formatter,
    )
    _add_options(parser)
    general = parser.add_argument_group("general")
    general.add_argument("--config", metavar="FILE", help="YAML or TOML file with options")
    general.add_argument(
        "--print-config", action="store_true", help="print all options as they would be used, and exit"
    )
    general.add_argument("-h", "--help", action="help", help="show this help and exit")


def serve(arguments: argparse.Namespace, unknown: Sequence[str]) -> int:
    """Run the command; the exit code. Raises StartupError. ``unknown``: arguments that the parser did not take."""
    if unknown:
        word = unknown[0].split("=")[0]
        raise OptionError(f"unknown argument {word}{did_you_mean(word, _flags())} (see mmserve serve --help)")
    flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    config = resolve(flags, os.environ, arguments.config)
    if config.join is not None:
        raise OptionError("--join is of another command: mmserve encoder --join ...")
    if arguments.print_config:
        print(render(config), end="")
        return 0
    if config.replicas:
        return serve_replicas(config)
    # Imported here: the supervisor's libraries would slow down --help.
    with importing():
        from mmserve.supervisor import run

    return run.serve(config)


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=38, width=118)


def _add_options(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS.values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        add_options(groups[option.group], [option])


def add_options(group: argparse._ArgumentGroup, options: Iterable[Option], *, hidden: bool = False) -> None:
    """Flags of these options; those that are not given are not in the result. ``hidden``: from --help."""
    for option in options:
        argument = _argument(option)
        group.add_argument(
            option.flag, dest=option.name, **{**argument, **({"help": argparse.SUPPRESS} if hidden else {})}
        )


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
