"""A set that is iterated in the order in which its members were added."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["OrderedSet"]

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """Members of a set of objects come in the order of their addresses, which differs from run to run; here they do not."""

    __slots__ = ()

    def add(self, member: T) -> None:
        self[member] = None

    def discard(self, member: T) -> None:
        self.pop(member, None)
