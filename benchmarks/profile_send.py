"""Where the time of our sends goes: ``python benchmarks/profile_send.py [--how sample|calls] [--modes MODES]``.

``profiling`` says what the two ways are.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from profiling import profile
from send import arguments, create_topic, heat_broker, option_parser, specification, target

DEFAULT_MODES: Final = ("depth-64", "batch-1")


def main() -> int:
    parser = option_parser("profile_send.py", __doc__)
    parser.set_defaults(modes=",".join(DEFAULT_MODES), seconds=8.0, warm_up=0.5, rounds=1)
    parser.add_argument("--how", choices=("sample", "calls"), default="sample")
    parser.add_argument("--side", choices=("ours", "bare"), default="ours")
    parser.add_argument("--keep", metavar="DIR", help="with --how calls: where cProfile's data is kept")
    options = arguments(parser)
    with target(options) as place:
        asyncio.run(create_topic(place.namesrv, options.topic))
        heat_broker(options, place)
        for mode in options.modes:
            profile(specification(options, place, options.side, mode), options.how, options.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
