from __future__ import annotations

import pytest

from mmserve.cluster.front.server_facts import ServerFacts


def test_what_differs_is_logged_once_by_name_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    kinds: list[int] = []
    facts = ServerFacts(kinds.append)
    for replica, dtype in (("a", "float32"), ("b", "float32"), ("c", "bfloat16"), ("c", "bfloat16"), ("a", "float32")):
        facts.tell(replica, {"--dtype": dtype, "version of mmserve": "1"})
    assert kinds == [1, 1, 2, 2, 2]
    (record,) = caplog.records
    assert record.getMessage().startswith("c is not as a: --dtype is bfloat16, not float32; ")


def test_replicas_that_have_left_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    kinds: list[int] = []
    facts = ServerFacts(kinds.append)
    facts.tell("a", {"--dtype": "float32"})
    facts.keep({"b"})
    facts.tell("b", {"--dtype": "bfloat16"})
    assert kinds == [1, 0, 1]
    assert not caplog.records
