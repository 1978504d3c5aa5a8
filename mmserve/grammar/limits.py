"""Limits of grammars, the same where they are validated and where they are used."""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_SOURCE_CHARS = 256 * 1024
"""Of a JSON schema as JSON text, or of all choices together."""
MAX_EXPRESSION_CHARS = 64 * 1024
"""Of a regular expression or a Lark grammar."""
MAX_GRAMMAR_CHARS = MAX_SOURCE_CHARS + 4096
"""Of a grammar as it is sent to the engine."""


def parser_limits() -> LLParserLimits:
    """llguidance's limits: about 10 ms for the mask of one token, and 40 MB of lexer states for one sequence.

    They do not bound the time in which a grammar is compiled: see ``isolated``.
    """
    return LLParserLimits(
        max_grammar_size=20_000,
        step_max_items=20_000,
        step_lexer_fuel=100_000,
        max_lexer_states=20_000,
        verbose_errors=False,
    )
