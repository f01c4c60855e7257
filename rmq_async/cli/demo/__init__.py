"""The command ``rmq demo``: sends in every mode over real sockets and checks that every acknowledged message is stored."""

from __future__ import annotations

from .run import run_demo
from .settings import DemoSettings

__all__ = ["DemoSettings", "run_demo"]
