"""LLM in the cells of a notebook: a real kernel, whose event loop runs. None of the shared servers could be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.stack import LITTLE_MEMORY

nbclient = pytest.importorskip("nbclient", reason="no nbclient and ipykernel: pip install 'mmserve[dev]'")
nbformat = pytest.importorskip("nbformat")
PICTURE = Path(__file__).parents[3] / "examples/picture.png"
LITTLE = {
    flag[2:].replace("-", "_"): value for flag, value in zip(LITTLE_MEMORY[::2], LITTLE_MEMORY[1::2], strict=True)
}
CELLS = (
    f"""
import os, signal, threading
import psutil
from tqdm import tqdm
from mmserve import LLM

tqdm((), disable=True)  # its monitor is a thread that stays until the program ends

def held():
    return {{
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shared memory": sorted(os.listdir("/dev/shm")),
        "processes": psutil.Process().children(recursive=True),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }}

def about_picture(llm):
    return llm.chat("What colour is the circle?", images={str(PICTURE)!r}, temperature=0).text

options = {{"dtype": "float32", **{LITTLE!r}}}
before = held()
""",
    """
llm = LLM("llava", **options)
assert about_picture(llm) == "green"
""",
    """
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    # A bar would be printed by another thread, for which the kernel keeps a socket.
    llm.chat(["hello"] * 8, min_tokens=1500, max_tokens=1500, progress=False)
except KeyboardInterrupt:
    print("interrupted")
""",
    """
assert about_picture(llm) == "green"
with LLM("llava", **options) as other:
    assert about_picture(other) == about_picture(llm) == "green"
assert about_picture(llm) == "green"
llm.close()
for thread in threading.enumerate():
    if isinstance(thread, threading.Timer):
        thread.join()
after = held()
assert after == before, (before, after)
""",
)


@pytest.mark.filterwarnings("default")
def test_cells_ask_are_interrupted_and_leave_nothing() -> None:
    """Another model is started beside the first. A cell that raises fails the test with its error."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (printed,) = [output.text for output in notebook.cells[2].outputs if output.get("name") == "stdout"]
    assert printed == "interrupted\n"
