"""The Chromium of this machine, and how it is started."""

from __future__ import annotations

import shutil

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""Its path; None if there is none."""
ARGUMENTS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-pings",
)
"""Chromium asks its maker for updates otherwise."""
MAY_PASTE = ("clipboard-read", "clipboard-write")
"""What a context is permitted whose page gets pictures from the clipboard."""
