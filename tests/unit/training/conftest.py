from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from training.tokens import Coder


@pytest.fixture(scope="session")
def coder() -> Coder:
    """The training's tokenizer, learned from a smaller corpus."""
    from training import tokens

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "corpus", partial(tokens.corpus, count=400))
        return tokens.Coder(tokens.build())
