"""``python -m rmq_async.cli`` is ``rmq``."""

from __future__ import annotations

from . import main

main()
