"""``python -m tests.clients [pytest arguments]``: installs every client, runs the tests, writes the table of clients.

Clients whose requirements exclude each other have environments of their own in .venv-clients, over that of this Python.
The table (docs/client_matrix.py) is written only by a run without arguments, which runs every test.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from docs import client_matrix

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / ".venv-clients"
_TESTS = Path("tests", "clients")
_ASYNC_SUITES = ("-p", "no:codspeed", "-o", "asyncio_mode=auto")
_ASYNC_SUITES += ("-o", "asyncio_default_fixture_loop_scope=session", "-o", "asyncio_default_test_loop_scope=session")
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "clients": (*_ASYNC_SUITES, str(_TESTS)),
    "clients-litellm": (str(_TESTS / "test_litellm.py"),),
    "clients-aiperf": (str(_TESTS / "test_aiperf.py"),),
}
"""Extra of pyproject.toml -> pytest's arguments in the environment that has it."""
_NO_TESTS = 5
"""pytest's exit status if the arguments choose none of an environment's tests."""


def main() -> int:
    failed = []
    for extra, arguments in ENVIRONMENTS.items():
        python = _environment(extra)
        print(f"{extra}: installing", flush=True)
        _install(python, extra)
        if extra == "clients":
            _download_openai(python)
        print(f"{extra}: testing", flush=True)
        if _test(python, extra, (*arguments, *sys.argv[1:])) not in (0, _NO_TESTS):
            failed.append(extra)
    if not sys.argv[1:]:
        client_matrix.write([DIRECTORY / f"{extra}.xml" for extra in ENVIRONMENTS])
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def _environment(extra: str) -> Path:
    """The Python of an environment, which also finds the packages of this one."""
    python = DIRECTORY / extra / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", DIRECTORY / extra], check=True)
    (packages,) = (DIRECTORY / extra / "lib").glob("python*/site-packages")
    (packages / "mmserve-venv.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _install(python: Path, extra: str) -> None:
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--constraint", "constraints-cpu.txt", "--editable", f".[{extra}]"], cwd=ROOT, check=True)


def _download_openai(python: Path) -> None:
    """The source distribution of the installed version, for tests/clients/test_openai_create.py."""
    show = [python, "-c", "import openai; print(openai.__version__)"]
    version = subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    directory = DIRECTORY / "clients" / "sdist"
    if not (directory / f"openai-{version}.tar.gz").exists():
        pip = [python, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-binary", "openai", "--dest", directory, f"openai=={version}"], check=True)


def _test(python: Path, extra: str, arguments: tuple[str, ...]) -> int:
    report = ("-o", "junit_family=legacy", f"--junitxml={DIRECTORY / extra}.xml")
    return subprocess.run(
        [python, "-m", "pytest", "-W", "default", *report, *arguments], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
