"""Compares the server's greedy answers with those of transformers in float32, token for token.

Prompts have 3 to 400 tokens from a seed, some with a common beginning, and every answer has the same number of
tokens. Three passes: each prompt alone at a fresh server; all at once at another fresh server; all at once again,
from its prefix cache. The API returns text and no token ids: two answers are equal if text and number of tokens are.
Exits with 1 when an answer differs.

    python -m benchmarks.answers.parity --model DIR
    python -m benchmarks.answers.parity --model DIR --prompts 4 --tokens 8 --reference /tmp/reference.json
    python -m benchmarks.answers.parity --model DIR --serve-args "--dtype bfloat16"
    python -m benchmarks.answers.parity --model DIR --serve-args "--dtype float32 --max-model-len 1024"
    python -m benchmarks.answers.parity --model DIR --target mmserve=http://127.0.0.1:8000,model=NAME
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from tqdm import tqdm

from benchmarks.answers.prompts import prompts
from benchmarks.answers.reference import Reference, reference
from benchmarks.load import report
from benchmarks.load.server import Target, parse_target, targets_or_started

PASSES = ((("alone", 1),), (("batch", 0), ("batch, cached", 0)))
"""Passes as (name, clients; 0: --clients), grouped by server: each group starts a fresh one."""
TIMEOUT_S = 600.0
_SHOWN = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="checkpoint of a text model")
    parser.add_argument("--target", type=parse_target, help="name=URL[,model=M] of a server that runs, of that model")
    parser.add_argument(
        "--serve-args",
        default="--dtype float32 --kv-cache-gb 1 --max-model-len 1024",
        help="flags for the servers that are started when no target is given [%(default)s]",
    )
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--clients", type=int, default=32, help="at once in a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", type=Path, metavar="PATH", help="keep transformers' answers here for next time")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def main() -> int:
    """Returns 0 if all answers are equal."""
    options = arguments()
    texts = prompts(options.prompts, options.seed)
    expected = reference(options.model, texts, options.tokens, options.reference)
    answers = _answers(texts, options)
    rows = [
        *(compared(name, found, expected) for name, found in answers.items()),
        *(_beside_alone(name, found, answers["alone"]) for name, found in answers.items() if name != "alone"),
    ]
    lengths = [each.num_prompt_tokens for each in expected]
    what = f"{len(texts)} prompts of {min(lengths)} to {max(lengths)} tokens, {options.tokens} tokens each"
    print(f"\n{report.machine()}; {what}; {options.target.url if options.target else options.serve_args}")
    print(f"\n{report.table(rows)}")
    report.write_json(options.json, rows)
    return 0 if all(row["equal"] == row["wanted"] for row in rows) else 1


Answer = tuple[str, int, int]
"""Text, tokens of the prompt, tokens of the answer."""


def compared(name: str, answers: Sequence[Answer], expected: Sequence[Reference]) -> report.Row:
    """Number of equal answers, and the position of the first difference of others. Prints the first _SHOWN of those."""
    agreed = [each.agreed_tokens(text) for (text, _, _), each in zip(answers, expected, strict=True)]
    equal = [
        answer == (each.text, each.num_prompt_tokens, len(each.ids))
        for answer, each in zip(answers, expected, strict=True)
    ]
    differing = [index for index, same in enumerate(equal) if not same]
    for index in differing[:_SHOWN]:
        text, num_prompt_tokens, num_tokens = answers[index]
        each = expected[index]
        print(f"  {name}, prompt {index} of {each.num_prompt_tokens} tokens, differs after {agreed[index]} tokens:")
        print(f"    got {num_tokens} tokens ({num_prompt_tokens} of the prompt): {text!r}\n    not {each.text!r}")
    return {
        "answers": name,
        "compared with": "transformers",
        "equal": len(equal) - len(differing),
        "wanted": len(equal),
        "tokens agreed %": 100 * sum(agreed) / sum(len(each.ids) for each in expected),
        "first difference, token": min((agreed[index] for index in differing), default=""),
        "median first difference": statistics.median(agreed[index] for index in differing) if differing else "",
    }


def _beside_alone(name: str, answers: Sequence[Answer], alone: Sequence[Answer]) -> report.Row:
    equal = sum(answer == other for answer, other in zip(answers, alone, strict=True))
    return {"answers": name, "compared with": "alone", "equal": equal, "wanted": len(alone)}


def _answers(texts: Sequence[str], options: argparse.Namespace) -> dict[str, list[Answer]]:
    """Pass -> answers, in the order of the prompts."""
    found = {}
    given = [options.target] if options.target else None
    for passes in PASSES:
        with targets_or_started(given, options.serve_args, str(options.model)) as (target,):
            for name, clients in passes:
                with tqdm(desc=f"{target.name}, {name}", total=len(texts), unit="prompt") as bar:
                    found[name] = asyncio.run(_ask_all(target, texts, options.tokens, clients or options.clients, bar))
    return found


async def _ask_all(target: Target, texts: Sequence[str], num_tokens: int, clients: int, bar: tqdm[Any]) -> list[Answer]:
    """Send every prompt, ``clients`` at once. Raises aiohttp.ClientError if one is refused."""
    semaphore = asyncio.Semaphore(clients)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0), raise_for_status=True
    ) as session:

        async def ask(prompt: str) -> Answer:
            async with semaphore:
                answer = await _ask(session, target, prompt, num_tokens)
            bar.update()
            return answer

        return list(await asyncio.gather(*map(ask, texts)))


async def _ask(session: aiohttp.ClientSession, target: Target, prompt: str, num_tokens: int) -> Answer:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": num_tokens,
        "temperature": 0,
        "repetition_penalty": 1,
        "ignore_eos": True,
    }
    async with session.post(f"{target.url}/v1/chat/completions", json=body) as response:
        reply = await response.json()
    usage = reply["usage"]
    return reply["choices"][0]["message"]["content"], usage["prompt_tokens"], usage["completion_tokens"]


if __name__ == "__main__":
    sys.exit(main())
