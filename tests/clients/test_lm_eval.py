"""lm-eval: answers through chat completions, and choices ranked by the log-probabilities of echoed completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

import mmserve

pytest.importorskip("lm_eval", reason="make clients installs lm-eval")
import lm_eval
from lm_eval.tasks import TaskManager

pytestmark = pytest.mark.client("lm-eval", "lm_eval")
PACKAGED = Path(mmserve.__file__).parent / "packaged" / "llava"
_QUESTIONS = ("What do you see?", "Hello!", "How many circles are there?")


@pytest.fixture(scope="module")
def answers(packaged_url: str) -> list[str]:
    """The greedy answer to each question."""
    with openai.OpenAI(base_url=f"{packaged_url}/v1", api_key="none") as client:
        return [
            client.chat.completions.create(
                model="llava", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24
            )
            .choices[0]
            .message.content
            or ""
            for question in _QUESTIONS
        ]


def _task(directory: Path, documents: list[dict[str, Any]], **fields: Any) -> TaskManager:
    """A task named ``ours`` of these documents."""
    data = directory / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    task = {"task": "ours", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (directory / "ours.yaml").write_text(yaml.safe_dump(task | {"test_split": "test"} | fields))
    return TaskManager(include_path=str(directory), include_defaults=False)


def _evaluate(model: str, manager: TaskManager, **options: Any) -> dict[str, Any]:
    results = lm_eval.simple_evaluate(model=model, tasks=["ours"], task_manager=manager, bootstrap_iters=0, **options)
    return results["results"]["ours"]  # type: ignore[no-any-return]


def test_answers_of_chat_completions(packaged_url: str, answers: list[str], tmp_path: Path) -> None:
    documents = [{"question": q, "answer": a} for q, a in zip(_QUESTIONS, answers, strict=True)]
    manager = _task(
        tmp_path,
        documents,
        output_type="generate_until",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n\n"], "max_gen_toks": 24, "temperature": 0},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    arguments = f"model=llava,base_url={packaged_url}/v1/chat/completions,num_concurrent=2,tokenized_requests=False"
    scores = _evaluate("local-chat-completions", manager, model_args=arguments, apply_chat_template=True)
    assert scores["exact_match,none"] == 1


def test_choices_ranked_by_log_probabilities(packaged_url: str, tmp_path: Path) -> None:
    """The likelier of two continuations, which is what greedy completions write."""
    prompts = ("USER: How many circles are there? ASSISTANT:", "USER: What colour is the square? ASSISTANT:")
    with openai.OpenAI(base_url=f"{packaged_url}/v1", api_key="none") as client:
        written = [
            client.completions.create(model="llava", prompt=prompt, max_tokens=4, temperature=0).choices[0].text
            for prompt in prompts
        ]
    documents = [
        {"prompt": prompt, "right": text.strip(), "wrong": "zzzz qqqq xxxx"}
        for prompt, text in zip(prompts, written, strict=True)
    ]
    manager = _task(
        tmp_path,
        documents,
        output_type="multiple_choice",
        doc_to_text="{{prompt}}",
        doc_to_choice="{{[wrong, right]}}",
        doc_to_target=1,
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    arguments = f"model=llava,base_url={packaged_url}/v1/completions,tokenizer={PACKAGED},num_concurrent=2"
    assert _evaluate("local-completions", manager, model_args=arguments)["acc,none"] == 1
