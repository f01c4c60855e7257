"""The public API is the one of tests/project/public_api.txt, so that a change of it is a decision and is seen in a review.

After a change on purpose: ``python tests/project/test_public_api.py`` writes the file anew; CHANGELOG.md says what has changed.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

FILE = Path(__file__).with_name("public_api.txt")
PACKAGES = (
    "rmq_async", "rmq_async.admin", "rmq_async.consumer", "rmq_async.embedded", "rmq_async.errors", "rmq_async.inbox",
    "rmq_async.otel", "rmq_async.outbox", "rmq_async.testing", "rmq_async.testing.simulation",
)  # fmt: skip
INHERITED = frozenset(dir(object)) | frozenset(dir(Exception)) | frozenset(dir(enum.Enum)) | frozenset(dir(tuple))


def lines() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            yield from described(f"{package}.{name}", getattr(module, name))


def described(path: str, thing: Any) -> Iterator[str]:
    """A class with its public members, a function with its signature, another object by its name."""
    if inspect.isclass(thing):
        yield f"class {path}{signature_of(thing)}"
        if issubclass(thing, enum.Enum):
            yield from [f"  {member.name}" for member in thing]
        yield from [f"  {member}" for _, member in sorted(members_of(thing).items())]
    elif inspect.isroutine(thing):
        yield f"{word_of(thing)}def {path}{signature_of(thing)}"
    else:
        yield path


def members_of(kind: type) -> dict[str, str]:
    """By name: methods with their signatures, fields and properties without one."""
    found = {name: name for name in fields_of(kind)}
    for base in reversed(kind.__mro__[:-1]):
        if not base.__module__.startswith(("rmq_async", "rmq_protocol")):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in INHERITED or isinstance(member, enum.Enum):
                continue
            function = getattr(member, "__func__", member)
            is_method = inspect.isroutine(function) and not inspect.isdatadescriptor(function)
            found[name] = f"{word_of(function)}{name}{signature_of(function)}" if is_method else name
    return found


def fields_of(kind: type) -> list[str]:
    names = list(getattr(kind, "__struct_fields__", ())) + list(kind._fields if issubclass(kind, tuple) else ())
    if dataclasses.is_dataclass(kind):
        names += [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if not name.startswith("_")]


def word_of(function: Any) -> str:
    waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return "async " if waits else ""


def signature_of(thing: Any) -> str:
    if inspect.isclass(thing) and (issubclass(thing, enum.Enum) or Protocol in thing.__bases__):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):  # of C code
        return "(...)"
    hints = annotations_of(thing)
    parts, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        hint = parameter.annotation if isinstance(parameter.annotation, str) else hints.get(parameter.name)
        default = "" if parameter.default is parameter.empty else f" = {shown(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{f': {hint}' if hint else ''}{default}")
    returned = signature.return_annotation
    return f"({', '.join(parts)}){f' -> {returned}' if isinstance(returned, str) else ''}"


def annotations_of(thing: Any) -> dict[str, str]:
    """As written in the sources, of all bases: modules here postpone the evaluation of annotations."""
    found: dict[str, str] = {}
    for base in reversed(thing.__mro__) if inspect.isclass(thing) else ():
        found |= {name: text for name, text in vars(base).get("__annotations__", {}).items() if isinstance(text, str)}
    return found


def shown(default: object) -> str:
    """Without addresses, and without what differs between processes."""
    if inspect.isroutine(default):
        return default.__name__
    if default is None or isinstance(default, bool | int | float | str | bytes | enum.Enum):
        return str(default) if isinstance(default, enum.Enum) else repr(default)
    if isinstance(default, tuple | frozenset) and not default:
        return f"{type(default).__name__}()"
    return "..."


def test_the_public_api_is_the_recorded_one() -> None:
    recorded, found = FILE.read_text().splitlines(), list(lines())
    changes = list(difflib.unified_diff(recorded, found, "recorded", "found", lineterm="", n=0))
    assert not changes, "\n".join([*changes, "On purpose? python tests/project/test_public_api.py, and a line in CHANGELOG.md"])


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n")
    sys.exit(0)
