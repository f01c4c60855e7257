"""Text that peers chose, on its way into logs and errors."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: object, limit: int = 200) -> str:
    """``text`` on one line and at most about ``limit`` characters: control characters escaped, the rest cut off."""
    shown = str(text)
    if len(shown) > limit:
        shown = shown[:limit] + "..."
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)
