"""The loop of tests under virtual time."""

from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
