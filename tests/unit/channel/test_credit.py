"""Credit of a channel: bounded, and never stuck."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.channel.failures import ProtocolError
from tidegate.channel.tcp.credit import ReceiverCredit, SenderCredit


@given(st.integers(1, 100), st.lists(st.integers(0, 60), max_size=60), st.randoms(use_true_random=False))
def test_every_batch_passes_and_what_is_outstanding_stays_within_capacity_plus_one_batch(
    capacity: int, sizes: list[int], random: Random
) -> None:
    sender, receiver = SenderCredit(capacity), ReceiverCredit(capacity)
    to_send, on_the_way, queued, grants = deque(sizes), deque[int](), deque[int](), deque[int]()
    consumed = 0
    while consumed < len(sizes):
        moves = []
        if to_send and sender.has_capacity():
            moves.append("send")
        moves += [name for name, items in (("arrive", on_the_way), ("poll", queued), ("grant", grants)) if items]
        assert moves, "nothing can move: the channel is stuck"
        match random.choice(moves):
            case "send":
                size = to_send.popleft()
                sender.sent(size)
                assert sender.outstanding_bytes < capacity + max(size, 1)
                on_the_way.append(size)
            case "arrive":
                size = on_the_way.popleft()
                receiver.arrived(size)
                queued.append(size)
            case "poll":
                grant = receiver.consumed(queued.popleft())
                consumed += 1
                if grant:
                    grants.append(grant)
            case "grant":
                sender.granted(grants.popleft())
        assert receiver.queued_bytes == sum(queued)


def test_credit_is_granted_at_a_quarter_of_the_capacity_and_not_before() -> None:
    receiver = ReceiverCredit(100)
    for _ in range(3):
        receiver.arrived(12)
    assert [receiver.consumed(12) for _ in range(3)] == [0, 0, 36]


def test_sending_without_credit_is_a_bug() -> None:
    sender = SenderCredit(10)
    sender.sent(10)
    with pytest.raises(AssertionError, match="without credit"):
        sender.sent(1)


def test_a_receiver_refuses_a_sender_that_exceeds_its_credit() -> None:
    receiver = ReceiverCredit(10)
    receiver.arrived(15)
    with pytest.raises(ProtocolError, match="more bytes than the receiver has allowed"):
        receiver.arrived(1)


def test_a_sender_refuses_credit_for_what_it_never_sent() -> None:
    sender = SenderCredit(10)
    sender.sent(5)
    with pytest.raises(ProtocolError, match="6 consumed bytes, but only 5 bytes were sent"):
        sender.granted(6)


@given(st.integers(1, 50), st.integers(0, 50), st.lists(st.integers(0, 60), max_size=40), st.randoms())
def test_a_sender_that_overdraws_never_exceeds_what_the_receiver_allows(
    capacity: int, overdraft: int, sizes: list[int], random: Random
) -> None:
    """S3.7: bounded by capacity, overdraft and one batch, checked on both sides; never stuck when closed again."""
    sender, receiver = SenderCredit(capacity, overdraft), ReceiverCredit(capacity, overdraft)
    queued = deque[int]()
    for size in sizes:
        sender.overdraw(random.random() < 0.5)
        while not sender.has_capacity():
            grant = receiver.consumed(queued.popleft())
            if grant:
                sender.granted(grant)
        sender.sent(size)
        assert sender.outstanding_bytes < capacity + overdraft + max(size, 1)
        receiver.arrived(size)
        queued.append(size)


def test_the_overdraft_is_allowed_by_the_receiver_and_not_a_byte_more() -> None:
    """S3.7."""
    sender, receiver = SenderCredit(10, 10), ReceiverCredit(10, 10)
    sender.sent(10)
    receiver.arrived(10)
    with pytest.raises(AssertionError, match="without credit"):
        sender.sent(1)
    sender.overdraw(True)
    sender.sent(10)
    receiver.arrived(10)
    with pytest.raises(AssertionError, match="without credit"):
        sender.sent(1)
    with pytest.raises(ProtocolError, match="more bytes than the receiver has allowed"):
        receiver.arrived(1)
