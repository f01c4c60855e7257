"""Servers whose time the test moves."""

from __future__ import annotations

import pytest

from ..inside import START, WatchedClock


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock(START)
