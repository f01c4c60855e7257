"""Every error can be copied and sent to another process, and says the same there."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import rmq_async.embedded
import rmq_async.testing  # noqa: F401 - for the errors they may define
from rmq_async import MessageQueue
from rmq_async.errors import Attempt, BrokerSystemError, RocketMQError, SendError
from rmq_async.tracebacks import own_copy

pytestmark = pytest.mark.interpreters

ATTEMPTS = [
    Attempt(MessageQueue("t", "a", 0), "127.0.0.1:1", 0.5, BrokerSystemError("full", broker="a"), False),
    Attempt(MessageQueue("t", "b", 1), None, 0.25, None, True),
]
GIVEN: dict[str, Any] = {
    "address": "127.0.0.1:1", "attempts": ATTEMPTS, "broker": "a", "code": 4711, "max_offset": 9, "maybe_stored": True,
    "min_offset": 3, "msg_id": "7F", "position": 5, "produced": 6, "queue_offset": 7, "request": "SEND", "too_large": True,
}  # fmt: skip


def classes(root: type[RocketMQError] = RocketMQError) -> Iterator[type[RocketMQError]]:
    yield root
    for each in root.__subclasses__():
        if each.__module__.startswith("rmq_"):
            yield from classes(each)


def made(kind: type[RocketMQError]) -> RocketMQError:
    """With everything that its constructor takes."""
    options: dict[str, Any] = {}
    for each in kind.__mro__:
        if "__init__" in vars(each):
            parameters = inspect.signature(each).parameters
            options |= {name: GIVEN[name] for name in parameters if name in GIVEN}
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                break
    return kind("refused\nso", **options)


def contents(error: BaseException | None) -> Any:
    """All that an error says."""
    if not isinstance(error, RocketMQError):
        return error
    fields = vars(error) | {"code": error.code, "retriable": error.retriable, "maybe_stored": error.maybe_stored}
    fields["attempts"] = [attempt._replace(error=contents(attempt.error)) for attempt in getattr(error, "attempts", ())]
    return type(error), str(error), repr(error), error.args, fields


def test_copies_of_every_error_say_what_it_says() -> None:
    kinds = list(dict.fromkeys(classes()))
    assert len(kinds) > 40
    wrong = []
    for kind in kinds:
        error = made(kind)
        for way in (copy.copy, lambda each: pickle.loads(pickle.dumps(each))):
            try:
                twin = way(error)
            except TypeError as trouble:
                wrong.append((kind, trouble))
            else:
                assert twin is not error
                if contents(twin) != contents(error):
                    wrong.append((kind, twin))
    assert wrong == []


def test_an_own_copy_keeps_the_cause_and_gathers_no_traceback() -> None:
    with pytest.raises(SendError) as caught:
        raise SendError("both failed", ATTEMPTS, code=1) from ATTEMPTS[0].error
    error = caught.value
    twin = own_copy(error)
    assert contents(twin) == contents(error)
    assert twin.__cause__ is error.__cause__ is ATTEMPTS[0].error
    assert twin.__suppress_context__
    assert (twin.__traceback__, error.__traceback__ is None) == (None, False)


@pytest.mark.parametrize("error", [BrokerSystemError("full"), ValueError("full")])
def test_notes_of_an_own_copy_are_its_own(error: Exception) -> None:
    error.add_note("of all")
    twin = own_copy(error)
    twin.add_note("of one caller")
    assert (error.__notes__, twin.__notes__) == (["of all"], ["of all", "of one caller"])
