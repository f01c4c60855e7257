"""A helper for dictionaries of dictionaries."""

from __future__ import annotations

from typing import Any


def drop(table: dict[Any, dict[Any, Any]], key: object, item: object) -> None:
    """Remove an item, if it exists, from the inner table at ``key``. Remove the inner table when it is empty."""
    inner = table.get(key)
    if inner is not None:
        inner.pop(item, None)
        if not inner:
            del table[key]
