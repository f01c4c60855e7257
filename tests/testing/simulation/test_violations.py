"""Violations that checkers and scenarios report: docs/simulation.md lists them all, and pure checkers find what they name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmq_async import BrokerNotFoundError, MessageQueue, SendError
from rmq_async.errors import Attempt, ConnectError, GoAwayError, RequestTimeoutError, SystemBusyError
from rmq_async.results import SendResult, SendStatus, TransactionSendResult, TransactionStatus
from rmq_async.testing.simulation import Simulation
from rmq_async.testing.simulation.checkers import HALF_TOPIC, Stored, copies, late, lost, undone
from rmq_async.testing.simulation.history import Call, Event

from ...simulation.connects import MOST, Connects
from ...simulation.retry_checkers import contradictory, early, returned

ROOT = Path(__file__).parents[3]
REPORTED = re.compile(r'(?:(?<!b)f|violation\()"([a-z]+(?: [a-z]+)?): ')


@pytest.mark.parametrize(
    ("folder", "page", "first"),
    [
        ("rmq_async/testing/simulation", "docs/simulation.md", "unhandled"),
        ("tests/simulation", "tests/simulation/README.md", "storm"),
    ],
)
def test_every_violation_is_in_the_tables_of_a_page(folder: str, page: str, first: str) -> None:
    reported = {kind for path in (ROOT / folder).rglob("*.py") for kind in REPORTED.findall(path.read_text())}
    tables = (ROOT / page).read_text().split("| violation | |\n")[1:]
    listed = [kind for table in tables for kind in re.findall(r"^\| `([\w ]+)` \|", table.partition("\n\n")[0], re.MULTILINE)]
    assert first in listed
    assert sorted(set(listed)) == sorted(reported)


def call(error: BaseException | None = None, *, began: float = 10.0, took: float = 0.1, **changes: Any) -> Call:
    return Call(began, "m", **{"what": "send", "producer": 0, "topic": "T", "bodies": (b"1",), "budget": 3.0, "retry_codes": (1, 2),
                               "ended": began + took, "took": took, "error": error, **changes})  # fmt: skip


def sent(broker: str) -> SendResult:
    return SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("T", broker, 0), 0)


def attempt(broker: str, error: BaseException | None, *, maybe: bool = False) -> Attempt:
    return Attempt(MessageQueue("T", broker, 0), "10.0.0.1:10911", 0.01, error, maybe)


def busy(number: int = 1) -> list[Attempt]:
    return [attempt(f"broker-{'ab'[each % 2]}", SystemBusyError("", code=2)) for each in range(number)]


def failed(*attempts: Attempt, maybe: bool = False) -> SendError:
    return SendError("failed", attempts, maybe_stored=maybe)


@pytest.mark.parametrize(
    ("error", "options", "found"),
    [
        (SystemBusyError("", code=2), {}, True),
        (SystemBusyError("", code=2), {"took": 1.2}, False),
        (SystemBusyError("", code=14), {}, False),
        (SystemBusyError("", code=2), {"ordered_by": "k"}, False),
        (SystemBusyError("", code=2), {"retries": 0}, False),
        (failed(*busy(2)), {}, True),
        (failed(*busy(3)), {}, False),
        (failed(*busy(2), attempt("broker-a", ConnectError("refused"))), {}, True),
        (failed(*busy(2), attempt("broker-a", GoAwayError("", code=1500))), {"retry_codes": (2, 1500)}, True),
        (ConnectError("refused"), {}, True),
        (ConnectError("not allowed", permanent=True), {}, False),
        (ConnectError("refused"), {"took": 2.95}, False),
        (RequestTimeoutError("late", maybe_stored=True), {"took": 3.0}, False),
        (BrokerNotFoundError("nowhere"), {}, False),
        (None, {}, False),
    ],
)
def test_calls_that_gave_up_with_attempts_and_time_left_are_early(
    error: BaseException | None, options: dict[str, Any], found: bool
) -> None:
    assert bool(early([call(error, **options)])) is found


def test_an_error_contradicts_the_attempts_that_it_lists() -> None:
    first = attempt("broker-a", RequestTimeoutError("late", maybe_stored=True), maybe=True)
    assert contradictory([call(failed(first, *busy(1)))])
    assert contradictory([call(failed(*busy(2), maybe=True))])
    assert not contradictory([call(failed(first, *busy(1), maybe=True)), call(failed(*busy(2))), call(first.error)])


def test_an_attempt_returned_to_the_broker_that_had_refused_it() -> None:
    a, b = busy(2)
    known = [call(began=-60.0, results=(sent(name),)) for name in ("broker-a", "broker-b")]
    assert returned([*known, call(failed(a, b, b))], {}, [])
    assert not returned([*known, call(failed(a, b, a)), call(failed(a, a, a)), call(failed(b, b))], {}, [])
    assert not returned([*known, call(failed(a, b, b))], {"broker-a": [9.0]}, [])
    assert not returned([*known, call(failed(a, b, b))], {"namesrv-0": [9.0]}, [])
    assert returned([*known, call(failed(a, b, b))], {"main": [9.0]}, [])
    assert not returned([*known, call(failed(a, b, b))], {}, [Event(9.0, "namesrv-0", "forget", {"broker": "broker-a"})])
    assert not returned([*known, call(failed(a, b, b), ordered_by="queue")], {}, [])
    assert not returned(
        [*known, call(failed(a._replace(elapsed=1.0), b, b))], {}, []
    )  # still open when the third attempt began
    assert returned([*known, call(failed(a._replace(elapsed=0.9), b, b))], {}, [])
    assert not returned([known[0], call(failed(a, b, b))], {}, [])  # broker-b may not have the topic


def test_a_committed_transaction_that_no_consumer_can_read_is_lost() -> None:
    def result(kind: Callable[..., SendResult], **more: Any) -> SendResult:
        return kind(SendStatus.SEND_OK, "id", "", MessageQueue("T", "broker-a", 0), 0, **more)

    half, whole = (Stored("broker-a", topic, 0, 0, "id", b"1") for topic in (HALF_TOPIC, "T"))
    committed = result(TransactionSendResult, local_status=TransactionStatus.COMMIT)
    assert lost([call(what="send_in_transaction", results=(committed,))], [half], ())
    assert not lost([call(what="send_in_transaction", results=(committed,))], [half, whole], ())
    assert not lost([call(what="send_in_transaction", results=(committed,))], [half], {"id"})
    rolled_back = call(
        what="send_in_transaction", results=(result(TransactionSendResult, local_status=TransactionStatus.ROLLBACK),)
    )
    assert not lost([rolled_back], [half], ())
    assert undone([rolled_back], [whole], ())
    assert not undone([rolled_back], [half], ())
    assert not undone([rolled_back], [whole], ["broker-a"])


def test_call_that_begins_as_its_process_goes_on_is_not_late() -> None:
    slow = call(took=3.06)
    assert late([slow], {})
    assert late([slow], {"m": [(5.0, 9.99)]})
    assert not late([slow], {"m": [(5.0, 10.0)]})
    assert not late([slow], {"m": [(13.0, 14.0)]})


def test_a_check_that_did_not_arrive_may_have_its_message_committed_twice() -> None:
    result = TransactionSendResult(
        SendStatus.SEND_OK, "id", "", MessageQueue("T", "broker-a", 0), 0, local_status=TransactionStatus.COMMIT
    )
    half, whole = (Stored("broker-a", topic, 0, 0, "id", b"1") for topic in (HALF_TOPIC, "T"))
    calls = [call(what="send_in_transaction", results=(result,))]
    unknown = msgspec.structs.replace(result, local_status=TransactionStatus.UNKNOWN)
    twice = [half, half, whole, whole]
    assert not copies(calls, twice, {}, restarts=False)
    assert copies(calls, twice, {"id": 1}, restarts=False)  # it arrived
    assert not copies(calls, [half, *twice], {"id": 1}, restarts=False)  # the first of two did not
    assert copies(calls, [half, whole, whole], {}, restarts=False)  # there was no check
    left = [call(what="send_in_transaction", results=(unknown,))]
    assert copies(left, twice, {"id": 1}, restarts=False)
    assert not copies(left, twice, {}, restarts=False)
    assert copies(calls, [*twice, whole, whole], {}, restarts=False)


def test_many_connects_within_a_second_are_a_storm() -> None:
    now = [0.0]
    connects = Connects(lambda: now[0])
    for number in range(3 * MOST):
        now[0] = number * 0.09
        connects.add("m", "broker-a:10911")
    assert not connects.found
    for _ in range(MOST + 1):
        connects.add("m", "broker-b:10911")
    assert len(connects.found) == 1
    assert connects.found[0].startswith("storm: m began 13 connects to broker-b:10911 within 0.000 s")


def test_after_a_calm_no_fault_begins() -> None:
    async def main(simulation: Simulation) -> int:
        await simulation.calm(600.0)
        machines = {event.machine for event in simulation.history if event.what != "send"}
        assert await simulation.calm(0.0) is None
        return len(machines)

    simulation = Simulation(5)
    assert simulation.run(main) == 0
    assert simulation.now > 600
    assert not sum(simulation.faults_met.values())
