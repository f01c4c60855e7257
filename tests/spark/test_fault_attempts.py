"""Runs of the fault matrix that are given up or void are made again, a bounded number of times; broken promises are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rmq_async import RequestTimeoutError

from .faults import checker
from .faults.attempts import TRIES, Attempt, attempts, given_up, is_void_only
from .faults.checker import Verdict
from .faults.history import LATE, QueryFailedError, Run

GOOD = Verdict("c", 1, produced=5, read=5, lost=0, dup=0, allowed=0, unequal=0, extra=0, faults=1, void="", failed="")
VOID = GOOD._replace(void="no fault was injected")
Answers = list[Verdict] | Exception


class Work:
    """Gives the ``answers`` in turn, and notes for which kinds it was called."""

    def __init__(self, *answers: Answers) -> None:
        self.answers = list(answers)
        self.calls: list[list[str]] = []
        self.tidied = 0

    def __call__(self, kinds: Sequence[str]) -> list[Verdict]:
        self.calls.append(list(kinds))
        answer = self.answers[len(self.calls) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tidy(self) -> None:
        self.tidied += 1

    def attempts(self, *kinds: str) -> list[Attempt]:
        return list(attempts("c", 1, kinds, self, self.tidy))


def test_attempts_that_are_good_are_not_repeated() -> None:
    work = Work([GOOD, GOOD])
    made = work.attempts("a", "b")
    assert made == [Attempt(GOOD, False), Attempt(GOOD, False)]
    assert not any(attempt.bad for attempt in made)
    assert work.calls == [["a", "b"]]
    assert work.tidied == 0


@pytest.mark.parametrize(
    "error", [TimeoutError("fired did not come in 300 s"), RuntimeError("ended before fired"), RequestTimeoutError("no answer")]
)
def test_attempts_that_are_given_up_are_void_and_made_again(error: Exception) -> None:
    work = Work(error, [GOOD, GOOD])
    first, *others = work.attempts("a", "b")
    assert first.verdict.void == f"given up: {type(error).__name__}: {error}"
    assert (first.verdict.case, first.verdict.seed, first.verdict.failed) == ("c", 1, "")
    assert first.repeated
    assert not first.bad
    assert others == [Attempt(GOOD, False)] * 2
    assert work.calls == [["a", "b"]] * 2
    assert work.tidied == 1


def test_attempts_end_after_some_and_the_last_is_bad() -> None:
    work = Work(*[TimeoutError("late")] * TRIES)
    made = work.attempts("a")
    assert len(made) == TRIES
    assert [attempt.bad for attempt in made] == [False] * (TRIES - 1) + [True]


def test_attempts_repeat_only_what_is_void() -> None:
    work = Work([GOOD, VOID, GOOD], [VOID], [GOOD])
    made = work.attempts("a", "b", "c")
    assert work.calls == [["a", "b", "c"], ["b"], ["b"]]
    assert [attempt.repeated for attempt in made] == [False, True, False, True, False]
    assert not any(attempt.bad for attempt in made)


@pytest.mark.parametrize(
    "broken",
    [GOOD._replace(lost=1), VOID._replace(lost=1), GOOD._replace(dup=2, allowed=1), VOID._replace(failed="the query failed")],
)
def test_attempts_that_broke_a_promise_are_not_repeated(broken: Verdict) -> None:
    work = Work([broken])
    (attempt,) = work.attempts("a")
    assert attempt.bad


def test_attempts_whose_query_failed_are_not_repeated() -> None:
    work = Work(QueryFailedError("data is lost"))
    (attempt,) = work.attempts("a")
    assert attempt.verdict.failed == "QueryFailedError: data is lost"
    assert attempt.verdict.void == ""
    assert attempt.bad
    assert work.tidied == 1


def test_attempts_pass_on_a_bug() -> None:
    work = Work(KeyError("queue"))
    with pytest.raises(KeyError):
        work.attempts("a")


def test_given_up_keeps_the_beginning_of_a_long_error() -> None:
    assert len(given_up("c", 1, TimeoutError("x" * 10_000)).void) < 700


def test_fail_of_a_machine_that_is_too_busy_is_void(tmp_path: Path) -> None:
    run = Run("c", 1, str(tmp_path), "", "t", "earliest")
    run.fail(f"[PYTHON_ERROR] {LATE}.")
    assert checker.judge(run, []).void == f"[PYTHON_ERROR] {LATE}."
    with pytest.raises(RuntimeError, match=LATE) as caught:
        run.wait_event("initial")
    assert is_void_only(given_up("c", 1, caught.value))


def test_fail_of_a_query_is_a_failure(tmp_path: Path) -> None:
    run = Run("c", 1, str(tmp_path), "", "t", "earliest")
    run.fail("data is lost")
    assert checker.judge(run, []).failed == "data is lost"
    with pytest.raises(QueryFailedError, match="data is lost"):
        run.wait_event("initial")
