"""``mmserve encoder``: a vision tower on this machine, for servers on others."""

from __future__ import annotations

import argparse
import os
from typing import Any

from mmserve.cli.serve import add_options
from mmserve.config.options import OPTIONS, OptionError, resolve

_GROUPS = ("model", "supervision", "logging")
_OTHERS = (
    "join", "cluster_key_file", "node_timeout", "mm_cache_gb", "mm_processor_kwargs", "visual_batch_size",
)  # fmt: skip
"""Options of other groups. ``mm_cache_gb``: also the memory for rows that may be asked for again."""


def add_encoder(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags: those of ``serve`` that concern a vision tower."""
    parser = commands.add_parser(
        "encoder",
        help="encode pictures for servers on other machines",
        description="Encode pictures for a server on another machine, which was started with --encoders. Give the "
        "options that decide about the size of pictures as there. --mm-cache-gb is here also the memory for rows that "
        "may be asked for again.",
        allow_abbrev=False,
    )
    add_options(parser.add_argument_group("encoder"), (OPTIONS[name] for name in _OTHERS))
    add_options(parser.add_argument_group("model"), (option for option in OPTIONS.values() if option.group in _GROUPS))


def encoder(arguments: argparse.Namespace) -> int:
    """Run until a signal; the exit code. Raises StartupError."""
    flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    config = resolve(flags, os.environ, None)
    if config.join is None:
        raise OptionError("mmserve encoder needs --join, the address of the server's --encoders")
    # Imported here: the supervisor's libraries would slow down --help.
    from mmserve.supervisor import run

    return run.serve(config)
