"""As for the client's tests: both loops, and nothing may be left."""

from __future__ import annotations

from ..client.conftest import nothing_left, pytest_asyncio_loop_factories

__all__ = ["nothing_left", "pytest_asyncio_loop_factories"]
