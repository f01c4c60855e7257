"""``rmq demo``: every way to send, on real sockets, and proof that what was acknowledged is there."""

from __future__ import annotations

from .run import run_demo
from .settings import DemoSettings

__all__ = ["DemoSettings", "run_demo"]
