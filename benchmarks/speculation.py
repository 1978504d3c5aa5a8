"""What drafts save, of ``--speculative ngram`` or of a draft model, and what they cost where they are mostly wrong.

    python -m benchmarks.speculation --model DIR [--draft-model DIR] [--clients 1 16] [--loads JSON ...] [--tokens 256]
        [--rounds 3] [--after-one] [--json FILE] [--serve-args "..."]

With ``--draft-model`` drafts are that model's (``--speculative-model``) instead of n-grams. Without a small model of
the same tokens, ``python -m benchmarks.first_layers`` makes one of the model's own first layers.

Two servers, with and without, get the same requests alternately, so a drift of the machine's speed affects both alike.
A prompt of the first loads is a text, the same text again and its beginning, which a language model goes on copying:
prose, JSON, code. ``copied %`` tells how much of the answers is the text to the letter, up to the first difference.
A story is sampled, once greedily, so that it soon repeats itself, and once at temperature 1, so that it does not.
Each client has a text of its own. Their answers must be equal on both servers, as they are with our own kernels; the
first that differ end the program. A time is that of all clients' requests together, whose prompts are in the prefix
cache; the factor is the median of the rounds' ratios, after one round that does not count.

``--after-one``: in each round one client asks alone first, which is not timed, and all clients' prompts are new to the
server. So drafts that were good for one client meet as many prompts as there are clients. All rounds count.

The model must be able to copy: SmolLM2-135M is. The packaged one answers too briefly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import openai

from benchmarks.load.report import Row, table, write_json
from benchmarks.load.server import Target, serve

_TEXT_CHARACTERS, _BEGINNING_CHARACTERS = 1400, 120


class Load(NamedTuple):
    """``prompts``: one for each client. ``copies``: what the answers would be if they were copied, or nothing."""

    name: str
    prompts: list[str]
    copies: list[str]
    temperature: float = 0.0


def loads(num_clients: int) -> list[Load]:
    """For so many clients."""
    here = Path(__file__).parent
    prose = (here / "answers/harbour.txt").read_text().split("\n\n")
    code = [text for path in sorted(here.glob("*.py")) if len(text := path.read_text()) > 3 * _TEXT_CHARACTERS]
    clients = range(num_clients)
    records = [{"name": f"item {number}", "price": 7 * number % 50, "sold": number % 3 == 0} for number in range(99)]
    texts = {
        "prose": ["\n\n".join((prose[client % len(prose) :] + prose) * 2) for client in clients],
        "JSON": [json.dumps(records[client:], indent=1) for client in clients],
        "code": [text[text.index("\ndef ") :] for text in (code[client % len(code)] for client in clients)],
    }
    stories = [f"Once upon a time, in a town with {client + 2} towers, there lived" for client in clients]
    return [
        *(_copying(name, [text[:_TEXT_CHARACTERS] for text in each]) for name, each in texts.items()),
        Load("a story, greedy", stories, []),
        Load("a story, temperature 1", stories, [], 1.0),
    ]


def _copying(name: str, texts: list[str]) -> Load:
    beginnings = [text[:_BEGINNING_CHARACTERS].rsplit(maxsplit=1)[0] for text in texts]
    prompts = [f"{text}\n\n{text}\n\n{beginning}" for text, beginning in zip(texts, beginnings, strict=True)]
    copies = [text.removeprefix(beginning) for text, beginning in zip(texts, beginnings, strict=True)]
    return Load(name, prompts, copies)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--draft-model", help="proposes the drafts, in place of n-grams")
    parser.add_argument("--loads", nargs="+", help="beginnings of the loads' names; default: all")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--after-one", action="store_true")
    parser.add_argument("--serve-args", default="", help="flags for both servers")
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    flags, draft_model = shlex.split(arguments.serve_args), arguments.draft_model
    drafts = ("--speculative-model", draft_model) if draft_model else ("--speculative", "ngram")
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(serve(*options, *flags, model=arguments.model)) for options in ((), drafts)]
        chosen = tuple(arguments.loads or [""])
        rows = [
            _row(targets, load, arguments)
            for count in arguments.clients
            for load in loads(count)
            if load.name.startswith(chosen)
        ]
    print(table(rows))
    write_json(arguments.json, rows)


def _row(targets: list[Target], load: Load, arguments: argparse.Namespace) -> Row:
    seconds: list[list[float]] = [[], []]
    drafts = [0.0, 0.0, 0.0]
    for number in range(arguments.rounds + 1):
        asked = _new(load, number) if arguments.after_one else load
        answers = []
        for target, times in zip(targets, seconds, strict=True):
            if arguments.after_one:
                _ask(target, _new(load, number + arguments.rounds + 1, 1), arguments.tokens)
            before, started_s = _drafts(target), time.perf_counter()
            answers.append(_ask(target, asked, arguments.tokens))
            times.append(time.perf_counter() - started_s)
            drafts = [known + now - first for known, now, first in zip(drafts, _drafts(target), before, strict=True)]
        for one, other in zip(*answers, strict=True):
            if one != other:
                raise SystemExit(f"{load.name}: the answers differ: {one!r} and {other!r}")
    drafted, accepted, draft_s = drafts
    draft_model_part = draft_s / sum(seconds[1])
    if not arguments.after_one:
        seconds = [times[1:] for times in seconds]
    ratios = [plain / drafting for plain, drafting in zip(*seconds, strict=True)]
    num_tokens = arguments.tokens * len(load.prompts)
    return {
        "clients": len(load.prompts),
        "load": load.name,
        "none tokens/s": num_tokens / statistics.median(seconds[0]),
        "drafts tokens/s": num_tokens / statistics.median(seconds[1]),
        "factor": statistics.median(ratios),
        "least": min(ratios),
        "drafted %": 100 * drafted / (num_tokens * (arguments.rounds + 1)),
        "accepted %": 100 * accepted / drafted if drafted else 0.0,
        "draft model %": 100 * draft_model_part,
        "copied %": 100 * _copied(answers[1], load.copies),
    }


def _new(load: Load, number: int, num_clients: int | None = None) -> Load:
    """The load for so many clients, with prompts that no other number has."""
    return load._replace(prompts=[f"Number {number}. {prompt}" for prompt in load.prompts[:num_clients]])


def _copied(answers: list[str], copies: list[str]) -> float:
    """The share of the answers that is the copy, up to the first difference."""
    shares = [
        next((place for place, (one, other) in enumerate(zip(*pair, strict=False)) if one != other), len(pair[0]))
        / len(pair[0])
        for pair in zip(answers, copies, strict=False)
    ]
    return statistics.mean(shares) if shares else 0.0


def _ask(target: Target, load: Load, num_tokens: int) -> list[str]:
    """The answers to all prompts at once, of ``num_tokens`` tokens each."""
    client = openai.OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0, timeout=600)

    def answer(prompt: str) -> str:
        reply = client.completions.create(
            model=target.model,
            prompt=prompt,
            max_tokens=num_tokens,
            temperature=load.temperature,
            seed=1,
            extra_body={"ignore_eos": True},
        )
        return reply.choices[0].text

    with client, ThreadPoolExecutor(len(load.prompts)) as pool:
        return list(pool.map(answer, load.prompts))


def _drafts(target: Target) -> list[float]:
    """Drafted tokens, those that were accepted, and seconds of the draft model."""
    with urllib.request.urlopen(f"{target.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [
        sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"mmserve:{name}"))
        for name in ("draft_tokens_total", "accepted_draft_tokens_total", "draft_seconds_sum")
    ]


if __name__ == "__main__":
    main()
