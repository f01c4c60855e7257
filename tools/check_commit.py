"""Checks the message of a commit, a hook of git: ``python tools/check_commit.py FILE``.

The subject has at most 60 characters, begins with a capital letter and ends without a full stop; an empty line follows it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

MAX_SUBJECT: Final = 60


def problems(message: str) -> list[str]:
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return []
    found = []
    if not subject or len(subject) > MAX_SUBJECT:
        found.append(f"the subject has {len(subject)} characters, 1 to {MAX_SUBJECT} are allowed: {subject!r}")
    if subject[:1] != subject[:1].upper() or subject.endswith("."):
        found.append(f"the subject begins with a capital letter and has no full stop: {subject!r}")
    if len(lines) > 1 and lines[1].strip():
        found.append(f"the line after the subject is empty, not {lines[1]!r}")
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]).read_text())
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)
