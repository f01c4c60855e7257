"""A set that is iterated in the order in which its members were added."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """A set that keeps the order of insertion.

    The order of a built-in set of objects depends on the objects' memory addresses and differs between runs.
    """

    __slots__ = ()

    def add(self, member: T) -> None:
        self[member] = None

    def discard(self, member: T) -> None:
        self.pop(member, None)
