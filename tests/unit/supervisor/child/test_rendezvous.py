from __future__ import annotations

import os
from contextlib import closing

import pytest

from mmserve.supervisor.child.rendezvous import Rendezvous


def test_the_ranks_of_one_start_share_a_file_and_the_next_start_has_an_empty_one() -> None:
    with closing(Rendezvous()) as rendezvous:
        first = rendezvous.fd(0)
        assert rendezvous.fd(0) == first
        os.write(first, b"from a rank that was killed")
        inode = os.fstat(first).st_ino
        second = rendezvous.fd(1)
        assert (os.fstat(second).st_size, os.fstat(second).st_ino == inode) == (0, False)
        assert not os.get_inheritable(second), "only processes of the engine are given it"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second)
