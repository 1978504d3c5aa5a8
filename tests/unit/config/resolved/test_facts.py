"""What nodes compare when they join."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mmserve.config.resolved import facts
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.facts import difference, digest_of, encoder_facts_of, facts_of, text_facts_of
from tests.fakes.http.http_services import make_deployment

NODES = {"tp": 2, "nnodes": 2, "head": "a", "cluster_key_file": "k"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(100_000))
    return tmp_path


def made(directory: Path, **options: object) -> Deployment:
    deployment = make_deployment("/nowhere", **(NODES | options))
    return replace(deployment, model=replace(deployment.model, path=str(directory)))


def test_what_belongs_to_one_machine_may_differ(directory: Path) -> None:
    head = facts_of(made(directory))
    node = facts_of(made(directory, node_rank=1, cpu_threads=3, port=1, log_level="debug", node_timeout=9.0))
    assert difference(head, node) == ""


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_num_seqs": 3}, "--max-num-seqs is 3, not 128"),
        ({"seed": 3}, "--seed is 3, not 0"),
        ({"tp": 4}, "--tp is 4, not 2"),
        ({"nnodes": 1}, "--nnodes is 1, not 2"),
    ],
)
def test_options_of_what_is_computed_may_not(directory: Path, options: dict[str, int], name: str) -> None:
    assert name in difference(facts_of(made(directory)), facts_of(made(directory, **options)))


def test_weights_are_told_apart_also_in_large_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_WHOLE_NBYTES", 1000)
    head = facts_of(made(directory))
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert difference(head, facts_of(made(directory))).startswith("files of the model is ")


def test_servers_behind_a_front_must_be_alike_in_what_decides_about_texts(directory: Path) -> None:
    def of(processor: str = "x86_64", **options: object) -> dict[str, str]:
        return text_facts_of(replace(made(directory, **options), processor=processor))

    plain = of()
    assert digest_of(of(max_num_seqs=3, port=1, nnodes=1)) == digest_of(plain)
    for other, name in (
        (of(tp=1), "--tp"),
        (of(seed=1), "--seed"),
        (of(kv_cache_dtype="bfloat16"), "--kv-cache-dtype"),
        (of(processor="aarch64"), "processor is aarch64, not x86_64"),
    ):
        assert name in difference(plain, other)
        assert digest_of(other) != digest_of(plain)
    assert digest_of({}) == ""


def test_servers_with_other_chat_templates_answer_other_prompts(directory: Path) -> None:
    template, head = directory / "chat_template.jinja", facts_of(made(directory))
    plain = text_facts_of(made(directory))
    template.write_text("{{ messages }}")
    assert difference(plain, text_facts_of(made(directory))).startswith("chat template is ")
    assert facts_of(made(directory)) == head, "only node 0 of a server writes prompts"


@pytest.mark.parametrize("other", ["aarch64", "x86_64, products in tiles", "GPU 9.0"])
def test_an_encoder_on_another_kind_of_processor_is_refused(directory: Path, other: str) -> None:
    """It would make other rows."""
    server = replace(made(directory), processor="x86_64")
    assert difference(encoder_facts_of(server), encoder_facts_of(replace(server, cpu_threads=3))) == ""
    found = difference(encoder_facts_of(server), encoder_facts_of(replace(server, processor=other)))
    assert found == f"processor is {other}, not x86_64"
