"""``make first-picture``: from ``git clone`` to the answer about a pasted picture, as somebody does it who is new here.

Clones this repository as it is committed, runs the README's first command there with empty caches, opens the page in
Chromium, pastes examples/picture.png from the clipboard and asks. Prints a table of the steps; pictures of the page
stay in the folder of ``--screenshots``. Exits with 1 if the answer is wrong or came after three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from tests.e2e.web.chat import PICTURE, answers, ask, paste
from tests.e2e.web.chromium import ARGUMENTS, BROWSER, MAY_PASTE

ROOT = Path(__file__).parents[1]
_LIMIT_S = 180.0
_QUESTION, _ANSWER = "What colour is the circle?", "green"
_MAKE_STEPS = {"[2/3]": "environment made", "[3/3]": "packages installed", "mmserve is ready": "server ready"}
"""What lines of ``make serve`` begin with, and the step that they end."""
_NOT_OF_A_NEWCOMER = re.compile(r"VIRTUAL_ENV|PYTHON|PIP_CACHE|MAKE|MFLAGS|MMSERVE_")
_PAGE_TIMEOUT_MS = 60_000


@dataclass
class Steps:
    """``ends``: what was reached, and how many seconds after the beginning."""

    ends: list[tuple[str, float]] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    def end(self, name: str) -> None:
        self.ends.append((name, time.monotonic() - self._began_s))
        print(f"{self.ends[-1][1]:6.1f} s  {name}", file=sys.stderr)

    def table(self) -> str:
        lines = ["| step | seconds | since the beginning |", "|---|---:|---:|"]
        before_s = 0.0
        for name, end_s in self.ends:
            lines.append(f"| {name} | {end_s - before_s:.1f} | {end_s:.1f} |")
            before_s = end_s
        return "\n".join([*lines, f"| **all, of at most {_LIMIT_S:.0f}** | **{before_s:.1f}** | |"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--screenshots", type=Path, default=ROOT / "runs/first_picture", help="(%(default)s)")
    parser.add_argument("--any-port", action="store_true", help="serve on a free port, where 8000 is taken")
    options = parser.parse_args()
    if BROWSER is None:
        sys.exit("no Chromium on this machine: make browser")
    options.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="first-picture-") as directory:
        steps = Steps()
        clone = Path(directory, "mmserve")
        subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", str(clone)], check=True)
        steps.end("cloned")
        command = ["make", "serve", *(["ARGS=--port 0 --health-port 0"] if options.any_port else [])]
        with _serving(command, clone, Path(directory, "cache"), steps) as url:
            answer = _ask_on_the_page(url, steps, options.screenshots)
    total_s = steps.ends[-1][1]
    print(_machine())
    print(f"\n{steps.table()}\n\n{_QUESTION} {answer!r}, expected {_ANSWER!r}; pictures: {options.screenshots}")
    return 0 if answer == _ANSWER and total_s <= _LIMIT_S else 1


@contextlib.contextmanager
def _serving(command: list[str], clone: Path, cache: Path, steps: Steps) -> Iterator[str]:
    """Run the command in the clone; yields the server's URL when it is ready."""
    inherited = {name: value for name, value in os.environ.items() if not _NOT_OF_A_NEWCOMER.match(name)}
    environment = {**inherited, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _url_when_ready(process, steps)
        finally:
            process.terminate()
            process.communicate()


def _url_when_ready(process: subprocess.Popen[str], steps: Steps) -> str:
    assert process.stdout is not None
    last = deque[str](maxlen=20)
    for line in process.stdout:
        last.append(line)
        for beginning, step in _MAKE_STEPS.items():
            if line.startswith(beginning):
                steps.end(step)
        if ready := re.match(r"mmserve is ready: (http://[^\s,]+)", line):
            return ready[1]
    sys.exit("make serve ended before the server was ready:\n" + "".join(last))


def _ask_on_the_page(url: str, steps: Steps, screenshots: Path) -> str:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=list(ARGUMENTS))
        page = browser.new_page(permissions=list(MAY_PASTE))
        page.set_default_timeout(_PAGE_TIMEOUT_MS)
        expect.set_options(timeout=_PAGE_TIMEOUT_MS)
        page.goto(url)
        expect(page.get_by_text("Answers come from")).to_be_visible()
        steps.end("page open in Chromium")
        page.screenshot(path=screenshots / "1-page.png")
        paste(page, PICTURE)
        expect(page.get_by_text("64 tokens", exact=True)).to_be_visible()
        steps.end("picture pasted and its tokens counted")
        page.screenshot(path=screenshots / "2-pasted.png")
        ask(page, _QUESTION)
        expect(answers(page)).to_have_count(1)
        steps.end("answered")
        page.screenshot(path=screenshots / "3-answered.png")
        answer = answers(page).locator(".markdown").inner_text()
        browser.close()
    return answer


def _machine() -> str:
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], text=True).strip()
    today = datetime.date.today().isoformat()
    return f"{today}, {len(models)} x {models[0]}, Python {platform.python_version()}, commit {commit}"


if __name__ == "__main__":
    sys.exit(main())
