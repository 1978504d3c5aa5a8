"""One log format for every process: time, level, who (the process's title), what. Knows no process by name."""

from __future__ import annotations

import logging
import sys


def setup(who: str, level: str) -> None:
    """Send our records of at least ``level`` and libraries' warnings to stderr, each line naming ``who``."""
    handler = logging.StreamHandler(sys.stderr)
    # A "%" in a title would otherwise be read as a format.
    who = who.replace("%", "%%")
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s.%(msecs)03d %(levelname)-7s [{who}] %(message)s", datefmt="%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak up only when something is wrong.
    root.setLevel(logging.WARNING)
    logging.getLogger("mmserve").setLevel(level.upper())
