"""The hook for messages of commits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / "tools" / "check_commit.py"


@pytest.mark.parametrize(
    ("message", "problems"),
    [
        ("Retry a send on another broker\n\nThe first one may be gone.\n# a comment\n", []),
        ("Merge branch 'x' of a very long name that nothing can be done about, since git makes it\n", []),
        ("", ["the subject has 0 characters, 1 to 60 are allowed: ''"]),
        (f"A{'a' * 60}\n", [f"the subject has 61 characters, 1 to 60 are allowed: 'A{'a' * 60}'"]),
        ("retry.\n", ["the subject begins with a capital letter and has no full stop: 'retry.'"]),
        ("Retry\nmore\n", ["the line after the subject is empty, not 'more'"]),
    ],
)
def test_a_message_is_checked(message: str, problems: list[str], tmp_path: Path) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    ended = subprocess.run([sys.executable, str(HOOK), str(file)], capture_output=True, text=True)
    assert ended.stdout.split("\n")[:-1] == (problems or [""])
    assert ended.returncode == bool(problems)
