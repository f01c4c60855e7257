"""This member's share of the queues of a topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_async import MessageQueue, allocate_evenly
from rmq_async.consumer.group.rebalance import merged_members, share_of

EIGHT = tuple(MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(4))


@given(st.integers(0, 40), st.lists(st.sampled_from("cdefgh"), min_size=1, max_size=8).map(sorted))
def test_share_of_all_members_is_all_queues(count: int, members: list[str]) -> None:
    """Each queue has one owner, also where a member is listed more than once."""
    queues = tuple(MessageQueue("T", "a", number) for number in range(count))
    shares = [share_of(member, queues, members, allocate_evenly) for member in sorted(set(members))]
    assert sorted(queue for share in shares for queue in share) == list(queues)


def test_share_of_two_places() -> None:
    """As Java's AVG gives c1 a0 and a1 of c1, c1 and c2 on four queues; the second place's share is ours, too."""
    four = EIGHT[:4]
    assert share_of("c1", four, ("c1", "c1", "c2"), allocate_evenly) == {*four[:3]}
    assert share_of("c2", four, ("c1", "c1", "c2"), allocate_evenly) == {four[3]}


def test_share_of_foreign_queue() -> None:
    other = MessageQueue("T", "z", 9)
    with pytest.raises(ValueError, match="only queues that it was given"):
        share_of("c1", EIGHT, ("c1",), lambda client_id, queues, members: (other,))
    with pytest.raises(ValueError, match="only queues that it was given, not 7, None"):
        share_of("c1", EIGHT, ("c1",), lambda client_id, queues, members: (None, 7))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("lists", "members", "equal"),
    [
        ([("b", "a"), ("a", "b")], ("a", "b"), True),
        ([("a",), ("a", "b")], ("a", "b"), False),
        ([("a", "a"), ("a", "b")], ("a", "a", "b"), False),
        ([], (), True),
    ],
)
def test_merged_members(lists: list[tuple[str, ...]], members: tuple[str, ...], equal: bool) -> None:
    assert merged_members(lists) == (members, equal)
