"""Runs the golden vectors: bytes and values that the official Java classes gave (``protocol/vectors/README.md``).

A test module makes one ``Suite`` for the kinds of file it understands, registers a function per case type and runs every file:

    SUITE = Suite("crc")

    @SUITE.handles("crc", "crc32")
    def crc32(case: Case) -> Outcome | None:      # asserts; None means the result was equal
        assert checksum.crc32(data(case.given["data"])) == case.expected["crc32"]

    @pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
    def test_golden_vectors(path: Path) -> None:
        SUITE.run(path)

A handler picks its way by type, class or kind of input, never by case name: the files may hold further cases. It returns
``Outcome.DIFFERS`` where this library departs from Java on purpose (and asserts what it does instead). What waits for a later
issue is in ``WAITING`` and nowhere else, what no issue brings in ``LEFT_OUT``; a type that is neither there nor handled is a
failure. The files come from
the directory in the environment variable RMQ_VECTORS where it is set. ``conftest`` prints the tallies at the end of the run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmq_protocol.errors import RocketMQError

DIRECTORY = Path(os.environ.get("RMQ_VECTORS") or Path(__file__).parents[2] / "protocol" / "vectors")

WIRE_KINDS = ("frames", "headers", "routes")
"""Kinds run by test_vectors_wire.py."""

BODY_KINDS = ("bodies",)
"""Kinds run by test_vectors_bodies.py."""

EXTRA_KINDS = ("acl", "namespace", "extras")
"""Kinds run by test_vectors_extras.py."""

LITE_KINDS = ("lite_topics",)
"""Kinds run by test_lite.py."""

CONTENT_KINDS = ("messages", "properties", "ids", "crc", "compression", "validators")
"""Kinds run by the vector test of messages and their parts."""

CLIENT_KINDS = ("selectors",)
"""Kinds run by tests/producer/test_vectors_selectors.py."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What later issues bring: kind -> case types, or classes (``in.class`` of bodies).
WAITING: dict[str, frozenset[str]] = {}

# Headers of requests that brokers, controllers and name servers exchange among themselves: a client never sends, gets or
# passes on one of them, and the embedded broker has neither replicas nor controllers, and is its own name server.
LEFT_OUT: frozenset[str] = _words(
    # a broker registers with its name servers
    """BrokerHeartbeatRequestHeader QueryDataVersionRequestHeader QueryDataVersionResponseHeader RegisterBrokerRequestHeader
    RegisterBrokerResponseHeader UnRegisterBrokerRequestHeader
    """
    # brokers of one name: masters, slaves, containers
    """AddBrokerRequestHeader ExchangeHAInfoRequestHeader ExchangeHAInfoResponseHeader NotifyBrokerRoleChangedRequestHeader
    NotifyMinBrokerIdChangeRequestHeader RemoveBrokerRequestHeader ResetMasterFlushOffsetHeader
    """
    # controllers
    """AlterSyncStateSetRequestHeader AlterSyncStateSetResponseHeader ApplyBrokerIdRequestHeader ApplyBrokerIdResponseHeader
    CleanControllerBrokerDataRequestHeader ElectMasterRequestHeader ElectMasterResponseHeader GetMetaDataResponseHeader
    GetNextBrokerIdRequestHeader GetNextBrokerIdResponseHeader GetReplicaInfoRequestHeader GetReplicaInfoResponseHeader
    RegisterBrokerToControllerRequestHeader RegisterBrokerToControllerResponseHeader
    """
)


class Outcome(Enum):
    EQUAL = "ran"
    DIFFERS = "differ on purpose"
    WAITS = "wait"
    LEFT_OUT = "left out"


class Case(NamedTuple):
    """One case; ``given`` is its ``in``, ``expected`` its ``out``, ``extras`` what the file holds besides its cases."""

    kind: str
    name: str
    type: str
    given: Any
    expected: Any
    extras: dict[str, Any]

    @property
    def subject(self) -> str | None:
        """The Java class a header or body case is about."""
        if not isinstance(self.given, dict):
            return None
        return self.given.get("header" if self.kind == "headers" else "class")


@dataclass
class Tally:
    """How the cases of one file went."""

    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = ", ".join(f"{count} {outcome.value}" for outcome, count in self.counts.items())
        return f"{text}, {len(self.failed)} failed" if self.failed else text


TALLIES: dict[str, Tally] = {}
"""By file name, in the order the files were run; printed by ``conftest``."""

Handler = Callable[[Case], "Outcome | None"]


class Suite:
    """Handlers for the case types of some kinds of file."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.handlers: dict[tuple[str, str], Handler] = {}

    def handles(self, kind: str, *types: str) -> Callable[[Handler], Handler]:
        assert kind in self.kinds

        def register(handler: Handler) -> Handler:
            for case_type in types:
                assert (kind, case_type) not in self.handlers
                self.handlers[kind, case_type] = handler
            return handler

        return register

    def files(self) -> list[Path]:
        return [path for path in all_files() if kind_of(path) in self.kinds]

    def run(self, path: Path) -> None:
        """Runs every case of the file; fails with the list of those that went wrong."""
        tally = TALLIES[path.name] = Tally()
        for case in load(path):
            try:
                outcome = self._run(case)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - any error fails the case
                tally.failed.append(f"{case.type} {case.name}: {type(error).__name__}: {str(error)[:600]}")
            else:
                tally.counts[outcome] += 1
        if tally.failed:
            pytest.fail(f"{path.name}: {tally}\n" + "\n".join(tally.failed[:25]), pytrace=False)

    def _run(self, case: Case) -> Outcome:
        waiting = WAITING.get(case.kind, frozenset())
        if case.type in waiting or (case.subject is not None and case.subject in waiting):
            return Outcome.WAITS
        if case.subject in LEFT_OUT:
            return Outcome.LEFT_OUT
        handler = self.handlers.get((case.kind, case.type))
        if handler is None:
            raise LookupError(f"case type {case.type!r} of kind {case.kind!r} is neither handled nor waiting")
        return handler(case) or Outcome.EQUAL


def all_files() -> list[Path]:
    files = sorted(DIRECTORY.glob("*.json"))
    assert files, f"no vectors in {DIRECTORY}"
    return files


def kind_of(path: Path) -> str:
    return str(json.loads(path.read_text("utf-8")).get("kind"))


def load(path: Path) -> Iterator[Case]:
    content = json.loads(path.read_text("utf-8"))
    kind = content.pop("kind")
    cases = content.pop("cases")
    for case in cases:
        yield Case(kind, case["name"], case["type"], case["in"], case["out"], content)


# Values as the files write them.


def data(spec: dict[str, Any] | None) -> bytes:
    """Bytes written as ``{"hex"}`` or ``{"repeat_hex", "times"}``; null is no bytes."""
    if spec is None:
        return b""
    if "repeat_hex" in spec:
        return bytes.fromhex(spec["repeat_hex"]) * int(spec["times"])
    return bytes.fromhex(spec["hex"])


def check_bytes(actual: bytes | bytearray | memoryview, spec: dict[str, Any] | None) -> None:
    """Asserts that ``actual`` is what ``spec`` writes out in full or, for long outputs, by length, SHA-256 and both ends."""
    actual = bytes(actual)
    if spec is None or "sha256" not in spec:
        assert actual == data(spec)
        return
    assert len(actual) == spec["len"]
    head, tail = bytes.fromhex(spec["head_hex"]), bytes.fromhex(spec["tail_hex"])
    assert actual[: len(head)] == head
    assert actual[len(actual) - len(tail) :] == tail
    assert hashlib.sha256(actual).hexdigest() == spec["sha256"]


def is_error(expected: Any) -> bool:
    """Java raised."""
    return isinstance(expected, dict) and "error" in expected


@contextmanager
def refused() -> Iterator[None]:
    """One of the library's own errors must be raised inside; any other exception passes through and fails the case."""
    with pytest.raises(RocketMQError):
        yield


def official_or_refused(check: Callable[[], None]) -> None:
    """For input that breaks its own grammar: ``check`` may pass, or the library may refuse; nothing else."""
    try:
        check()
    except RocketMQError:
        return
