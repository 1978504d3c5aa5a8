"""Scores of prompts and embeddings from the whole server equal those of transformers, on a random model in float32."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers
from PIL import Image

from tests.e2e.stack import Stack, running
from tests.fakes.models.checkpoints import EOS, make_llava
from training.sample import samples

TEXT = "What héllo wörld says, in short; and then a little more."
TOLERANCE = 2e-4
pytestmark = pytest.mark.xdist_group("tiny_stack")
"""One server for all of them."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny_stack(directory: Path) -> Iterator[Stack]:
    with running("--model", str(directory), "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def model(directory: Path) -> transformers.LlavaForConditionalGeneration:
    return transformers.LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(directory)


def logprobs_of(model: transformers.LlavaForConditionalGeneration, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocabulary]: of the token after each."""
    with torch.inference_mode():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], dim=-1)


def complete(stack: Stack, **body: Any) -> dict[str, Any]:
    """The only choice of a greedy completion."""
    with stack.client() as client:
        answer = client.completions.create(model="tiny", temperature=0, **body)
    (choice,) = answer.to_dict()["choices"]
    return choice


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
@pytest.mark.parametrize("max_tokens", [0, 8])
def test_echo_and_logprobs_equal_transformers(
    tiny_stack: Stack,
    model: transformers.LlavaForConditionalGeneration,
    tokenizer: transformers.PreTrainedTokenizerBase,
    as_ids: bool,
    max_tokens: int,
) -> None:
    ids = tokenizer(TEXT)["input_ids"]
    choice = complete(tiny_stack, prompt=ids if as_ids else TEXT, max_tokens=max_tokens, echo=True, logprobs=3)
    for _ in range(max_tokens):
        ids.append(int(logprobs_of(model, ids)[-1].argmax()))
        if ids[-1] == EOS:
            ids.pop()
            break
    expected, listed = logprobs_of(model, ids), choice["logprobs"]
    own = [float(expected[place - 1, id]) for place, id in enumerate(ids) if place]
    assert listed["token_logprobs"][0] is listed["top_logprobs"][0] is None
    assert listed["token_logprobs"][1:] == pytest.approx(own, abs=TOLERANCE)
    best = expected[:-1].topk(3).values
    for place, top in enumerate(listed["top_logprobs"][1:]):
        assert sorted(top.values(), reverse=True)[:3] == pytest.approx(best[place].tolist(), abs=TOLERANCE)
        assert listed["token_logprobs"][place + 1] == top[listed["tokens"][place + 1]]
    assert choice["text"].startswith(TEXT)
    assert listed["text_offset"][: len(TEXT.encode())] == [
        place for place, character in enumerate(TEXT) for _ in character.encode()
    ]


def test_a_prefix_that_is_cached_has_the_same_scores(tiny_stack: Stack) -> None:
    request = {"prompt": TEXT * 3, "max_tokens": 1, "echo": True, "logprobs": 1}
    first, again = (complete(tiny_stack, **request)["logprobs"]["token_logprobs"] for _ in range(2))
    assert first[0] is again[0] is None
    assert again[1:] == pytest.approx(first[1:], abs=TOLERANCE)


def test_what_lm_eval_reads_of_a_score(
    tiny_stack: Stack,
    model: transformers.LlavaForConditionalGeneration,
    tokenizer: transformers.PreTrainedTokenizerBase,
) -> None:
    """Context and continuation as token ids; the greedy continuation is told by equal values."""
    context = tokenizer(TEXT)["input_ids"]
    continuation = [int(logprobs_of(model, context)[-1].argmax())]
    with tiny_stack.client() as client:
        answer = client.completions.create(
            model="tiny",
            prompt=[context + continuation, context],
            temperature=0,
            max_tokens=1,
            logprobs=1,
            seed=1234,
            echo=True,
        )
    assert [choice.index for choice in answer.choices] == [0, 1]
    listed = answer.choices[0].logprobs
    assert listed is not None
    scored = slice(len(context), -1)
    values, tops = (listed.token_logprobs or [])[scored], (listed.top_logprobs or [])[scored]
    assert len(values) == len(continuation)
    assert [max(top.values()) for top in tops] == values


def normalised(vector: torch.Tensor) -> list[float]:
    values: list[float] = (vector / vector.norm()).tolist()
    return values


def test_embeddings_of_texts_and_token_ids_equal_transformers(
    tiny_stack: Stack,
    model: transformers.LlavaForConditionalGeneration,
    tokenizer: transformers.PreTrainedTokenizerBase,
) -> None:
    texts = ["one", TEXT, "three"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    with tiny_stack.client() as client:
        answers = [client.embeddings.create(model="tiny", input=prompts) for prompts in (texts, ids)]
    for answer in answers:
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
        for one, prompt in zip(answer.data, ids, strict=True):
            with torch.inference_mode():
                last = model.model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
            assert one.embedding == pytest.approx(normalised(last), abs=TOLERANCE)


def test_the_embedding_of_a_picture_equals_that_of_transformers(
    tiny_stack: Stack, directory: Path, model: transformers.LlavaForConditionalGeneration
) -> None:
    (sample,) = samples(1, seed=909909, kinds=("colour",))
    with tiny_stack.client() as client:
        answer = client.post(
            "/embeddings",
            body={"model": "tiny", "messages": sample.messages},
            cast_to=openai.types.CreateEmbeddingResponse,
        )
    processor = transformers.AutoProcessor.from_pretrained(directory)
    (message,) = sample.messages
    parts = [part if part["type"] == "text" else {"type": "image"} for part in message["content"]]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    picture = Image.open(io.BytesIO(sample.images[0]))
    inputs = processor(text=text, images=[picture], return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        last = model.model(**inputs).last_hidden_state[0, -1]
    assert answer.data[0].embedding == pytest.approx(normalised(last), abs=1e-3)
    assert answer.usage.prompt_tokens == inputs["input_ids"].shape[1]
