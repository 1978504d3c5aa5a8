"""A byte-level BPE tokenizer of 49,152 tokens, learned from words that it draws itself."""

from __future__ import annotations

import functools
import random
import string
from collections.abc import Iterator, Mapping, Sequence

import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from mmserve.cli.bench.plan import words

VOCAB = 49_152
_SPECIAL = 32
"""The last ids are those of special tokens; names that a model does not need are reserved."""
_LOAD_WORDS = 20_000
"""Words of the loads in the text, so many that each becomes one token."""
_RANDOM_WORDS = 60_000
_LONGEST_WORD = 12


def special_ids(special: Sequence[str]) -> dict[str, int]:
    """Token -> id."""
    return {token: VOCAB - _SPECIAL + index for index, token in enumerate(special)}


def tokenizer(special: Sequence[str], template: str, named: Mapping[str, str]) -> transformers.PreTrainedTokenizerFast:
    """The first two special tokens end a text and pad it.

    ``named``: attributes of the tokenizer that hold one of them, as some processors of transformers need."""
    names = [*special, *(f"<|reserved_{index}|>" for index in range(len(special), _SPECIAL))]
    bpe = tokenizers.Tokenizer.from_str(_learned())
    bpe.add_special_tokens(names)
    end, pad, *others = names
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=end,
        pad_token=pad,
        extra_special_tokens=others,
        model_specific_special_tokens=dict(named),
    )
    fast.chat_template = template
    return fast


@functools.cache
def _learned() -> str:
    """tokenizer.json without special tokens."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - _SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(_text(), trainer)
    if bpe.get_vocab_size() != VOCAB - _SPECIAL:
        raise RuntimeError(f"the tokenizer learned only {bpe.get_vocab_size()} tokens")
    return str(bpe.to_str())


def _text() -> Iterator[str]:
    rng = random.Random(0)
    yield " " + words(rng, _LOAD_WORDS)
    drawn = (
        "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, _LONGEST_WORD))) for _ in range(_RANDOM_WORDS)
    )
    yield " " + " ".join(drawn)
