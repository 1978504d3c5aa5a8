from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from training.tokens import Coder


@pytest.fixture(scope="session")
def coder() -> Coder:
    """The training's tokenizer, learned from a smaller corpus."""
    from training import tokens

    original = tokens.corpus
    try:
        tokens.corpus = lambda: original(count=200)
        return tokens.Coder(tokens.build())
    finally:
        tokens.corpus = original
