"""What a JSON schema costs: tokens/s of 16 choices that must fit one, beside 16 free ones of the same server.

    python -m benchmarks.structured_output [--model DIR] [--choices 16] [--tokens 128] [--rounds 5] [--json FILE]

First a rank alone, in this process: steps of free and of constrained sequences alternate, so other work on the machine
slows both alike. "prepare" is the time in which the next masks are made; a rank does this while the router makes the
next plan. This is without ``--jump-forward``.

Then whole servers, with ``--jump-forward`` (the default) and without. A request asks for 16 choices of the same length;
no text that fits a schema is that short, so no choice ends earlier. One free request and one for each kind of schema
alternate. "known": the same schema in every request, so it is validated and compiled already, as an application's is.
"new each time": the request waits until its schema is validated, and its first step for the compilation; this takes the
same time ("ms more") however long the answers are. "cost" is the share of tokens/s that a schema takes, the median
over the rounds. It is negative where computing forced text in one step saves more than the masks cost. CPU time is that
of all processes of the server. The first round is not counted.
"""

from __future__ import annotations

import argparse
import contextlib

from benchmarks.load.report import table, write_json
from benchmarks.load.server import serve
from benchmarks.structured.rank import steps
from benchmarks.structured.server import Load, rows

_OPTIONS = ("--jump-forward", "--no-jump-forward")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava")
    parser.add_argument("--choices", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    of_a_rank = steps(arguments.model, arguments.choices)
    print(table([of_a_rank]), flush=True)
    load = Load(arguments.model, arguments.choices, arguments.tokens)
    with contextlib.ExitStack() as stack:
        targets = {
            option: stack.enter_context(serve("--max-num-seqs", str(arguments.choices), option, model=arguments.model))
            for option in _OPTIONS
        }
        of_servers = rows(load.rounds(targets, arguments.rounds))
    print(table(of_servers))
    write_json(arguments.json, [of_a_rank, *of_servers])


if __name__ == "__main__":
    main()
