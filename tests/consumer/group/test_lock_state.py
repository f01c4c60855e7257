"""The transitions of one queue's lock."""

from __future__ import annotations

import pytest

from rmq_async.consumer.group.lock_state import BELIEVED, LOCK_LIFE, Hold, LockState


def granted() -> LockState:
    state = LockState()
    state.ask(0.0, to_lock=True)
    assert state.grant(0.0)
    return state


def test_assumed_queue_is_lost_when_refused_after_the_life_of_a_lock_only() -> None:
    state = LockState()
    state.assume(0.0)
    state.refuse(LOCK_LIFE - 1.0)
    assert (state.hold, state.take_lost()) == (Hold.ASSUMED, False)
    state.refuse(LOCK_LIFE)
    assert (state.hold, state.take_lost(), state.take_lost()) == (Hold.FREE, True, False)


@pytest.mark.parametrize("doubted", [False, True])
def test_held_queue_is_lost_when_refused_or_not_renewed(doubted: bool) -> None:
    for lose in (LockState.refuse, LockState.end):
        state = granted()
        if doubted:
            state.doubt()
        lose(state, BELIEVED)
        assert (state.hold, state.take_lost()) == (Hold.FREE, True)


def test_doubt_outlives_a_grant_until_it_is_confirmed() -> None:
    state = granted()
    state.doubt()
    assert state.grant(1.0)
    assert (state.hold, state.taken_at) == (Hold.DOUBTED, 1.0)
    state.confirm()
    assert state.hold is Hold.HELD


def test_held_queue_is_not_assumed() -> None:
    state = granted()
    state.assume(1.0)
    assert (state.hold, state.taken_at) == (Hold.HELD, 0.0)


def test_grant_that_answers_after_the_release_is_not_taken() -> None:
    state = LockState()
    state.ask(0.0, to_lock=True)
    assert state.release(1.0)
    assert not state.grant(0.0)
    assert (state.hold, state.owed_since) == (Hold.FREE, 1.0)
    state.unlock(2.0)
    assert (state.asked_at, state.owed_since) == (2.0, 1.0)
    state.unlocked()
    assert state.is_blank


def test_released_queue_owes_no_unlock_that_no_broker_needs() -> None:
    never_asked, asked_long_ago = LockState(), LockState()
    never_asked.assume(0.0)
    asked_long_ago.ask(0.0, to_lock=True)
    for state in (never_asked, asked_long_ago):
        assert not state.release(LOCK_LIFE)
        state.expire(LOCK_LIFE)
        assert state.is_blank


def test_owed_unlock_ends_with_a_new_lock_or_the_life_of_the_old_one() -> None:
    state = granted()
    assert state.release(1.0)
    assert state.owes(LOCK_LIFE)
    assert not state.owes(LOCK_LIFE + 1.0)
    state = granted()
    state.release(1.0)
    state.ask(2.0, to_lock=True)
    assert not state.owes(2.0)
