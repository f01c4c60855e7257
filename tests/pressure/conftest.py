"""Each test chooses its loop: virtual time where it is marked so."""

from __future__ import annotations

from ..loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
