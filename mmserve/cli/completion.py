"""``mmserve completion``: prints a script with which a shell completes commands, flags and values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmserve.config.options import OPTIONS

_DESCRIPTION = """\
Print a script that completes mmserve's commands, flags and values. For this shell alone:

  source <(mmserve completion bash)         bash, zsh
  mmserve completion fish | source          fish

For every shell to come:

  mmserve completion bash > ~/.local/share/bash-completion/completions/mmserve
  mmserve completion zsh > DIRECTORY/_mmserve         a directory of $fpath
  mmserve completion fish > ~/.config/fish/completions/mmserve.fish"""
_SHELLS = ("bash", "zsh", "fish")
_FILES = {"api_key_file", "config", "image", "request"}
"""Arguments that take a path to a file, by ``dest``, beside those whose type is a path."""
_DIRECTORIES = {"allowed_local_media_path", "batch_dir", "image_dir", "model", "speculative_model"}


_ZSH_IN_EVAL = "[[ $zsh_eval_context[-1] == eval ]]"
_ZSH_NOT_BY_NAME = "[[ $zsh_eval_context[-1] != loadautofunc ]]"
"""When zsh shall register the script: not only in ``eval``, as shtab writes it, but also when it is sourced."""


def add_completion(commands: Any) -> None:
    """Add the command and its argument."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes this command line in bash, zsh or fish",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=_SHELLS)


def completion(shell: str, parser: argparse.ArgumentParser) -> int:
    """Print the script for ``parser``, which is changed and of no further use; the exit code."""
    # Imported here: it would slow down --help.
    import shtab

    from mmserve.cli.plan.hardware import GPU_NAMES

    for action in _actions(parser):
        option = OPTIONS.get(action.dest)
        if action.dest in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest in _FILES or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest == "gpu":
            action.choices = list(GPU_NAMES)
        elif option is not None and option.choices and action.choices is None:
            action.choices = list(option.choices)
    print(shtab.complete(parser, shell).replace(_ZSH_IN_EVAL, _ZSH_NOT_BY_NAME))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of the parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
