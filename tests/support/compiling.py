"""Compiles the tests once for all processes of a run.

Every process of pytest-xdist imports every test. Where none is compiled yet, as in a new checkout, each of four compiled all of
them at the same time: 17 s of the processor each. Here each one compiles a part first; what it needs of the others' parts is then
there, or nearly.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

__all__ = ["compile_share"]


class _NotRun:
    """Stands for a module that is compiled and not run: exec() takes no tuple for its names."""

    __slots__ = ("__name__", "__spec__")
    __dict__ = ()  # type: ignore[assignment]

    def __init__(self, spec: ModuleSpec) -> None:
        self.__name__, self.__spec__ = spec.name, spec


def compile_share(config: pytest.Config, number: int, count: int) -> None:
    """Compiles each ``count``-th file below the directories that the run collects, from ``number`` on, where that is not done."""
    hook = next((each for each in sys.meta_path if isinstance(each, AssertionRewritingHook)), None)
    files = sorted(file for place in config.args if os.path.isdir(place) for file in Path(place).resolve().rglob("*.py"))
    for file in files[number::count]:
        name = f"compiled_{file.stem}"
        with suppress(Exception):  # what is wrong with a file is seen where it is imported
            if hook is None or not (file.name.startswith("test_") or file.name == "conftest.py"):
                SourceFileLoader(name, str(file)).get_code(name)
            elif (spec := spec_from_file_location(name, file)) is not None:
                hook.exec_module(_NotRun(spec))  # type: ignore[arg-type]
