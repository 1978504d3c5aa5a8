from __future__ import annotations

import pytest

from mmserve.cluster.front.replicas import Replica


def test_a_replica_is_named_by_its_address_and_that_of_its_reports() -> None:
    assert Replica.parse("http://a:8000/") == Replica("http://a:8000", "http://a:8000", "")
    assert Replica.parse("http://a:8000,tcp://[::1]:5560").reports == "tcp://[::1]:5560"


@pytest.mark.parametrize("reports", ["tcp://a", "tcp://:5560", "tcp://a:b", "ipc://a", "a:5560", "tcp://a:65536"])
def test_an_address_of_reports_that_cannot_be_connected_to_is_refused_at_the_start(reports: str) -> None:
    with pytest.raises(ValueError, match="tcp://HOST:PORT"):
        Replica.parse(f"http://a:8000,{reports}")
