"""The code blocks of README, CONTRIBUTING and docs, and the reasons why some are not run.

The comment ``<!-- not run: REASON; PATH, ... -->`` before a block says that no test can run it as it stands, and where
the same is done.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_MARK = re.compile(r"\s*<!-- not run: (.+) -->\s*")


class Block(NamedTuple):
    page: str
    line: int
    """Of its first line, counted from one."""
    language: str
    code: str
    not_run: str | None
    """The reason, if no test runs it, and where the same is done."""


def blocks() -> list[Block]:
    """All code blocks, in the order of pages and lines."""
    return [block for page in PAGES for block in blocks_of(page.read_text(), str(page.relative_to(ROOT)))]


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """The code blocks of one page; an indented one has no language. A mark without a block raises ValueError."""
    reason = None
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            yield Block(page, token.map[0] + 1 + (token.type == "fence"), token.info.strip(), token.content, reason)
            reason = None
        elif reason is not None:
            raise ValueError(f"{page}: no code block after 'not run: {reason}'")
        elif token.type == "html_block" and (mark := _MARK.fullmatch(token.content)):
            reason = mark[1]


def commands(code: str) -> Iterator[list[str]]:
    """The words of each simple command of a shell script without control structures."""
    lexer = shlex.shlex(code.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;()<>"):
            if words:
                yield words
            words = []
        elif words or not re.match(r"\w+=", word):
            words.append(word)
    if words:
        yield words


def without_comments(code: str) -> str:
    """``code`` without what follows `` #``."""
    return re.sub(r"(^|\s)#.*$", "", code, flags=re.MULTILINE)
