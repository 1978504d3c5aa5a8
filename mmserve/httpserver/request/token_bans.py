"""Requests whose parameters ban every token: found here if it is certain at once, else by the engine. Pure."""

from __future__ import annotations

from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import NoTokenAllowed


def check_a_token_is_left(sampling: SamplingParams) -> None:
    """Raise NoTokenAllowed if no first token can be sampled.

    Only a list of allowed tokens tells that here: the bans of a request name far fewer tokens than a vocabulary has.
    """
    if not sampling.allowed_token_ids:
        return
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        banned.update(sampling.ending_token_ids)
    if banned.issuperset(sampling.allowed_token_ids):
        raise no_token_allowed(sampling, "")


def no_token_allowed(sampling: SamplingParams, grammar_param: str) -> NoTokenAllowed:
    """The error of such a request. ``grammar_param``: the field that the grammar comes from."""
    bans = (
        ("allowed_token_ids", bool(sampling.allowed_token_ids)),
        ("bad_words", bool(sampling.bad_words)),
        ("min_tokens", bool(sampling.min_tokens and sampling.ending_token_ids)),
        (grammar_param, bool(sampling.grammar)),
    )
    fields = [name for name, is_set in bans if is_set and name]
    together = " together" if len(fields) > 1 else ""
    return NoTokenAllowed(
        f"no token is left that may come next: {' and '.join(fields) or 'the request'}{together} ban all of them",
        param=fields[0] if fields else None,
    )
