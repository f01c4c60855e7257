"""Runs ``rmq`` as ``python -m rmq_async.cli``."""

from __future__ import annotations

from . import main

main()
