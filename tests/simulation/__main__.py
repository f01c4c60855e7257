"""``python -m tests.simulation``: ``rmq simulate --scenario``, by default with the scenario ``mixed``."""

from __future__ import annotations

import sys

from rmq_async.cli import main

if __name__ == "__main__":
    given = sys.argv[1:]
    named = any(each.partition("=")[0] == "--scenario" for each in given)
    main(("simulate", *([] if named else ["--scenario", "mixed"]), *given))
