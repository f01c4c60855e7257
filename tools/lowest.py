"""Writes requirements that pin the lowest version of each dependency: ``python tools/lowest.py FILE [EXTRA ...]``.

They are those of pyproject.toml, with the dependencies of the extras that are named (default: unit), and ``==`` for ``>=``. What
they depend on themselves is not pinned. Needs the package packaging.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[1]


def pinned(project: dict[str, object], extras: list[str]) -> list[str]:
    """Raises ValueError for a dependency without a lower bound."""
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    waiting, seen, found = list(extras), set(extras), set[str]()
    texts = list(project["dependencies"])  # type: ignore[call-overload]
    while waiting:
        texts += optional[waiting.pop()]
    while texts:
        requirement = Requirement(texts.pop())
        if requirement.name == project["name"]:
            fresh = requirement.extras - seen
            seen |= fresh
            texts += [text for extra in fresh for text in optional[extra]]
            continue
        lowest = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
        if len(lowest) != 1:
            raise ValueError(f"{requirement} has no lower bound: write one into pyproject.toml")
        extra = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        found.add(f"{requirement.name}{extra}=={lowest[0]}" + (f" ; {requirement.marker}" if requirement.marker else ""))
    return sorted(found)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    Path(sys.argv[1]).write_text("\n".join(pinned(project, sys.argv[2:] or ["unit"])) + "\n")
