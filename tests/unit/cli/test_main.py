"""The command line: what it prints, what it refuses, and how fast."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from docs.configuration import page
from mmserve.cli import main as cli
from mmserve.config.config import Config
from mmserve.config.options import OPTIONS


def _fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == cli.USAGE_ERROR
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


def test_help_names_every_option_its_default_and_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["serve", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for option in OPTIONS.values():
        assert f"{option.flag} " in printed or f"{option.flag}," in printed
    assert "[2048]" in printed
    assert "--no-enable-concurrent-alloc" in printed
    assert "MMSERVE_MAX_NUM_SEQS" in printed


def test_bench_shows_the_load_generators_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "--help"])
    assert stopped.value.code == 0
    assert "usage: mmserve bench" in (printed := capsys.readouterr().out)
    assert "--url" in printed


def test_a_reader_that_leaves_is_no_error_of_ours() -> None:
    command = [sys.executable, "-m", "mmserve", "models"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert listing.stderr.read() == b""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("mmserve 0")


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--help"], ["serve", "--print-config"]])
def test_a_question_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom mmserve.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'uvicorn', 'zmq', 'rpyc', 'transformers', 'PIL', 'huggingface_hub'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_an_unknown_flag_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-num-seq; did you mean --max-num-seqs?" in _fails(capsys, "serve", "--max-num-seq", "3")


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown argument --max-body" in _fails(capsys, "serve", "--max-body", "3")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tp", "0"], "--tp 0: tp must be a whole number from 1 to 64"),
        (["--tp", "two"], "--tp two: tp must be a whole number from 1 to 64"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--kv-cache-gb", "-1"], "kv_cache_gb must be a number above 0"),
        (["--kv-cache-gb", "inf"], "kv_cache_gb must be a number above 0"),
        (["--max-model-len", "3"], "max_model_len must be a whole number of at least 16"),
        (["--device", "tpu"], "device must be one of auto, cpu, cuda"),
        (["--model", ""], "model must be a text that is not empty"),
        (["--tp"], "--tp: expected one argument"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in _fails(capsys, "serve", *arguments)


def test_without_a_command_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.USAGE_ERROR
    assert "serve" in capsys.readouterr().out


def test_print_config_can_be_read_again_and_hides_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["serve", "--print-config", "--tp", "2", "--api-key", "sesame", "--no-enable-concurrent-alloc"]) == 0
    )
    printed = capsys.readouterr().out
    assert "sesame" not in printed
    values = yaml.safe_load(printed)
    for name in ("served_model_name", "allowed_media_domains", "allowed_hosts", "allowed_origins", "visual_devices"):
        values[name] = tuple(values[name])
    assert Config(**values) == Config(tp=2, enable_concurrent_alloc=False)


def test_the_configuration_page_is_current() -> None:
    with open("docs/configuration.md") as file:
        assert file.read() == page(), "run `make docs`"
