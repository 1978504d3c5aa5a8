"""What ``--speculative-model`` names, and whether its tokens are those of the served model."""

from __future__ import annotations

from pathlib import Path

from mmserve.checkpoint.config.tokenizer_json import no_tokenizer, tokenizer_json
from mmserve.checkpoint.load import load
from mmserve.checkpoint.locate import locate
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.runtime.errors import StartupError


def find_draft(config: Config, model: ModelSpec) -> ModelSpec | None:
    """The draft model; None without the option. May download it.

    Raises StartupError if mmserve's own code does not compute it, or if a token has another id than in ``model``.
    """
    if config.speculative_model is None:
        return None
    draft = load(locate(config.speculative_model, option="--speculative-model"))
    check_tokens(config.speculative_model, draft, model)
    return draft


def check_tokens(name: str, draft: ModelSpec, model: ModelSpec) -> None:
    """Raises StartupError if a token has another id in ``draft``, which is called ``name``, than in ``model``."""
    served, own = _tokens(model), _tokens(draft)
    if (different := next((token for token in served if served[token] != own.get(token)), None)) is not None:
        raise StartupError(
            f"--speculative-model {name} has other tokens than the served model: {different!r} is "
            f"{own.get(different, 'none')} instead of {served[different]}; a draft model must have the same tokenizer"
        )


def _tokens(model: ModelSpec) -> dict[str, int]:
    """Token -> id."""
    definition = tokenizer_json(Path(model.path))
    if definition is None:
        missing = no_tokenizer(Path(model.path))
        raise StartupError(f"--speculative-model: the tokens of the models cannot be compared: {missing}")
    vocabulary = (definition.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, list):  # of a unigram model: (token, score), in the order of their ids
        vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in definition.get("added_tokens") or ()}
    return {**vocabulary, **added}
