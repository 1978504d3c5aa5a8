"""``mmserve bench``: its flags, the servers it measures, and what it writes."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmserve.config.options import OptionError
from mmserve.runtime.errors import StartupError

if TYPE_CHECKING:
    from mmserve.cli.bench.measure import Level
    from mmserve.cli.bench.plan import Load
    from mmserve.cli.bench.probe import Target
    from mmserve.cli.bench.report import Run

_DESCRIPTION = """\
Measure an OpenAI-style server: TTFT, TPOT, ITL and E2E percentiles, throughput, goodput.

  mmserve bench --url http://localhost:8000 --concurrency 1,4,16,64
  mmserve bench --url http://localhost:8000 --request-rate 2,4,8 --goodput ttft:500,tpot:50 --html bench.html
  mmserve bench --compare http://localhost:8000 http://localhost:9000 --images 1 --repeats 3

Without --url a server with --model is started and stopped afterwards."""
_EPILOG = """\
With --request-rate, requests are sent at times decided before the run (a Poisson process), and times count from
these. The figures are named and defined as in vLLM's benchmark. The server's key is read from MMSERVE_API_KEY or
OPENAI_API_KEY."""
LATE_STATUS = 3
"""Exit status if the client was too slow for its load: the figures are not the server's."""


def add_bench(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "bench",
        help="measure a server under load",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="mmserve bench [--url URL | --compare URL URL ... | --model MODEL] [option ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--url", help="server to measure, with or without /v1; default: start one")
    parser.add_argument("--compare", nargs="+", metavar="URL", help="servers to measure in turn")
    parser.add_argument("--model", help="name in requests [the server's first], or of the model to start [llava]")
    load = parser.add_argument_group("requests")
    load.add_argument("--num-prompts", type=int, default=100, metavar="N", help="requests of each run [%(default)s]")
    load.add_argument("--input-tokens", type=int, default=128, metavar="N", help="of random prompts [%(default)s]")
    load.add_argument("--output-tokens", type=int, default=64, metavar="N", help="of each answer [%(default)s]")
    load.add_argument("--prompts", type=Path, metavar="FILE", help='own prompts: a text a line, or JSON with "prompt"')
    load.add_argument("--images", type=int, default=0, metavar="N", help="pictures in each request [%(default)s]")
    load.add_argument("--image-size", default="640x480", metavar="WxH", help="of random pictures [%(default)s]")
    load.add_argument("--image-pool", type=int, default=0, metavar="N", help="different ones in all; 0: all new [0]")
    load.add_argument("--image-dir", type=Path, metavar="DIR", help="take pictures from this directory")
    load.add_argument(
        "--extra", default='{"ignore_eos": true}', metavar="JSON", help="fields of every request [%(default)s]"
    )
    level = parser.add_argument_group("load")
    level.add_argument("--concurrency", metavar="N,N,...", help="clients that each wait for their answer [16]")
    level.add_argument("--request-rate", metavar="R,R,...", help="requests a second, whether answered or not; or inf")
    level.add_argument("--burstiness", type=float, default=1.0, metavar="X", help="shape of the gaps; 1: Poisson [1]")
    level.add_argument("--max-concurrency", type=int, metavar="N", help="with --request-rate: requests at once at most")
    level.add_argument("--repeats", type=int, default=1, metavar="N", help="runs; medians are reported [%(default)s]")
    level.add_argument("--seed", type=int, help="of prompts, pictures and times [another each time]")
    level.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of one request [%(default)g]")
    result = parser.add_argument_group("result")
    result.add_argument("--goodput", metavar="NAME:MS,...", help="limits of a good answer: ttft, tpot, e2el")
    result.add_argument("--json", type=Path, metavar="FILE", help="write a JSON object for each run, one a line")
    result.add_argument("--save-detailed", action="store_true", help="with --json: times of every request, too")
    result.add_argument("--html", type=Path, metavar="FILE", help="write a report with charts")
    result.add_argument("--no-progress", action="store_true", help="show no progress bar")


def bench(arguments: argparse.Namespace) -> int:
    """Run the command; 3 if the client was late, else 1 if a request failed. Raises StartupError."""
    # Imported here: these would slow down --help.
    from tqdm import tqdm

    from mmserve.cli.bench.measure import Settings, measure
    from mmserve.cli.bench.report import errors, rows, warnings
    from mmserve.cli.tables import aligned

    levels, slo_ms, load = _levels(arguments), _slo(arguments.goodput), _load(arguments)
    seed = random.randrange(1 << 31) if arguments.seed is None else arguments.seed
    settings = Settings(arguments.repeats, seed, arguments.timeout, slo_ms)
    with _targets(arguments) as targets:
        loads = {target: _suited(load, target, arguments) for target in targets}
        total = len(levels) * len(targets) * arguments.repeats * arguments.num_prompts
        with tqdm(total=total, unit="request", disable=arguments.no_progress) as bar:
            runs = measure(
                loads,
                levels,
                settings,
                lambda target, level, repeat: bar.set_description(
                    f"{target.name}, {level.name}" if repeat else f"{target.name}, warm-up"
                ),
                bar.update,
            )
    print("\n".join(aligned(rows(runs))))
    for line in errors(runs):
        print(f"failed: {line}")
    late = warnings(runs)
    for line in late:
        print(f"warning: {line}")
    _write(arguments, runs, targets, seed)
    if late:
        return LATE_STATUS
    return 1 if any(run.figures["failed"] for run in runs) else 0


def _levels(arguments: argparse.Namespace) -> list[Level]:
    from mmserve.cli.bench.measure import Level

    if arguments.concurrency and arguments.request_rate:
        raise OptionError("--concurrency and --request-rate do not go together: the first waits for answers")
    if arguments.max_concurrency is not None and not arguments.request_rate:
        raise OptionError("--max-concurrency needs --request-rate; without it, use --concurrency")
    for name in ("num_prompts", "input_tokens", "output_tokens", "repeats", "burstiness", "timeout"):
        if getattr(arguments, name) <= 0:
            raise OptionError(f"--{name.replace('_', '-')} must be above 0")
    if arguments.request_rate:
        rates = _numbers("--request-rate", arguments.request_rate, float)
        return [Level(rate, None, arguments.burstiness, arguments.max_concurrency) for rate in rates]
    return [Level(concurrency=int(count)) for count in _numbers("--concurrency", arguments.concurrency or "16", int)]


def _numbers(flag: str, text: str, kind: type[int] | type[float]) -> list[float]:
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if not all(number > 0 for number in found):
        raise OptionError(f"{flag} {text}: write numbers above 0, separated by commas")
    return [float(number) for number in found]


def _slo(text: str | None) -> dict[str, float]:
    from mmserve.cli.bench.figures import SLO_METRICS

    found = {}
    for part in text.split(",") if text else ():
        name, _, limit = part.partition(":")
        try:
            found[name] = float(limit)
        except ValueError:
            found[name] = math.nan
        if name not in SLO_METRICS or not found[name] > 0:
            raise OptionError(f"--goodput {part}: write a name of {', '.join(SLO_METRICS)} and its limit, as ttft:500")
    return found


def _load(arguments: argparse.Namespace) -> Load:
    from mmserve.cli.bench.plan import Load, read_pictures, read_prompts

    width, _, height = arguments.image_size.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise OptionError(f"--image-size {arguments.image_size}: write it as 640x480")
    try:
        extra = json.loads(arguments.extra)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise OptionError("--extra must be a JSON object")
    return Load(
        requests=arguments.num_prompts,
        words=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        images=arguments.images or (1 if arguments.image_dir else 0),
        image_size=(int(width), int(height)),
        image_pool=arguments.image_pool,
        prompts=read_prompts(arguments.prompts) if arguments.prompts else (),
        pictures=read_pictures(arguments.image_dir) if arguments.image_dir else (),
        extra=extra,
    )


@contextlib.contextmanager
def _targets(arguments: argparse.Namespace) -> Iterator[list[Target]]:
    from mmserve.cli.bench.probe import Target, names, served_model
    from mmserve.client.own_server import own_server

    if arguments.url and arguments.compare:
        raise OptionError("--url and --compare do not go together")
    key = os.environ.get("MMSERVE_API_KEY") or os.environ.get("OPENAI_API_KEY")
    urls = [url.rstrip("/").removesuffix("/v1") for url in arguments.compare or [arguments.url] if url]
    if urls:
        yield [
            Target(name, url, arguments.model or served_model(url, key), key)
            for name, url in zip(names(urls), urls, strict=True)
        ]
        return
    name = arguments.model or "llava"
    print(f"starting a server with {name}")
    with own_server(name) as server:
        yield [Target("server", server.url, served_model(server.url, server.api_key), server.api_key)]


def _suited(load: Load, target: Target, arguments: argparse.Namespace) -> Load:
    """With as many words as make --input-tokens, and asking for stages if the server gives them."""
    from dataclasses import replace

    from mmserve.cli.bench.probe import gives_stages, tokens_per_word

    words = round(load.words / tokens_per_word(target, load, arguments.timeout))
    return replace(load, words=max(1, words), timed=gives_stages(target, load, arguments.timeout))


def _write(arguments: argparse.Namespace, runs: Sequence[Run], targets: Sequence[Target], seed: int) -> None:
    from mmserve.cli.bench.report import html

    about = [
        f"{', '.join(f'{target.url} ({target.model})' for target in targets)}; {time.strftime('%Y-%m-%d %H:%M')}",
        f"{arguments.num_prompts} requests a run, medians of {arguments.repeats}, seed {seed}",
    ]
    try:
        if arguments.html:
            arguments.html.write_text(html("mmserve bench", about, runs))
        if arguments.json:
            arguments.json.write_text("".join(json.dumps(_object(run, arguments, seed)) + "\n" for run in runs))
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from None


def _object(run: Run, arguments: argparse.Namespace, seed: int) -> Mapping[str, Any]:
    """One run, with the names that vLLM's benchmark writes; what it has not is under ``mmserve``."""
    from mmserve.cli.bench.stages import stages_ms

    finite = {
        name: None if isinstance(value, float) and math.isnan(value) else value for name, value in run.figures.items()
    }
    found: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat",
        "label": run.label,
        "request_rate": (run.level or "inf") if arguments.request_rate else None,
        "burstiness": arguments.burstiness,
        "max_concurrency": arguments.max_concurrency if arguments.request_rate else int(run.level),
        **finite,
        "mmserve": {
            "server": run.server,
            "seed": seed,
            "repeats": arguments.repeats,
            "client_late": run.late or None,
            "stages_ms": stages_ms(run.records),
        },
    }
    if arguments.save_detailed:
        found["requests"] = [asdict(record) for record in run.records]
    return found
