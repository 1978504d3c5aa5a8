"""What the pages' code blocks and options name exists, also where no test runs them; tests/e2e runs the others."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import pytest
import yaml

from mmserve.cli import main as cli
from mmserve.config.options import resolve
from tests.fakes.processes.code_blocks import PAGES, ROOT, Block, blocks, blocks_of, commands, without_comments

RUN = {"bash", "python"}
READ = {"json": json.loads, "yaml": lambda code: [*yaml.safe_load_all(code)], "toml": tomllib.loads}
OF_OTHER_PROGRAMS = {
    "--config-file",
    "--enforce-eager",
    "--hypothesis-profile",
    "--init",
    "--network",
    "--no-deps",
    "--pdb",
    "--pid",
    "--pool-name",
    "--target",
}
BASH = [block for block in blocks() if block.language == "bash"]
FURTHER = [*ROOT.glob("benchmarks/*.md"), *sorted(ROOT.glob("training/**/README.md"))]
"""Pages of the site whose commands need hours, or what is not here. None is run."""
OF_FURTHER = [block for page in FURTHER for block in blocks_of(page.read_text(), str(page.relative_to(ROOT)))]
_FOLDERS = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
_PATH = re.compile(rf"(?:{_FOLDERS})/[\w./-]*\w")


def _id(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", blocks(), ids=_id)
def test_a_block_has_a_language_that_can_be_checked(block: Block) -> None:
    assert block.language in {*RUN, *READ, "text"}, "name bash, python, json, yaml, toml, or text"
    if block.language == "text":
        assert not re.search(r"^\s*(\$|mmserve|curl|make|python3?|pip) ", block.code, re.MULTILINE), "this is bash"
        assert block.not_run is None
    if block.language in READ:
        READ[block.language](block.code)


def _ours(block: Block) -> Iterator[Sequence[str]]:
    """Arguments of mmserve in the block, also those that make passes on."""
    for words in commands(without_comments(block.code)):
        if words[0] in ("mmserve", ".venv/bin/mmserve"):
            yield words[1:]
        elif words[:2] == ["make", "serve"]:
            yield ["serve", *" ".join(word.removeprefix("ARGS=") for word in words[2:]).split()]


@pytest.mark.parametrize("block", BASH, ids=_id)
def test_commands_of_ours_are_parsed(block: Block) -> None:
    for arguments in _ours(block):
        parsed, unknown = cli._parser().parse_known_args(arguments)
        assert not unknown
        if parsed.command == "serve":
            given = {name: value for name, value in vars(parsed).items() if name not in ("command", "config")}
            resolve({name: value for name, value in given.items() if name != "print_config"}, {}, parsed.config)


@pytest.mark.parametrize("block", [*BASH, *OF_FURTHER], ids=_id)
def test_targets_modules_and_files_exist(block: Block) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in commands(without_comments(block.code)):
        if words[0] == "make":
            assert words[1] in targets
        if words[0].endswith("python") and "-m" in words:
            assert find_spec(words[words.index("-m") + 1]), words
        for word in words:
            if _PATH.fullmatch(word) and not word.startswith(("dist/", "runs/")):
                assert (ROOT / word).exists(), word


def test_options_in_the_text_exist(capsys: pytest.CaptureFixture[str]) -> None:
    (listed,) = cli._parser()._subparsers._group_actions  # type: ignore[union-attr]
    for command in listed.choices or ():
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
    known = set(re.findall(r"--[a-z][a-z0-9-]+", capsys.readouterr().out)) | OF_OTHER_PROGRAMS
    of_benchmarks = ROOT / "docs/performance.md"
    for page in set(PAGES) - {of_benchmarks}:
        for code in re.findall(r"`([^`\n]+)`", page.read_text()):
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", code):
                assert flag in known, f"{page.name}: {flag} in `{code}`"


def test_few_blocks_are_not_run() -> None:
    marked = [block for block in blocks() if block.not_run]
    assert all(block.language in RUN for block in marked)
    assert len(marked) < len([block for block in blocks() if block.language in RUN]) / 2


@pytest.mark.parametrize("block", [block for block in blocks() if block.not_run], ids=_id)
def test_a_block_that_is_not_run_names_what_runs_the_same(block: Block) -> None:
    reason, _, places = (block.not_run or "").partition("; ")
    assert reason
    assert places == "by hand" or all((ROOT / place).is_file() for place in places.split(", ")), places


def test_a_mark_belongs_to_the_block_after_it() -> None:
    text = (
        "<!-- not run: docker -->\n```bash\ndocker ps\n```\n\n- list\n\n    ```python\n    pass\n    ```\n\n    x = 1\n"
    )
    assert list(blocks_of(text, "p")) == [
        Block("p", 3, "bash", "docker ps\n", "docker"),
        Block("p", 9, "python", "pass\n", None),
    ]
    with pytest.raises(ValueError, match="no code block"):
        list(blocks_of("<!-- not run: docker -->\ntext\n\n```bash\nls\n```\n", "p"))


def test_commands_of_a_script() -> None:
    script = 'echo "a # b" | mmserve chat --image x \\\n  y\nA=1 make serve ARGS="--tp 2" && ls'
    assert list(commands(script)) == [
        ["echo", "a # b"],
        ["mmserve", "chat", "--image", "x", "y"],
        ["make", "serve", "ARGS=--tp 2"],
        ["ls"],
    ]
