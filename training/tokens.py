"""The tokenizer and the chat template, and the same template in plain Python for training rows.

Byte-level BPE learned from the program's own questions and answers (written words and numbers left out, so that they
are spelled one character a token).  Special tokens stand on both sides of every text, so tokenising the pieces alone
gives the same ids as tokenising the whole prompt.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.pictures.scenes import make_scene
from training.pictures.world import LEARNED, VOCABULARY
from training.words import honest
from training.words.conversations import SMALL_TALK, SYSTEMS, follow_up, text_turn, two_pictures
from training.words.phrasebook import put
from training.words.questions import ASK

SPECIALS = ("<pad>", "<s>", "</s>", "<image>", "<|user|>", "<|assistant|>", "<|system|>",
            "<|first|>", "<|second|>", "<|next|>")  # fmt: skip
PAD, BOS, EOS, IMAGE, USER, ASSISTANT, SYSTEM, FIRST, SECOND, NEXT = range(len(SPECIALS))
MARKS = ("<|function|>", "<|tool|>")
"""Of functions and their results; behind the learned tokens, so that these keep their numbers.  Calls have no tokens of
their own: they are spelled, `<tool_call>` included."""
FUNCTION, TOOL = range(LEARNED, LEARNED + len(MARKS))
# A turn's pictures come before its text, as in LLaVA-1.5's own template, whatever their order in the message; every
# text is trimmed, several are joined by a space.  A picture given in OpenAI's form ("image_url"), in Hugging Face's
# ("image") or as text holding <image> becomes one <image>.
# Picture tokens do not say which picture they belong to; a mark before each picture does.
# Functions stand behind the first user's pictures, a line each, and the text after them gets a <|user|> of its own.
# Without functions, calls and results the prompt is what it was before there were any.
TEMPLATE = """\
{%- set seen = namespace(pictures=0, functions=false) -%}
{%- macro mark() -%}
{%- set seen.pictures = seen.pictures + 1 -%}
{{ '<|first|>' if seen.pictures == 1 else '<|second|>' if seen.pictures == 2 else '<|next|>' }}
{%- endmacro -%}
{%- macro pictures(content) -%}
{%- if content is not string and content is not none -%}
{%- for part in content if part is not string and part.type in ['image', 'image_url', 'input_image'] -%}
{{ mark() }}<image>
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro texts(content) -%}
{%- if content is string -%}{{ content | trim }}
{%- elif content is not none -%}
{%- set texts = namespace(all=[]) -%}
{%- for part in content -%}
{%- if part is string -%}{%- set texts.all = texts.all + [part | trim] -%}
{%- elif part.text is defined and part.text -%}{%- set texts.all = texts.all + [part.text | trim] -%}
{%- endif -%}
{%- endfor -%}
{{ texts.all | join(' ') }}
{%- endif -%}
{%- endmacro -%}
{%- macro parameter(name, schema) -%}
{{ name }}
{%- if schema is mapping and schema.enum is defined and schema.enum is sequence and schema.enum is not string -%}
:{{ schema.enum | join('|') }}
{%- elif schema is mapping and schema.type is defined and schema.type is string and schema.type != 'string' -%}
:{{ schema.type }}
{%- endif -%}
{%- endmacro -%}
{%- macro functions() -%}
{%- set seen.functions = true -%}
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool -%}
<|function|>{{ function.name }}(
{%- if function.parameters is defined and function.parameters is mapping
    and function.parameters.properties is defined and function.parameters.properties is mapping -%}
{%- for name, schema in function.parameters.properties.items() -%}
{{ ',' if not loop.first }}{{ parameter(name, schema) }}
{%- endfor -%}
{%- endif -%}
)
{%- endfor -%}
{%- endmacro -%}
{%- macro calls(asked) -%}
{%- for call in asked -%}
{%- set function = call.function if call.function is defined else call -%}
<tool_call>{{ '\\n' }}{"name": {{ function.name | tojson }}, "arguments":
{{- ' ' }}{{ function.arguments if function.arguments is string else function.arguments | tojson }}}
{{- '\\n' }}</tool_call>
{%- endfor -%}
{%- endmacro -%}
<s>
{%- for message in messages -%}
{%- if message.role in ['system', 'developer'] -%}<|system|>{{ pictures(message.content) }}{{ texts(message.content) }}
{%- elif message.role == 'assistant' -%}<|assistant|>{{ pictures(message.content) }}{{ texts(message.content) }}
{%- if message.tool_calls is defined and message.tool_calls %}{{ calls(message.tool_calls) }}{% endif -%}
</s>
{%- elif message.role in ['tool', 'function'] -%}<|tool|>{{ pictures(message.content) }}{{ texts(message.content) }}
{%- else -%}<|user|>{{ pictures(message.content) }}
{%- if tools and not seen.functions %}{{ functions() }}<|user|>{% endif -%}
{{ texts(message.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


def corpus(count: int = 4000) -> list[str]:
    """Questions and answers of many scenes, without what is written in them."""
    rng, out = random.Random(7), []
    for seed in range(count):
        scene, other = make_scene(800_000_000 + seed), make_scene(801_000_000 + seed)
        turns = [ask(scene, rng) for kind, ask in ASK.items() if kind not in ("number", "word")]
        turns += follow_up(scene, rng) or []
        turns += [two_pictures(scene, other, rng), text_turn(rng, scene), honest.about_picture(scene, rng)]
        for question, answer in filter(None, turns):
            out += [
                text
                for text in (question, put(question, rng), answer)
                if not any(part.isupper() and len(part) > 1 for part in text.split())
            ]
    return out + [text for phrases, answer in SMALL_TALK for text in (*phrases, answer)] * 20 + list(SYSTEMS) * 20


def build() -> Tokenizer:
    """Learns the tokenizer (a few seconds, always the same one)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return with_marks(tokenizer)


def with_marks(tokenizer: Tokenizer) -> Tokenizer:
    """Adds MARKS behind LEARNED tokens; the places of tokens that were not learned, and those behind, are filled up."""
    before, behind = (
        [f"<|{number}|>" for number in range(start, end)]
        for start, end in ((tokenizer.get_vocab_size(), LEARNED), (LEARNED + len(MARKS), VOCABULARY))
    )
    added = (*before, *MARKS, *behind)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in added])
    if tokenizer.token_to_id(MARKS[0]) != FUNCTION or tokenizer.get_vocab_size() > VOCABULARY:
        raise ValueError("the tokenizer outgrew the model's vocabulary")
    return tokenizer


class Coder:
    """Text to ids with a cache; the template's pieces as ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = lru_cache(maxsize=200_000)(lambda text: self._exact(text.strip()))
        self.exact = lru_cache(maxsize=200_000)(self._exact)

    @classmethod
    def at(cls, path: Path) -> Coder:
        """From a tokenizer.json, which is made first where there is none."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            build().save(str(path))
        return cls(Tokenizer.from_file(str(path)))

    def _exact(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)
