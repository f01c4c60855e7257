"""Pipelines between topics and tables.

The module of a pipeline has a function for programs and a command: ``rmq spark NAME``, or the module's file passed to
``spark-submit``. A module is loaded on its first use, because Spark's workers import this package whichever pipeline they run.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import archive, dlq_replay, job, publish, reconcile, replay, session

__all__ = ["archive", "dlq_replay", "job", "publish", "reconcile", "replay", "session"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
