"""Leaves out of the API reference what is no member for users: an extension of griffe (see mkdocs.yml)."""

from __future__ import annotations

from typing import Any, Final

import griffe

HIDDEN: Final = ("__slots__", "__match_args__", "__all__", "__hash__", "__getattr__", "__dir__")


class Members(griffe.Extension):
    def on_members(self, *, obj: griffe.Object, **_: Any) -> None:
        for name in HIDDEN:
            obj.members.pop(name, None)
