"""The steps of a scripted peer's transcript, and the comparison of received requests with expected ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import RESPONSE_FLAG, RequestCode, SerializeType

__all__ = ["Answer", "Close", "Expect", "ExpectClose", "Reset", "Step", "Wait", "Write", "differences", "name_of"]

_SHOWN: Final = 60
"""Bytes of a body that a message shows."""


@dataclass(frozen=True)
class Expect:
    """Expects the next request, from any connection, to be this one; compares only the given parts, by ``==``.

    ``code``: the request code. ``ext_fields``: values of the named fields; None for a field that must be absent. ``exact``: all
    other fields must be absent. ``oneway``: whether the request is one-way; None for either. ``body``: the body; None for any.
    """

    code: int
    ext_fields: Mapping[str, object] = field(default_factory=dict)
    body: object = None
    oneway: bool | None = None
    exact: bool = False

    def __str__(self) -> str:
        return f"Expect {name_of(self.code)}"


@dataclass(frozen=True)
class Answer:
    """Sends a response to the last request, or to the one at index ``to`` of those received.

    ``opaque``: None for that of the request, a number in place of it, or a function that makes a number from it. ``pieces``: the
    number of parts, of about equal size, in which the frame is written, or the byte offsets at which it is cut. ``pause``: seconds
    between two parts. ``form``: the encoding of the header. Raises ValueError for pieces below 1.
    """

    code: int = 0
    remark: str | None = None
    ext_fields: Mapping[str, str | None] | None = None
    body: bytes = b""
    opaque: int | Callable[[int], int] | None = None
    pieces: int | Sequence[int] = 1
    pause: float = 0.01
    form: SerializeType = SerializeType.JSON
    to: int = -1

    def __post_init__(self) -> None:
        if min([self.pieces] if isinstance(self.pieces, int) else self.pieces, default=1) < 1:
            raise ValueError(f"pieces must be a number from 1 on, or byte offsets from 1 on, not {self.pieces}")

    def frame(self, request: RemotingCommand) -> bytes:
        """Returns the frame of the response to ``request``."""
        opaque = self.opaque(request.opaque) if callable(self.opaque) else self.opaque
        response = RemotingCommand(
            code=self.code,
            opaque=request.opaque if opaque is None else opaque,
            flag=RESPONSE_FLAG,
            remark=self.remark,
            ext_fields=None if self.ext_fields is None else dict(self.ext_fields),
            body=self.body,
        )
        return b"".join(encode_command(response, self.form))

    def parts(self, frame: bytes) -> list[bytes]:
        """Returns ``frame`` cut as ``pieces`` says."""
        if isinstance(self.pieces, int):
            cuts = [len(frame) * number // self.pieces for number in range(1, self.pieces)]
        else:
            cuts = sorted(self.pieces)
        edges = [0, *cuts, len(frame)]
        return [part for start, stop in itertools.pairwise(edges) if (part := frame[start:stop])]

    def __str__(self) -> str:
        return f"Answer {self.code}"


@dataclass(frozen=True)
class Write:
    """Writes ``data`` as it is, valid or not, to the connection of the last request; waits for a connection if there is none."""

    data: bytes

    def __str__(self) -> str:
        return f"Write {len(self.data)} bytes"


@dataclass(frozen=True)
class Wait:
    """Pauses for ``seconds``; requests that arrive during that time are queued for the next steps."""

    seconds: float

    def __str__(self) -> str:
        return f"Wait {self.seconds:g} s"


@dataclass(frozen=True)
class Close:
    """Closes the connection of the last request by FIN; the following steps apply to the next connection."""

    def __str__(self) -> str:
        return "Close"


@dataclass(frozen=True)
class Reset:
    """Resets the connection of the last request (RST); the following steps apply to the next connection."""

    def __str__(self) -> str:
        return "Reset"


@dataclass(frozen=True)
class ExpectClose:
    """Expects the client to close the connection of the last request before any other request comes."""

    def __str__(self) -> str:
        return "ExpectClose"


Step = Expect | Answer | Write | Wait | Close | Reset | ExpectClose


def name_of(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return str(code)


def differences(expected: Expect, came: RemotingCommand) -> list[str]:
    """Returns an empty list for a request that matches. Otherwise returns lines: those of an equal part begin with "  ", those of
    another part with "- " (as expected) and "+ " (as received), and one that says where two bodies differ with "? "."""
    lines = [*_compared("code", name_of(expected.code), name_of(came.code))]
    if expected.oneway is not None:
        lines += _compared("oneway", expected.oneway, came.is_oneway)
    fields = came.ext_fields or {}
    for name, value in expected.ext_fields.items():
        lines += _compared(f"ext_fields[{name!r}]", value, fields.get(name))
    if expected.exact:
        lines += [f"+ ext_fields[{name!r}]: {value!r}" for name, value in fields.items() if name not in expected.ext_fields]
    if expected.body is not None:
        lines += _compared_bodies(expected.body, came.body)
    return lines if any(not line.startswith("  ") for line in lines) else []


def _compared(name: str, expected: object, came: object) -> Iterator[str]:
    if expected == came:
        yield f"  {name}: {came!r}" if not isinstance(came, str) or "[" in name else f"  {name}: {came}"
    else:
        yield f"- {name}: {_text(name, expected)}"
        yield f"+ {name}: {_text(name, came)}"


def _text(name: str, value: object) -> str:
    if value is None:
        return "(not there)"
    return value if isinstance(value, str) and name == "code" else repr(value)


def _compared_bodies(expected: object, came: bytes) -> Iterator[str]:
    if expected == came:
        yield f"  body: {len(came)} bytes"
    elif not isinstance(expected, bytes):
        yield f"- body: {expected!r}"
        yield f"+ body: {_window(came, 0)}"
    else:
        pairs = zip(expected, came, strict=False)
        at = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(came)))
        yield f"- body: {_window(expected, at)}"
        yield f"+ body: {_window(came, at)}"
        yield f"? body: {len(expected)} bytes expected, {len(came)} came, first difference at byte {at}"


def _window(body: bytes, at: int) -> str:
    start = max(0, at - _SHOWN // 3)
    shown = repr(body[start : start + _SHOWN])
    return f"{'... ' if start else ''}{shown}{' ...' if start + _SHOWN < len(body) else ''}"
