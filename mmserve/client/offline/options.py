"""Keyword arguments of LLM: options of ``mmserve serve`` by their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mmserve.config.config import Config
from mmserve.config.options import OPTIONS, OptionError, as_words, did_you_mean, resolve

_DECIDED_HERE = frozenset({"model", "host", "port", "health_port", "api_key", "api_key_file"})
"""The server is for this program alone."""


def checked(options: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """The configuration that a server with these options has, and the arguments of ``mmserve serve``. An option that is
    None has its default. Raises OptionError for an unknown option, and for one that is out of range."""
    offered = OPTIONS.keys() - _DECIDED_HERE
    for name in options:
        if name in _DECIDED_HERE:
            raise OptionError(f"{name} is not an option of LLM: its server is for this program alone")
        if name not in offered:
            raise OptionError(f"{name} is no option{did_you_mean(name, offered)} (see mmserve serve --help)")
    given = {name: value for name, value in options.items() if value is not None}
    config = resolve(given, os.environ, None)
    return config, [word for name in given for word in as_words(name, getattr(config, name))]
