"""Masks of grammars: the tokens that keep a text within its grammar, and no others; one bad grammar fails alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.grammar.sources import regex_grammar
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.sampling import TorchSampling
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker.sampling import grammar_compiler
from mmserve.model_backend.worker.sampling.grammar_compiler import GrammarCompiler
from mmserve.model_backend.worker.sampling.grammar_masks import GRAMMAR_FAILED, GRAMMAR_PENDING, GrammarMasks
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow
from tests.fakes.models.checkpoints import EOS, SPECIAL, VOCAB, make_llama
from tests.fakes.ranks.grammars import JSON, decode, encode

NOTHING = np.array([], dtype=np.int64)
TEXTS = [
    json.dumps({"colour": colour, "count": count}, separators=(",", ":"))
    for colour in ("red", "blue")
    for count in range(100)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return load(make_llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture
def masks(model: ModelSpec) -> GrammarMasks:
    return GrammarMasks(GrammarCompiler(model), VOCAB, TorchSampling())


def add(
    masks: GrammarMasks, slot: int, grammar: str, output: list[int] | None = None, *, may_force: bool = False
) -> None:
    masks.add_slot(slot, grammar, output or [], may_force=may_force)
    wait(masks, slot)


def wait(masks: GrammarMasks, slot: int) -> None:
    future = masks._slots[slot].pending.future
    future.exception(10)


def allowed(masks: GrammarMasks, slot: int) -> set[int]:
    logits = torch.zeros(1, VOCAB)
    assert masks.apply(logits, [slot]) == {}
    return set(torch.isfinite(logits[0]).nonzero().flatten().tolist())


def test_masks_are_those_of_brute_force(masks: GrammarMasks) -> None:
    """Without whitespace: a token is allowed if some complete text continues with it."""
    texts = [encode(text) for text in TEXTS]
    space = {encode(char)[0] for char in " \n\t"}
    for slot, text in enumerate(texts[::37]):
        add(masks, slot, JSON)
        for position in range(len(text) + 1):
            prefix = text[:position]
            expected = {other[position] for other in texts if other[:position] == prefix and len(other) > position}
            assert allowed(masks, slot) - space == (expected or {EOS}), decode(prefix)
            masks.update(slot, text[position : position + 1] or [EOS])


@pytest.mark.parametrize("grammar", [regex_grammar("(ab|a[0-9]{0,2})*", "x"), JSON])
def test_any_draw_spells_a_text_of_the_grammar(masks: GrammarMasks, grammar: str) -> None:
    sampler = Sampler(VOCAB, TorchSampling(), PlainTransfers(torch.device("cpu")), masks)
    generator = torch.Generator().manual_seed(0)
    outputs: list[list[int]] = [[] for _ in range(4)]
    rows = [SampleRow(slot, params(grammar, seed=slot), 0) for slot in range(4)]
    for row in rows:
        sampler.add_slot(row.slot, row.sampling, NOTHING, NOTHING)
        wait(masks, row.slot)
    for position in range(60):
        running = [row._replace(position=position) for row in rows if EOS not in outputs[row.slot]]
        if not running:
            break
        tokens = sampler.sample(torch.randn(len(running), VOCAB, generator=generator), running).tolist()
        for row, token in zip(running, tokens, strict=True):
            sampler.update(row.slot, (token,))
            outputs[row.slot].append(token)
        if position % 2:
            sampler.prepare()
    pattern = (
        r"(ab|a[0-9]{0,2})*" if "regex" in grammar else r'\{\s*"colour"\s*:\s*"(red|blue)"\s*,\s*"count"\s*:\s*\d+\s*\}'
    )
    ended = [output for output in outputs if output[-1] == EOS]
    assert ended
    for output in ended:
        assert re.fullmatch(pattern, decode(output)), decode(output)


def test_forced_tokens_are_those_that_the_masks_leave(masks: GrammarMasks) -> None:
    """They are named once; more follow when all of them are tokens of the sequence."""
    add(masks, 0, regex_grammar("one fixed text, then [ab] and the rest", "x"), may_force=True)
    forced = masks.force(0)
    assert decode(forced) == "one fixed text, then "
    for token in forced:
        assert masks.force(0) == ()
        assert allowed(masks, 0) == {token}
        masks.update(0, [token])
    assert masks.force(0) == ()
    masks.update(0, encode("a"))
    rest = masks.force(0)
    assert decode(rest) == " and the rest"
    masks.update(0, rest)
    assert allowed(masks, 0) == {EOS}
    assert masks.force(0) == ()


def test_no_tokens_are_forced_on_a_sequence_that_may_not_have_them(masks: GrammarMasks, model: ModelSpec) -> None:
    grammar = regex_grammar("fixed", "x")
    add(masks, 0, grammar)
    stepwise = GrammarMasks(GrammarCompiler(model), VOCAB, TorchSampling(), jumps=False)
    add(stepwise, 0, grammar, may_force=True)
    assert masks.force(0) == stepwise.force(0) == masks.force(1) == ()


def params(grammar: str = JSON, **changes: object) -> SamplingParams:
    return SamplingParams(max_tokens=100, grammar=grammar, stop_token_ids=(EOS,), **changes)  # type: ignore[arg-type]


def test_neither_bias_nor_penalties_bring_back_a_banned_token(masks: GrammarMasks) -> None:
    sampler = Sampler(VOCAB, TorchSampling(), PlainTransfers(torch.device("cpu")), masks)
    banned, brace = encode("x")[0], encode("{")[0]
    biased = params(temperature=0.0, logit_bias={banned: 100.0}, presence_penalty=-2.0, repetition_penalty=0.1)
    sampler.add_slot(0, biased, np.array([banned], dtype=np.int64), NOTHING)
    wait(masks, 0)
    assert sampler.needs_update(0)
    assert sampler.sample(torch.zeros(1, VOCAB), [SampleRow(0, biased, 1)]).tolist() == [brace]


def test_special_tokens_are_never_text(masks: GrammarMasks) -> None:
    add(masks, 0, regex_grammar("(.|\n)*", "x"))
    assert allowed(masks, 0) & set(range(len(SPECIAL))) == {EOS}


def test_rows_without_a_grammar_keep_their_logits(masks: GrammarMasks) -> None:
    add(masks, 5, JSON)
    logits = torch.randn(3, VOCAB)
    before = logits.clone()
    assert masks.apply(logits, [2, 5, 9]) == {}
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert not torch.equal(logits[1], before[1])


def test_a_resumed_sequence_continues_where_it_was(masks: GrammarMasks) -> None:
    for slot, text in enumerate(('{"colour":"', '{"colour":"red","count":4', '{"colour":"red","count":42}')):
        add(masks, slot, JSON)
        masks.update(slot, encode(text))
        add(masks, 10 + slot, JSON, encode(text))
        assert allowed(masks, slot) == allowed(masks, 10 + slot)


def test_sequences_with_one_grammar_do_not_share_their_state(masks: GrammarMasks) -> None:
    add(masks, 0, JSON)
    add(masks, 1, JSON)
    masks.update(0, encode('{"colour":"red"'))
    assert allowed(masks, 1) == {encode("{")[0]}


@pytest.mark.parametrize(
    ("grammar", "output"),
    [(JSON, encode("not json")), (JSON, [*encode("{}")]), ("start: nonsense", []), ('{"grammars": 5}', [])],
)
def test_a_grammar_that_cannot_be_followed_fails_its_own_row(
    masks: GrammarMasks, grammar: str, output: list[int]
) -> None:
    add(masks, 0, grammar, output)
    add(masks, 1, JSON)
    for _ in range(2):
        assert masks.apply(torch.zeros(2, VOCAB), [0, 1]) == {0: GRAMMAR_FAILED}
    masks.remove_slot(0)
    add(masks, 0, JSON)
    assert masks.apply(torch.zeros(2, VOCAB), [0, 1]) == {}


def test_a_matcher_that_breaks_in_the_middle_fails_its_own_row(masks: GrammarMasks) -> None:
    add(masks, 0, regex_grammar("(a{1,100}){1,100}", "x"))
    add(masks, 1, regex_grammar("a*", "x"))
    (letter,) = encode("a")
    failed = {}
    for _ in range(300):
        failed = masks.apply(torch.zeros(2, VOCAB), [0, 1])
        if failed:
            break
        masks.update(0, [letter])
        masks.update(1, [letter])
    assert failed == {0: GRAMMAR_FAILED}
    assert masks.apply(torch.zeros(2, VOCAB), [0, 1]) == {0: GRAMMAR_FAILED}


class LateCompiler(GrammarCompiler):
    """Compiles nothing until ``go_on``."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__(model)
        self.held: list[Callable[[], None]] | None = []

    def _submit(self, job: Callable[[], None]) -> None:
        if self.held is None:
            job()
        else:
            self.held.append(job)

    def go_on(self) -> None:
        held, self.held = self.held or [], None
        for job in held:
            job()


@pytest.fixture
def late(model: ModelSpec) -> LateCompiler:
    return LateCompiler(model)


def test_a_row_whose_grammar_is_not_compiled_gets_no_token_and_others_do_not_wait(late: LateCompiler) -> None:
    masks = GrammarMasks(late, VOCAB, TorchSampling())
    sampler = Sampler(VOCAB, TorchSampling(), PlainTransfers(torch.device("cpu")), masks)
    rows = [SampleRow(0, params(temperature=0.0), 0), SampleRow(1, SamplingParams(max_tokens=5, temperature=0.0), 0)]
    for row in rows:
        sampler.add_slot(row.slot, row.sampling, NOTHING, NOTHING)
    logits = torch.zeros(2, VOCAB)
    logits[:, 77] = 1.0
    assert sampler.sample(logits.clone(), rows).tolist() == [GRAMMAR_PENDING, 77]
    late.go_on()
    assert sampler.sample(logits.clone(), rows).tolist() == [GRAMMAR_PENDING, 77], "until it starts again"
    sampler.add_slot(0, rows[0].sampling, NOTHING, NOTHING)
    assert sampler.sample(logits.clone(), rows).tolist() == [encode("{")[0], 77]


def test_sequences_that_start_again_share_one_compilation(late: LateCompiler) -> None:
    masks = GrammarMasks(late, VOCAB, TorchSampling())
    for _ in range(20):
        masks.add_slot(0, JSON, [])
        masks.remove_slot(0)
    assert late.held is not None
    assert len(late.held) == 1


def test_waiting_for_a_grammar_ends(late: LateCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "GIVE_UP_S", -1.0)
    masks = GrammarMasks(late, VOCAB, TorchSampling())
    masks.add_slot(0, JSON, [])
    assert masks.apply(torch.zeros(1, VOCAB), [0]) == {0: GRAMMAR_FAILED}


def test_a_sequence_may_start_again_long_after_its_grammar_was_compiled(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(model)
    masks = GrammarMasks(compiler, VOCAB, TorchSampling())
    with monkeypatch.context() as patched:
        patched.setattr(grammar_compiler, "GIVE_UP_S", 0.0)
        add(masks, 0, JSON)
    jobs: list[Callable[[], None]] = []
    monkeypatch.setattr(compiler, "_submit", jobs.append)
    masks.add_slot(1, JSON, encode("{"))
    assert masks.apply(torch.zeros(1, VOCAB), [1]) == {0: GRAMMAR_PENDING}
    masks.add_slot(2, JSON, encode("{"))
    jobs[1]()
    assert masks.apply(torch.zeros(1, VOCAB), [2]) == {}


def test_compiled_grammars_are_kept_within_bounds(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "_MAX_KEPT", 3)
    compiler = GrammarCompiler(model)
    for number in range(10):
        compiler.start(regex_grammar(f"a{number}", "x"), []).future.result(10)
    assert len(compiler._kept) == 3
    assert compiler._kept_chars == sum(map(len, compiler._kept))


def test_a_tokenizer_that_cannot_be_read_fails_the_sequence_only(model: ModelSpec, tmp_path: Path) -> None:
    compiler = GrammarCompiler(msgspec.structs.replace(model, path=str(tmp_path)))
    masks = GrammarMasks(compiler, VOCAB, TorchSampling())
    add(masks, 0, JSON)
    assert masks.apply(torch.zeros(1, VOCAB), [0]) == {0: GRAMMAR_FAILED}


def test_masks_of_many_rows_are_those_of_one(model: ModelSpec) -> None:
    masks = GrammarMasks(GrammarCompiler(model), VOCAB, TorchSampling(), threads=2)
    texts = ('{"colour":"', '{"colour":"red","count":', "", "{")
    for slot in range(40):
        add(masks, slot, JSON, encode(texts[slot % 4]))
    logits = torch.zeros(40, VOCAB)
    assert masks.apply(logits, list(range(40))) == {}
    assert masks._executor is not None
    for slot in range(40):
        assert set(torch.isfinite(logits[slot]).nonzero().flatten().tolist()) == allowed(masks, slot)
