"""Text that peers chose, on its way into logs and errors."""

from __future__ import annotations

from rmq_protocol.errors import printable

__all__ = ["printable"]
