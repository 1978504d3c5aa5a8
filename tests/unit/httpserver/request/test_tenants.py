"""Keys that may ask for answers do not share caches, and a client's own salt divides those of its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.config.config import Config
from mmserve.httpserver.request.tenants import Tenants
from tests.fakes.ranks.calls import generate_call

TWO = "alice secret-of-alice\nbob secret-of-bob\n"


def _salt(config: Config, owner: str, salt: str = "", seed: int = 7) -> str:
    return Tenants(config, seed).own(generate_call(cache_salt=salt), owner).cache_salt


@pytest.fixture
def keys(tmp_path: Path) -> Config:
    (tmp_path / "keys").write_text(TWO)
    return Config(api_key_file=str(tmp_path / "keys"))


def test_two_keys_have_caches_of_their_own_by_default(keys: Config) -> None:
    salts = [_salt(keys, owner, salt) for owner in ("alice", "bob") for salt in ("", "mine", "yours")]
    assert len(set(salts)) == 6
    assert not any(name in salt for salt in salts for name in ("alice", "bob", "secret", "mine"))


def test_servers_with_the_same_seed_agree_and_others_tell_nothing(keys: Config) -> None:
    assert _salt(keys, "alice", "a") == _salt(keys, "alice", "a")
    assert _salt(keys, "alice", "a") != _salt(keys, "alice", "a", seed=8)


def test_one_key_that_asks_and_one_for_metrics_are_one_tenant(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice secret\nprobe other metrics\n")
    config = Config(api_key_file=str(tmp_path / "keys"))
    assert _salt(config, "alice", "mine") == "mine"
    assert _salt(Config(), "") == ""


def test_the_option_overrules_the_number_of_keys(keys: Config) -> None:
    shared = Config(api_key_file=keys.api_key_file, caches_by_key=False)
    assert _salt(shared, "alice", "mine") == "mine"
    assert _salt(Config(api_key="one", caches_by_key=True), "api-key", "mine") != "mine"


def test_the_name_of_the_key_stays_with_the_call(keys: Config) -> None:
    assert Tenants(keys, 7).own(generate_call(), "alice").owner == "alice"
