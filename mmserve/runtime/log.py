"""Log format of every process: time, level, process title, message."""

from __future__ import annotations

import logging
import sys


def setup(title: str, level: str) -> None:
    """Log mmserve's records from ``level`` on, and warnings of libraries, to stderr. Each line names ``title``."""
    handler = logging.StreamHandler(sys.stderr)
    # logging.Formatter would read a "%" in the title as a format.
    title = title.replace("%", "%%")
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s.%(msecs)03d %(levelname)-7s [{title}] %(message)s", datefmt="%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("mmserve").setLevel(level.upper())
