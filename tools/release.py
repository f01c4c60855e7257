"""Walks through a release without uploading anything: ``python tools/release.py``.

1. The version of pyproject.toml, that of ``rmq_async.__version__``, the newest heading of CHANGELOG.md and a tag of this commit
   agree.
2. Wheel and sdist are built into dist/ and tried in empty environments (tools/distributions.py).
3. The notes of the release are printed, and what is left to do by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
HEADING: Final = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


def versions(root: Path) -> dict[str, str]:
    """The version by the place where it stands."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    source = (root / "rmq_async" / "__init__.py").read_text()
    (package,) = re.findall(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    found = {"pyproject.toml": project, "rmq_async/__init__.py": package}
    released = [heading for heading in HEADING.finditer((root / "CHANGELOG.md").read_text()) if heading["date"]]
    if released:
        found["CHANGELOG.md"] = released[0]["version"]
    return found | {f"tag {tag}": tag.removeprefix("v") for tag in tags(root)}


def tags(root: Path) -> list[str]:
    """Tags of releases that name the checked-out commit; none where there is no git."""
    try:
        ended = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return [tag for tag in ended.stdout.split() if re.match(r"v\d", tag)]


def disagreements(found: dict[str, str]) -> list[str]:
    version = found["pyproject.toml"]
    return [f"{place} has version {other}, pyproject.toml {version}" for place, other in found.items() if other != version]


def notes(changelog: str, version: str) -> str:
    """The part of the changelog about a version; raises SystemExit where there is none."""
    headings = list(HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading["version"] == version:
            return changelog[heading.end() : following.start() if following else None].strip()
    sys.exit(f"CHANGELOG.md has no heading '## [{version}] - DATE'")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default="cli,compression,otel,outbox", help="extras to try the wheel with")
    options = parser.parse_args()
    found = versions(ROOT)
    if wrong := disagreements(found):
        print(*wrong, sep="\n")
        return 1
    version = found["pyproject.toml"]
    text = notes((ROOT / "CHANGELOG.md").read_text(), version)
    print(f"version {version}: {', '.join(found)} agree", flush=True)
    built = subprocess.run([sys.executable, str(ROOT / "tools" / "distributions.py"), "--extras", options.extras])
    if built.returncode != 0:
        return built.returncode
    print(f"\nNotes of {version}:\n\n{text}\n")
    if not any(place.startswith("tag ") for place in found):
        print(f"Next: git tag -a v{version}, and this command again")
    else:
        print(f"Next: git push --tags; twine upload dist/*; mike deploy --push --update-aliases {version} latest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
