"""Which sequences get drafts: those by which steps bring more tokens a second, by what was observed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

import pytest

from mmserve.messages.step import DraftTimes
from mmserve.router.speculation.draft_source import MAX_DRAFT_TOKENS, DraftSource
from mmserve.router.speculation.drafter import Drafter

TEXT = list(range(100, 160))


class Answer:
    """A sequence that writes ``text`` after a prompt with TEXT."""

    def __init__(self, text: list[int]) -> None:
        self.tokens = array("q", [*TEXT, 1, *text[:3]])
        self.text = text[3:]
        self.draft_source: DraftSource | None = None
        self.ending_token_ids: tuple[int, ...] = ()
        self.largest_image_tokens = 0

    @property
    def max_draft_tokens(self) -> int:
        return len(self.text) - 1


def generate(answers: list[Answer], drafter: Drafter, step_s: Callable[[int], float]) -> tuple[float, int]:
    """Decodes as the scheduler does; returns the seconds of all steps, and their number."""
    seconds, num_steps = 0.0, 0
    while running := [answer for answer in answers if answer.text]:
        drafts = drafter.drafts(running)
        num_drafted = sum(draft.num_tokens for draft in drafts.values())
        took_s = step_s(len(running) + num_drafted)
        seconds, num_steps = seconds + took_s, num_steps + 1
        drafter.observe_step(len(running), num_drafted, took_s)
        for answer in running:
            draft = drafts[answer].token_ids if answer in drafts else ()
            accepted = next((i for i, token in enumerate(draft) if answer.text[i] != token), len(draft))
            if draft and answer.draft_source is not None:
                drafter.observe_draft(answer.draft_source, len(draft), accepted)
            answer.tokens.extend(answer.text[: accepted + 1])
            answer.text = answer.text[accepted + 1 :]
    return seconds, num_steps


def copied() -> list[int]:
    return TEXT * 8


def misleading() -> list[int]:
    """Every three tokens stand in the prompt, and what follows them there never comes."""
    return [token for start in range(0, 300) for token in (*TEXT[start % 50 : start % 50 + 3], 1000 + start)]


def test_a_copy_takes_few_steps_where_rows_are_free() -> None:
    _, num_steps = generate([Answer(copied())], Drafter(), lambda rows: 0.01)
    assert num_steps < len(copied()) / (MAX_DRAFT_TOKENS - 4)


def often_right(share: float, seed: int = 1) -> list[int]:
    """After three tokens of the prompt each next one is its next token with this probability, else another."""
    draw, text, place = random.Random(seed), TEXT[:3], 3
    while len(text) < 600:
        if draw.random() < share:
            text.append(TEXT[place % len(TEXT)])
            place += 1
        else:
            place = draw.randrange(len(TEXT) - 3)
            text += [5000 + len(text), *TEXT[place : place + 3]]
            place += 3
    return text


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 1.0])
def test_little_is_lost_where_each_row_costs_as_much_as_a_step(share: float) -> None:
    """Drafts gain nothing there, however often they are right."""
    text = often_right(share)
    seconds, _ = generate([Answer(text)], Drafter(), lambda rows: 0.01 * rows)
    assert seconds <= 0.01 * (len(text) - 3) / 0.97


@pytest.mark.parametrize("row_s", [0.0005, 0.002, 0.01])
@pytest.mark.parametrize("num_answers", [1, 4])
def test_wrong_drafts_cost_little(num_answers: int, row_s: float) -> None:
    def step_s(rows: int) -> float:
        return 0.01 + row_s * (rows - 1)

    text = misleading()
    drafter = Drafter()
    generate([Answer(text[:100])], drafter, step_s)
    seconds, _ = generate([Answer(text) for _ in range(num_answers)], drafter, step_s)
    alone, _ = generate(
        [Answer([-1 - index for index in range(len(text))]) for _ in range(num_answers)], Drafter(), step_s
    )
    assert seconds <= alone / 0.97


def uneven(step_s: Callable[[int], float], seed: int) -> Callable[[int], float]:
    """Steps of a machine with other work, which also become slower as texts grow."""
    draw, slowness = random.Random(seed), 1.0

    def observed_s(rows: int) -> float:
        nonlocal slowness
        slowness += 0.0005
        hiccup = 1.5 if draw.random() < 0.01 else 1.0
        return step_s(rows) * slowness * hiccup * (1.0 + abs(draw.gauss(0.0, 0.05)))

    return observed_s


@pytest.mark.parametrize("share", [0.5, 0.75])
@pytest.mark.parametrize("num_answers", [16, 32])
@pytest.mark.parametrize(
    "step_s",
    [
        pytest.param(lambda rows: 0.01 + 0.0005 * (rows - 1), id="each row costs"),
        pytest.param(lambda rows: 0.01 + 0.002 * ((rows - 1) // 8), id="rows in eights"),
        pytest.param(lambda rows: 0.01 + 0.006 * ((rows - 1) // 16), id="rows in sixteens"),
    ],
)
def test_many_drafts_of_little_gain_lose_little(step_s: Callable[[int], float], num_answers: int, share: float) -> None:
    """Each may gain a little by itself, but the batch ends with its slowest answer. Times vary from step to step."""
    for seed in range(2):
        texts = [often_right(share, 100 * seed + number)[:400] for number in range(num_answers)]
        unlike = [[-1 - index for index in range(len(text))] for text in texts]
        seconds, _ = generate([Answer(text) for text in texts], Drafter(), uneven(step_s, seed))
        alone, _ = generate([Answer(text) for text in unlike], Drafter(), uneven(step_s, seed + 10))
        assert seconds <= alone / 0.97


def test_a_copy_is_faster_in_a_step_of_several_answers() -> None:
    def step_s(rows: int) -> float:
        return 0.01 + 0.0007 * (rows - 1)

    drafter = Drafter()
    generate([Answer(copied())], drafter, step_s)
    seconds, _ = generate([Answer(copied()) for _ in range(2)] + [Answer(misleading()[:500])], drafter, step_s)
    assert seconds < 500 * step_s(3)


def test_drafts_are_tried_again_when_rows_have_become_free() -> None:
    drafter = Drafter()
    generate([Answer(copied())], drafter, lambda rows: 0.01 * rows)
    for _ in range(7):
        generate([Answer(copied())], drafter, lambda rows: 0.01)
    _, num_steps = generate([Answer(copied())], drafter, lambda rows: 0.01)
    assert num_steps < len(copied()) / 3


def generate_with_model(
    answers: list[Answer], drafter: Drafter, share: float, step_s: Callable[[int], float], pass_s: float, row_s: float
) -> tuple[float, float, int]:
    """As ``generate``, with a draft model that is right with this probability. Returns the seconds of all steps, those
    of steps without drafts, and the drafted tokens."""
    draw, computed = random.Random(2), dict.fromkeys(answers, 0)
    seconds = plain_s = num_drafted = 0.0
    while running := [answer for answer in answers if answer.text]:
        drafts = drafter.drafts(running)
        asked = {answer: draft.num_tokens for answer, draft in drafts.items()}
        num_rows = sum(min(256, len(answer.tokens) - computed[answer]) for answer in asked)
        lengths = {answer: asked[answer] if len(answer.tokens) - computed[answer] <= 256 else 0 for answer in asked}
        draft_s = pass_s * max([*lengths.values(), 0]) + row_s * num_rows if asked else 0.0
        target_s = step_s(len(running) + sum(lengths.values()))
        seconds, plain_s = seconds + target_s + draft_s, plain_s + step_s(len(running))
        drafter.observe_step(len(running), sum(lengths.values()), target_s)
        if asked:
            drafter.observe_proposals(list(lengths.values()), num_rows, draft_s)
        for answer in running:
            length = lengths.get(answer, 0)
            computed[answer] += min(256, len(answer.tokens) - computed[answer]) if answer in asked else 0
            accepted = next((place for place in range(length) if draw.random() >= share), length)
            source = answer.draft_source
            if answer in asked and source is not None:
                source.computed(len(answer.tokens), len(answer.tokens) - computed[answer])
            if length and source is not None:
                num_drafted += length
                drafter.observe_draft(source, length, accepted)
            answer.tokens.extend(answer.text[: accepted + 1])
            answer.text = answer.text[accepted + 1 :]
            computed[answer] = min(computed[answer] + accepted, len(answer.tokens) - 1)
    return seconds, plain_s, int(num_drafted)


def stories(num_answers: int, prompt: int = 100, length: int = 400) -> list[Answer]:
    """Answers that repeat nothing, of texts without pictures."""
    found = []
    for number in range(num_answers):
        answer = Answer([-1 - number * 10_000 - index for index in range(length)])
        answer.tokens = array("q", [-5_000_000 - index for index in range(prompt)] + answer.tokens.tolist()[-3:])
        found.append(answer)
    return found


def model_drafter(pass_s: float, row_s: float, model_context: int = 100_000) -> Drafter:
    return Drafter(ngrams=False, model_context=model_context, draft_times=DraftTimes(pass_s, row_s))


def test_a_draft_model_that_is_often_right_saves_steps() -> None:
    drafter = model_drafter(0.001, 0.00004)
    seconds, _, _ = generate_with_model(stories(1), drafter, 0.85, lambda rows: 0.01, 0.001, 0.00004)
    assert seconds < 0.01 * 400 / 1.8


def test_a_costly_prompt_is_computed_after_some_answers_and_then_for_each() -> None:
    """Of a model that may be poor it would be lost."""
    drafter = model_drafter(0.001, 0.0002)
    drafted = [
        generate_with_model(stories(1, 150, length=131), drafter, 0.8, lambda rows: 0.01, 0.001, 0.0002)[2]
        for _ in range(8)
    ]
    first = next(number for number, count in enumerate(drafted) if count)
    assert 1 <= first <= 4
    assert all(drafted[first:])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("num_answers", [1, 16])
@pytest.mark.parametrize("pass_s", [0.001, 0.005])
@pytest.mark.parametrize("prompt", [100, 3000])
def test_a_draft_model_costs_little(share: float, num_answers: int, pass_s: float, prompt: int) -> None:
    def step_s(rows: int) -> float:
        return 0.01 + 0.0004 * (rows - 1)

    drafter = model_drafter(pass_s, 0.00004)
    first_s, _, _ = generate_with_model(stories(1), drafter, share, step_s, pass_s, 0.00004)
    assert first_s <= 397 * step_s(1) / 0.97
    seconds, _, _ = generate_with_model(stories(num_answers, prompt), drafter, share, step_s, pass_s, 0.00004)
    assert seconds <= 397 * step_s(num_answers) / 0.97


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize(("pass_s", "row_s"), [(0.001, 0.00006), (0.0037, 0.0002), (0.007, 0.0002)])
@pytest.mark.parametrize("num_answers", [1, 4])
def test_short_answers_lose_little_to_a_poor_draft_model(
    share: float, pass_s: float, row_s: float, num_answers: int
) -> None:
    """A few wrong drafts, and the draft model's computation of a prompt, are a large part of a short answer."""

    def step_s(rows: int) -> float:
        return 0.01 + 0.0002 * (rows - 1)

    drafter, plain_s = model_drafter(pass_s, row_s), 128 * step_s(num_answers)
    taken_s = []
    for _ in range(6):
        answers = stories(num_answers, prompt=150, length=131)
        taken_s.append(generate_with_model(answers, drafter, share, step_s, pass_s, row_s)[0])
    assert max(taken_s) <= plain_s / 0.97
    assert sum(taken_s) <= 6 * plain_s / 0.985


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("num_answers", [4, 16])
@pytest.mark.parametrize("row_s", [0.00001, 0.0002])
@pytest.mark.parametrize("rows_cost", [0.0, 0.025])
def test_many_answers_after_one_lose_little_to_their_prompts(
    share: float, num_answers: int, row_s: float, rows_cost: float
) -> None:
    """What drafts saved of one answer does not pay for the draft model's computation of many prompts at once."""

    def step_s(rows: int) -> float:
        return 0.01 * (1.0 + rows_cost * (rows - 1))

    drafter = model_drafter(0.001, row_s)
    generate_with_model(stories(1, 150), drafter, share, step_s, 0.001, row_s)
    for _ in range(2):
        answers = stories(num_answers, 150, length=131)
        seconds, _, _ = generate_with_model(answers, drafter, share, step_s, 0.001, row_s)
        assert seconds <= 128 * step_s(num_answers) / 0.97


def test_many_answers_gain_where_their_prompts_take_the_draft_model_little() -> None:
    drafter = model_drafter(0.001, 0.00001)
    generate_with_model(stories(1, 150), drafter, 0.8, lambda rows: 0.01, 0.001, 0.00001)
    seconds, _, _ = generate_with_model(stories(4, 150), drafter, 0.8, lambda rows: 0.01, 0.001, 0.00001)
    assert seconds < 397 * 0.01 / 1.5


def test_an_answer_about_a_picture_loses_little_to_drafts_of_others() -> None:
    """The draft model proposes nothing for it, so the others do not get drafts that make its steps longer."""
    drafter = model_drafter(0.002, 0.00001)
    generate_with_model(stories(1, 150), drafter, 0.9, lambda rows: 0.01, 0.002, 0.00001)
    answers = stories(4, 20, length=203)
    answers[0].largest_image_tokens = 16
    seconds, _, num_drafted = generate_with_model(answers, drafter, 0.9, lambda rows: 0.01, 0.002, 0.00001)
    assert seconds <= 200 * 0.01 / 0.97
    assert not num_drafted


def test_of_more_sequences_than_get_drafts_the_draft_model_computes_nothing() -> None:
    drafter = model_drafter(0.001, 0.0)
    drafter.observe_step(33, 0, 0.01)
    answers = stories(33, prompt=5)
    assert drafter.drafts(answers[:32])
    assert not drafter.drafts(answers)


def test_a_long_prompt_is_computed_only_for_an_answer_that_is_long_too() -> None:
    drafter = model_drafter(0.001, 0.00005)
    drafted = [
        generate_with_model(stories(1, prompt, length), drafter, 0.9, lambda rows: 0.01, 0.001, 0.00005)[2]
        for prompt, length in ((100, 400), (3000, 15), (3000, 400))
    ]
    assert drafted[0] > 100, "what these saved pays for the long prompt"
    assert drafted[1] == 0
    assert drafted[2] > 100


def test_nothing_is_proposed_beside_pictures_or_beyond_the_context_of_the_draft_model() -> None:
    (answer,) = stories(1)
    drafter = model_drafter(0.001, 0.0)
    drafter.observe_step(1, 0, 0.01)
    assert drafter.drafts([answer])
    answer.largest_image_tokens = 16
    assert not drafter.drafts([answer])
    answer.largest_image_tokens = 0
    short = model_drafter(0.001, 0.0, len(answer.tokens) + 3)
    short.observe_step(1, 0, 0.01)
    short.observe_proposals([1], 1, 0.001)
    assert [draft.num_tokens for draft in short.drafts([answer]).values()] == [2]


def test_what_followed_before_goes_before_what_a_draft_model_proposes() -> None:
    drafter = Drafter(ngrams=True, model_context=1000)
    drafter.observe_step(2, 0, 0.01)
    copy, story = Answer(copied()), stories(1)[0]
    drafts = drafter.drafts([copy, story])
    assert drafts[copy].token_ids
    assert not drafts[story].token_ids
    assert drafts[story].num_tokens
