"""How many prompt tokens a step may compute beside the sequences that decode.

``StepTimeModel`` learns the cost of steps and limits their length, so that prompts do not delay the output of running
requests. ``ChunkLimit`` limits them when memory runs out. ``StepBudget`` is what is left of one step, with a smaller
share for prompts with images. Pure: no clock, no I/O.
"""

from __future__ import annotations

from math import ceil, inf

from mmserve.messages.media import end_beside_images
from mmserve.router.scheduler.sequence import Sequence

MIN_CHUNK_TOKENS = 16
STEPS_TO_RECOVER = 128
"""Steps in a row that fit the memory before larger chunks are tried again."""
_PROMPT_FACTOR = 3.0
"""In a step with decoding sequences, prompts may take this many times the time of the decoding, even if the step then
takes longer than ``max_step_s``. Otherwise many decoding sequences would leave no time for prompts, and prompts that
arrive faster than they are computed would wait longer than their answers take. With 4, images beside 16 texts doubled
the median inter-token latency of the texts; with 3 they do not change it (docs/design/scheduling.md).
"""
_IDLE_FACTOR = 2.0
"""A step without decoding sequences may take this many times ``max_step_s``: a request that arrives during it waits for
its end. Longer steps are hardly faster per token, unless they have few tokens."""
_FEW_TOKENS = 160
"""Steps without decoding sequences have at least so many tokens, if these fit twice that time. Behind 4,000 tokens and
more, a prompt's step of 75 tokens takes 8 % more time for each than one of 150 (docs/performance.md)."""
_MEDIA_SHARE_BESIDE_TEXT = 2 / 3
"""Share of the prompt tokens for prompts with images while text waits or runs. Short texts pass in the rest, and steps
end sooner."""
_AVERAGE_WEIGHT = 0.2
_OUTLIER_FACTOR = 3.0
"""Times are limited to this many times their average before they enter it. So one slow step (first use of a kernel, a
busy machine) changes the average little."""
_MIN_OBSERVED_TOKENS = MIN_CHUNK_TOKENS // 2
"""Mixed steps with fewer prompt tokens do not enter token_s. Their prompts cost less than decoding varies from step to
step."""
_OWN_STEP_FACTOR = 2.0
"""One step more costs about as much as a decode-only step, which reads all weights."""
_MIN_OWN_STEP_S = 0.005
"""For models so small that most of a step is messages and waking up."""
_MAX_DECODE_FRACTION = 0.9
"""A mixed step spends at most this part of its time on decoding, whatever decode_s is. Otherwise a step shorter than
decode_s would make token_s zero or negative."""


class StepTimeModel:
    """Predicts step times to find the prompt tokens that fit ``max_step_s`` seconds (0: no limit).

        step_s = decode_s + token_s * (prompt_tokens + max(0, decoding - decode_rows))

    decode_s is the time of a decode-only step, decode_rows the number of sequences in it, and token_s the time of each
    token in a mixed step. Each is a moving average.

    ``max_step_s`` is a target, no hard limit. Longer steps are allowed for prompts beside many decoding sequences
    (_PROMPT_FACTOR), without decoding sequences (_IDLE_FACTOR), and for MIN_CHUNK_TOKENS prompt tokens in every step.
    """

    def __init__(self, max_step_s: float) -> None:
        self._max_step_s = max_step_s
        self._decode_s = 0.0
        self._decode_rows = 0.0
        self._token_s = 0.0

    @property
    def decode_s(self) -> float:
        """Seconds of a step without prompts. 0: unknown."""
        return self._decode_s

    @property
    def own_step_tokens(self) -> float:
        """Prompt tokens that are worth a step of their own, where they could wait for the next one. 0: unknown."""
        worth_s = max(_OWN_STEP_FACTOR * self._decode_s, _MIN_OWN_STEP_S)
        return worth_s / self._token_s if self._token_s else 0.0

    @property
    def enough_to_start(self) -> float:
        """Prompt tokens of newly started sequences after which a step starts no more. Without a limit to steps, none.

        The first of many that arrive together get their first token earlier, and later ones hardly later. And those of
        equal lengths do not end all at once, to be followed by as many at once: so steps with prompts decode more.
        """
        return self.own_step_tokens if self._max_step_s and self._token_s else inf

    def chunk_budget(self, num_decoding: int, max_tokens: int) -> int:
        """Prompt tokens for the next step, in which ``num_decoding`` sequences decode. At most ``max_tokens``."""
        if not (self._max_step_s and self._token_s):
            return max_tokens
        if num_decoding:
            decode_s = self._decode_s + self._token_s * self._rows_beyond_average(num_decoding)
            room_s = max(self._max_step_s - decode_s, decode_s * _PROMPT_FACTOR)
        else:
            room_s = _IDLE_FACTOR * self._max_step_s
            room_s = max(room_s, min(2 * room_s, _FEW_TOKENS * self._token_s))
        return min(max_tokens, max(MIN_CHUNK_TOKENS, round(room_s / self._token_s)))

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """Records the time of a step; 0 seconds: unknown."""
        if seconds <= 0 or not num_decoding + num_prompt_tokens:
            return
        if not num_prompt_tokens:
            self._decode_s = _average(self._decode_s, seconds)
            self._decode_rows = _average(self._decode_rows, num_decoding)
        elif num_prompt_tokens >= _MIN_OBSERVED_TOKENS:
            decode_s = min(self._decode_s, _MAX_DECODE_FRACTION * seconds) if num_decoding else 0.0
            num_rows = num_prompt_tokens + self._rows_beyond_average(num_decoding)
            self._token_s = _average(self._token_s, (seconds - decode_s) / num_rows)

    def _rows_beyond_average(self, num_decoding: int) -> float:
        return max(0.0, num_decoding - self._decode_rows)


class ChunkLimit:
    """Prompt tokens that a step may have by the experience of the ranks' memory: at most ``max_tokens``.

    Halved when memory runs out, but not below MIN_CHUNK_TOKENS. Doubled again after STEPS_TO_RECOVER steps that fit.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.num_tokens = max_tokens
        self._num_fitting = 0

    def observe(self, num_prompt_tokens: int, *, out_of_memory: bool) -> None:
        """Records a step."""
        if out_of_memory:
            self.num_tokens = max(MIN_CHUNK_TOKENS, min(self.num_tokens, num_prompt_tokens) // 2)
            self._num_fitting = 0
        elif self.num_tokens < self._max_tokens:
            self._num_fitting += 1
            if self._num_fitting == STEPS_TO_RECOVER:
                self.num_tokens = min(self._max_tokens, 2 * self.num_tokens)
                self._num_fitting = 0


class StepBudget:
    """Prompt tokens that the step being planned can still compute.

    ``beside_text``: sequences without images run or wait, so prompts with images get a part of the tokens only.
    ``image_room``: chunks may not end inside an image. An image that does not fit the tokens is computed all the same,
    within so many tokens of the step. None: chunks may end anywhere. ``largest_image``: tokens that any image may have
    then.
    """

    def __init__(
        self, num_tokens: int, *, beside_text: bool, image_room: int | None = None, largest_image: int = 0
    ) -> None:
        self.num_tokens = num_tokens
        self._num_media_tokens = ceil(_MEDIA_SHARE_BESIDE_TEXT * num_tokens) if beside_text else num_tokens
        self._image_room = image_room
        self._largest_image = largest_image

    def room(self, sequence: Sequence) -> int:
        """Tokens of the sequence's prompt that fit the step; its next chunk is a little longer if it has to end after
        an image. 0: the step has no chunk for it.

        Once an image does not fit, no later prompt does.
        """
        if not sequence.request.spans:
            return self.num_tokens
        if self._image_room is not None and sequence.largest_image_tokens > self._image_room:
            self.num_tokens = 0  # or later prompts could take the image's room in every step
        return min(self.num_tokens, self._num_media_tokens)

    def take(self, sequence: Sequence) -> int:
        """Takes as many of the sequence's tokens to compute as fit, and returns their number."""
        num_tokens = min(sequence.num_plannable_tokens, self.room(sequence))
        if self._image_room is not None and num_tokens:
            start = sequence.num_computed_tokens
            num_tokens = end_beside_images(sequence.request.spans, start, start + num_tokens) - start
            self._image_room -= num_tokens
        self.num_tokens = max(0, self.num_tokens - num_tokens)
        if sequence.request.spans:
            self._num_media_tokens = max(0, self._num_media_tokens - num_tokens)
        return num_tokens

    def take_known(self, wanted: int) -> int:
        """Takes as many of the ``wanted`` tokens of a decoding sequence as fit, and returns their number. They leave
        room for any image that must be computed whole, so that no image waits for them in step after step."""
        num_tokens = min(wanted, self.num_tokens)
        if self._image_room is not None:
            num_tokens = max(0, min(num_tokens, self._image_room - self._largest_image))
            self._image_room -= num_tokens
        self.num_tokens -= num_tokens
        self._num_media_tokens = min(self._num_media_tokens, self.num_tokens)
        return num_tokens


def _average(average: float, value: float) -> float:
    if not average:
        return value
    return average + _AVERAGE_WEIGHT * (min(value, _OUTLIER_FACTOR * average) - average)
