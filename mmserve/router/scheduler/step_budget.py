"""How many tokens a step may compute so that prompts, and the images in them, do not hold up answers being written.

Learns what a step costs from the steps before it. Knows no sequences and no clock.
"""

from __future__ import annotations

MIN_CHUNK_TOKENS = 16
_SHARE = 3.0
"""Prompts may always cost so many times the step's decoding part: where many decode, a step is long anyway, and prompts
that come faster than they are computed wait in line for longer than their answers then take. With four, pictures beside
16 texts doubled the median gap of those; with three they do not change it (docs/performance.md)."""
_ALONE = 2.0
"""A step in which nobody decodes may take so many times as long. Longer ones are hardly faster a token, and whoever
comes during one waits until it is over."""
_WEIGHT = 0.2
_OUTLIER = 3.0
"""A step that took longer than so many times the expected (first use of a kernel, a busy machine) counts as that."""


class StepTimeModel:
    """``max_step_s``: about how long a step may take while somebody decodes, twice as long else; 0: no limit.

    Model: decoding costs d with n sequences, each prompt token and each further sequence p on top. All are moving
    averages, d and n over steps without prompt tokens, p over mixed steps.
    """

    def __init__(self, max_step_s: float) -> None:
        self._max_step_s = max_step_s
        self._decode_s = 0.0
        self._decode_rows = 0.0
        self._token_s = 0.0

    def budget_tokens(self, num_decoding: int, most: int) -> int:
        """Tokens of the next step, at most ``most``, when ``num_decoding`` sequences decode in it."""
        if not (self._max_step_s and self._token_s):
            return most
        if not num_decoding:
            return min(most, max(MIN_CHUNK_TOKENS, int(_ALONE * self._max_step_s / self._token_s)))
        decode_s = self._decode_s + self._token_s * self._rows_beyond(num_decoding)
        room_s = max(self._max_step_s - decode_s, decode_s * _SHARE)
        return min(most, num_decoding + max(MIN_CHUNK_TOKENS, int(room_s / self._token_s)))

    def observe(self, num_decoding: int, num_prompt: int, seconds: float) -> None:
        """What a step took in which so many sequences decoded beside so many tokens of prompts; 0 seconds: unknown."""
        if seconds <= 0 or not num_decoding + num_prompt:
            return
        if not num_prompt:
            self._decode_s = _moved(self._decode_s, seconds)
            self._decode_rows = _moved(self._decode_rows, num_decoding)
        elif num_prompt >= MIN_CHUNK_TOKENS // 2:
            decode_s = min(self._decode_s, 0.9 * seconds) if num_decoding else 0.0
            self._token_s = _moved(self._token_s, (seconds - decode_s) / (num_prompt + self._rows_beyond(num_decoding)))

    def _rows_beyond(self, num_decoding: int) -> float:
        return max(0.0, num_decoding - self._decode_rows)


def _moved(average: float, value: float) -> float:
    if not average:
        return value
    return average + _WEIGHT * (min(value, _OUTLIER * average) - average)
