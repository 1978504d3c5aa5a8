"""The tokenizer of a served model, which must know the tokens that stand for the model's images."""

from __future__ import annotations

from pathlib import Path

from mmserve.checkpoint.spec import ModelSpec
from mmserve.httpserver.prompt.template.chat_template import template_of
from mmserve.httpserver.prompt.tokenizer import ChatTokenizer
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import StartupError


def read_tokenizer(model: ModelSpec) -> ChatTokenizer:
    """Raises StartupError."""
    checkpoint, (placeholder, row_token) = Path(model.path), image_texts(model)
    texts = [*filter(None, (placeholder, row_token))]
    tokenizer = ChatTokenizer(checkpoint, template_of(model) or "", image_texts=texts)
    if row_token and tokenizer.raw.token_to_id(row_token) != model.image_token_id:
        raise StartupError(
            f"{checkpoint}: the tokenizer has no token {row_token!r} with config.json's id {model.image_token_id}"
        )
    return tokenizer


def image_texts(model: ModelSpec) -> tuple[str, str]:
    """(placeholder, row token) of a model; empty for a text model."""
    processor = processor_for(model)
    return ("", "") if processor is None else (processor.placeholder, processor.row_token)
