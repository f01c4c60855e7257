"""Wrong use, and a machine without the packages of the outbox."""

from __future__ import annotations

import asyncio
import sys

import pytest

from ..support import Rmq, one_line, rmq
from .support import Table


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["retry"], "no rows to retry are named: give their IDs or --all-failed"),
        (["retry", "1", "--all-failed"], "give IDs of rows or --all-failed, not both"),
        (["retry", "0"], "0"),
        (["retry", str(1 << 63)], str(1 << 63)),
        (["purge"], "--older-than"),
        (["purge", "--older-than", "7"], "an age of at most 1e9 s, such as 7d"),
        (["purge", "--older-than", "-1d"], "an age of at most 1e9 s, such as 7d"),
        (["purge", "--older-than", "99999d"], "an age of at most 1e9 s, such as 7d"),
        (["status", "--fail-above", "-1"], "--fail-above"),
        (["status", "--table", ""], "table"),
        (["relay", "--batch-size", "0"], "--batch-size"),
        (["relay", "--lease", "0"], "--lease"),
        (["relay", "--group", "no spaces"], "no spaces"),
        (["relay", "--namesrv", "no-port"], "no-port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line_and_code_2(wrong: list[str], says: str, table: Table, rmq_outbox: Rmq) -> None:
    asyncio.run(table.add())
    ended = rmq_outbox(*wrong)
    assert (ended.code, ended.out) == (2, ""), ended
    assert says in one_line(ended.err)


def program(missing: str, *arguments: str) -> list[str]:
    """``rmq`` where a package is not installed; it fails if SQLAlchemy is imported all the same."""
    return [
        sys.executable, "-W", "error", "-c",
        f"import sys; sys.modules[{missing!r}] = None; from rmq_async.cli.app import run_command; "
        f"code = run_command({list(arguments)!r}); sys.exit(99 if sys.modules.get('sqlalchemy') else code)",
    ]  # fmt: skip


@pytest.mark.parametrize("missing", ["sqlalchemy", "greenlet", "aiosqlite", "asyncpg"])
async def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    ended = await rmq(command=program(missing, "outbox", "status", "--database", "sqlite:///x"))
    assert (ended.code, ended.out) == (2, "")
    assert f"{missing} is not installed; pip install 'rmq-async[outbox]'" in one_line(ended.err)


async def test_help_and_wrong_names_need_no_sqlalchemy() -> None:
    ended = await rmq(command=program("none", "outbox", "relay", "--help"))
    assert (ended.code, ended.err) == (0, "")
    assert "--stuck-after" in ended.out
    ended = await rmq(command=program("none", "outbox", "send"))
    assert (ended.code, ended.out) == (2, "")
    ended = await rmq(command=program("none", "outbox"))
    assert (ended.code, ended.out) == (2, "")
    assert all(name in ended.err for name in ("status", "relay", "retry", "purge"))
