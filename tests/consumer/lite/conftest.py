"""As for the consumer's tests."""

from __future__ import annotations

from ..conftest import nothing_left, pytest_asyncio_loop_factories

__all__ = ["nothing_left", "pytest_asyncio_loop_factories"]
