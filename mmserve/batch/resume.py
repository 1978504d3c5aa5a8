"""Whether an output file is that of this input file, and who writes to it. Blocking."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from mmserve.batch.output import BatchFiles
from mmserve.batch.source import Checked, digest_of
from mmserve.runtime.errors import StartupError


@contextlib.contextmanager
def opened(source: Path, checked: Checked, answers: Path, errors: Path, *, retry_errors: bool) -> Iterator[BatchFiles]:
    """The files of a run that goes on where another stopped. ``retry_errors``: lines with an error have no result.

    What the input was is kept beside the output, in a file with the suffix ``.state``; since then lines may have been
    added to its end. Raises StartupError if the results are of another input, or another process writes them; OSError.
    """
    state = answers.with_name(answers.name + ".state")
    with contextlib.ExitStack() as stack:
        fd = os.open(state, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"{answers} is being written by another mmserve batch") from None
        if retry_errors:
            errors.unlink(missing_ok=True)
        if any(path.exists() and path.stat().st_size for path in (answers, errors)):
            _check_same(source, os.pread(fd, 4096, 0), answers)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"nbytes": checked.nbytes, "sha256": checked.digest}).encode(), 0)
        files = BatchFiles(answers, errors)
        stack.callback(files.close)
        yield files


def _check_same(source: Path, state: bytes, answers: Path) -> None:
    try:
        before = json.loads(state)
        is_same = digest_of(source, int(before["nbytes"])) == before["sha256"]
    except (ValueError, LookupError, TypeError):
        is_same = False
    if not is_same:
        raise StartupError(f"{answers} has results of another input than {source}: name another file, or delete it")
