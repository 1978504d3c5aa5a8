"""The replay buffer keeps the latest batches, within its bytes."""

from __future__ import annotations

from mmserve.ipc.events.replay_buffer import MAX_BATCHES, ReplayBuffer


def test_batches_from_a_number_on() -> None:
    buffer = ReplayBuffer(10_000)
    for number in (5, 6, 8):  # 7 was lost on its way here
        buffer.append(number, bytes([number]))
    assert buffer.since(0) == [(5, b"\x05"), (6, b"\x06"), (8, b"\x08")]
    assert buffer.since(7) == [(8, b"\x08")]
    assert buffer.since(9) == []


def test_the_oldest_go_first() -> None:
    buffer = ReplayBuffer(10_000)
    for number in range(100):
        buffer.append(number, bytes(1000))
        assert buffer.nbytes <= 10_000
    kept = [number for number, _ in buffer.since(0)]
    assert kept == [*range(100 - len(kept), 100)]
    assert len(kept) == 8


def test_a_batch_of_more_than_the_buffer_is_not_kept() -> None:
    buffer = ReplayBuffer(1000)
    buffer.append(0, bytes(10))
    buffer.append(1, bytes(2000))
    assert (buffer.since(0), buffer.nbytes) == ([], 0)


def test_small_batches_are_limited_in_number() -> None:
    buffer = ReplayBuffer(1 << 30)
    for number in range(MAX_BATCHES + 5):
        buffer.append(number, b"")
    assert len(buffer.since(0)) == MAX_BATCHES
