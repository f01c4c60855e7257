"""Checks for packages that only some commands need."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import util

import click

from .options import WRONG_USE


def needs_extra(extra: str, packages: Iterable[str]) -> None:
    """Raise ClickException where one of the packages is not installed. None of them is imported."""
    missing = [package for package in packages if not _is_installed(package)]
    if missing:
        raise _NotInstalled(
            f"{missing[0]} is not installed; pip install 'rmq-async[{extra}]' brings all that this command needs"
        )


def is_installed(packages: Iterable[str]) -> bool:
    """Return whether all of the packages are installed. None of them is imported."""
    return all(map(_is_installed, packages))


class _NotInstalled(click.ClickException):
    exit_code = WRONG_USE


def _is_installed(package: str) -> bool:
    try:
        return util.find_spec(package) is not None
    except ValueError:  # ``sys.modules`` has None for it, which forbids its import
        return False
