"""``python -m docs.completion_fields`` prints docs/completion_fields.md, made from the fields (``make docs``)."""

from __future__ import annotations

from docs.chat_fields import MEANINGS as CHAT_MEANINGS
from docs.chat_fields import rows
from mmserve.httpserver.api.openai.completions.request import CompletionRequest

_HEAD = """\
# Fields of a completion

Made by `make docs` from `mmserve/httpserver/api/openai/completions/request.py`; do not edit.

null means that a field is left out. A field that is not here, or a value out of range, is a 400 that names it.

| field | values | meaning |
|---|---|---|
"""
OWN_MEANINGS = {
    "stream_options": "`include_usage`: a last chunk with the usage; `continuous_usage_stats`: usage in every chunk; "
    "`include_obfuscation`: changes nothing",
    "prompt": "a text, a list of texts, token ids, or a list of lists of token ids: at most 256 prompts, and 256 "
    "choices of all together. null is the empty text. Choice `i` answers prompt `i // n`. The answer "
    "continues the text: its first token keeps its leading space",
    "add_special_tokens": "true by default: a text begins with the tokenizer's special tokens. The prompt is the "
    "client's own, so special tokens in it are meant. Placeholders of images are refused",
    "max_tokens": "16 by default, or what the context leaves. 0 with `echo` or `prompt_logprobs`: the prompt is scored",
    "echo": "each choice begins with its prompt: a text as it was sent, token ids as their text",
    "logprobs": "`tokens`, `token_logprobs`, `top_logprobs` (the sampled token is always among them) and "
    "`text_offset`, in characters of the choice's `text`. With `echo` also of the prompt, whose "
    "first token has null. Tokens that are no whole characters are named by their bytes (`bytes:\\xc3`)",
    "best_of": "other than `n`: 400",
    "suffix": "400, unless empty",
    "prompt_logprobs": "vLLM's `prompt_logprobs` in the first choice of each prompt: an object for each token, "
    "null for the first. `rank` is null if the token is not among the top ones. With `stream`: 400, and with `echo` "
    "and another number of `logprobs`",
    "return_token_ids": "each choice, or its first chunk, has `prompt_token_ids`; each choice or chunk has `token_ids`",
}


def page() -> str:
    """The whole page."""
    return _HEAD + rows(CompletionRequest, CHAT_MEANINGS | OWN_MEANINGS, {})


if __name__ == "__main__":
    print(page(), end="")
