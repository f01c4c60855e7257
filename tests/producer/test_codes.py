"""Every answer a broker may give to a send, as docs/errors.md lists it: that table is what these tests are made from."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

from rmq_async import SendError, SendStatus, errors
from rmq_async.broker_answers import broker_error
from rmq_async.producer.calls.attempts import Attempts
from rmq_async.producer.calls.retry_policy import Step, Verdict, pause_before
from rmq_async.producer.config import RETRY_CODES
from rmq_async.producer.routing.fault_table import Blame, FaultTable, blame
from rmq_protocol.constants import ResponseCode
from rmq_protocol.reply import create_reply

from ..support.fakes import Cluster, Link, Sent, each, refuse, status, stored
from .support import Made, message, messages, outcomes, producer

pytestmark = pytest.mark.virtual_time

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
SHORTEST_PAUSE, LONGEST_PAUSE = 0.025, 0.05
STATUS = {0: "SEND_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
NAMES = {int(code): code.name for code in ResponseCode}


class Listed(NamedTuple):
    """One row of the table, for one code."""

    code: int
    name: str
    remark: str
    kind: str
    retried: bool
    isolates: bool
    pauses: bool
    stored: bool

    def __str__(self) -> str:
        return f"{self.code} {self.remark[:24]}".strip()


def rows(heading: str) -> list[list[str]]:
    lines = PAGE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip().strip("`") for cell in line.split("|")[1:-1]])
    return found


def codes(cell: str) -> range:
    """Of a cell that holds one code, or the first and the last of several."""
    first, _, last = cell.partition("-")
    return range(int(first), int(last or first) + 1)


LISTED = [
    Listed(code, name, remark, kind, *[flag == "yes" for flag in flags])
    for cell, name, remark, kind, *flags in rows("response")
    for code in codes(cell)
]


OTHERS = [
    Listed(code, NAMES.get(code, ""), "", "BrokerError", retried=False, isolates=False, pauses=False, stored=False)
    for code in (*range(31), *range(200, 216))
    if code not in {row.code for row in LISTED}
]
"""What the page says of codes that its table does not have."""


def test_table_has_every_code_with_a_class_once_and_by_its_name() -> None:
    listed = [row.code for row in LISTED if not row.remark]
    assert sorted({*listed, *(row.code for row in OTHERS)}) == [*range(31), *range(200, 216), 1500]
    assert len(listed) == len(set(listed))
    assert all(row.name == NAMES.get(row.code, "") for row in LISTED)


@pytest.mark.parametrize("row", [*LISTED, *OTHERS], ids=str)
async def test_an_answer_has_the_outcome_that_is_listed(row: Listed, pair: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The first attempt is answered so, whichever broker it goes to, and the second one is stored."""
    caplog.set_level(logging.INFO, "rmq_async.producer")
    remark = row.remark or "because"
    sends: list[tuple[float, Sent]] = []
    answer = status(row.code) if row.stored else each(refuse(row.code, remark), stored)

    def noted(link: Link, sent: Sent) -> None:
        sends.append((monotonic(), sent))
        answer(link, sent)

    pair.answer(noted)
    async with producer(pair) as sender:
        (outcome,) = await outcomes(sender.send(message()))
    first = sends[0][1].broker
    logged = [record.getMessage() for record in caplog.records if record.name == "rmq_async.producer"]
    if row.stored:
        assert (type(outcome).__name__, outcome.attempts, outcome.status.value) == (row.kind, 1, STATUS[row.code])
        return
    if row.retried:
        assert (outcome.status, outcome.attempts) == (SendStatus.SEND_OK, 2)
        assert [sent.broker.name for _, sent in sends] == [first.name, outcome.queue.broker_name] != [first.name] * 2
        assert {sent.unique_id for _, sent in sends} == {outcome.msg_id}
        assert not row.pauses or sends[1][0] - sends[0][0] > SHORTEST_PAUSE - 0.002
        (line,) = logged
        parts = (outcome.msg_id, outcome.queue.broker_name, r"0\.\d\d\d s", first.name, re.escape(remark))
        assert re.search(r"\b.*\b".join(parts[:-1]) + ".*" + parts[-1], line), line
        error: errors.BrokerError = broker_error(row.code, remark)
    else:
        error = outcome
        assert (len(sends), logged) == (1, [])
        assert (error.broker, error.address) == (first.name, first.address)
    assert (type(error).__name__, error.code, error.remark, error.maybe_stored) == (row.kind, row.code, remark, False)
    assert (row.name or "unknown code") in str(error)
    assert (blame(error, 0.0, FaultTable.V5) is not Blame.NONE) == row.isolates
    assert (pause_before(Attempts(Made("a", error)), Step(Verdict.TRY), 3.0, 1.0) == LONGEST_PAUSE) == row.pauses


UNREPLICATED = ["in-sync replicas not enough", "[PC_SYNCHRONIZED]broker busy, start flow control for a while"]


@pytest.mark.parametrize("remark", UNREPLICATED)
async def test_answer_of_a_broker_without_its_replicas_leaves_open_what_is_stored(remark: str, pair: Cluster) -> None:
    """DLedgerCommitLog gives it for WAIT_QUORUM_ACK_TIMEOUT: the leader has the message, and its followers may have it."""
    pair.answer(refuse(1, remark))
    async with producer(pair, retries=0) as single, producer(pair, "other") as several:
        (error,) = await outcomes(single.send(message()))
        assert (type(error), error.code, error.maybe_stored) == (errors.BrokerSystemError, 1, True)
        (error,) = await outcomes(several.send(message(), timeout=0.5))
        assert (type(error), error.made, error.maybe_stored) == (SendError, 3, True)
        pair.answer(each(refuse(1, remark), refuse(1, remark), stored))
        assert (await several.send(message())).attempts == 3


async def test_retry_codes_are_the_listed_ones_and_may_be_more_or_fewer(pair: Cluster) -> None:
    assert {row.code for row in LISTED if row.retried} == RETRY_CODES
    extended = RETRY_CODES | {13, 215}
    async with producer(pair, retry_codes=extended) as more, producer(pair, "other", retry_codes=RETRY_CODES - {1}) as fewer:
        for code in (13, 215):
            pair.answer(each(refuse(code), stored))
            assert (await more.send(message())).attempts == 2
        pair.answer(each(refuse(1), stored))
        with pytest.raises(errors.BrokerSystemError):
            await fewer.send(message())
        pair.answer(each(refuse(2), stored))
        assert (await fewer.send(message())).attempts == 2
        pair.answer(each(refuse(16, "check signature failed."), stored))
        with pytest.raises(errors.AuthenticationError):
            await more.send(message())


async def test_every_retry_has_one_line_in_the_log(pair: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq_async.producer")
    pair.answer(refuse(14, "not now"))
    async with producer(pair, retries=3) as sender:
        failed = await outcomes(*[sender.send(item) for item in messages(5)])
    assert [len(error.attempts) for error in failed if isinstance(error, SendError)] == [4] * 5
    lines = [record.getMessage() for record in caplog.records if record.name == "rmq_async.producer"]
    assert Counter(sent.unique_id for sent in pair.sends) == Counter({line.split()[1]: 4 for line in lines})
    assert len(lines) == 15


def test_java_has_these_numbers_for_what_the_client_finds_itself() -> None:
    kinds = {int(code): getattr(errors, kind) for code, _, kind in rows("code")}
    assert list(kinds) == list(range(10001, 10008))
    with pytest.raises(kinds.pop(10007)) as caught:
        create_reply({})
    assert caught.value.code == 10007
    assert {code: kind.code for code, kind in kinds.items()} == {code: code for code in kinds}
