"""Runs ``rmq`` as ``python -m rmq_async.cli``."""

from . import main

main()
