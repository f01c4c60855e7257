"""Wrong use, and a machine without the packages of the outbox."""

from __future__ import annotations

import asyncio

import pytest

from ..support import Rmq, ended_without, one_line
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


NEEDED = ("sqlalchemy", "greenlet", "aiosqlite", "asyncpg")


async def test_without_the_extra_one_line_says_what_to_install() -> None:
    calls = [(missing, ("outbox", "status", "--database", "sqlite:///x")) for missing in NEEDED]
    for missing, ended in zip(NEEDED, await ended_without("sqlalchemy", *calls), strict=True):
        assert (ended.code, ended.out) == (2, "")
        assert f"{missing} is not installed; pip install 'rmq-async[outbox]'" in one_line(ended.err)


async def test_help_and_wrong_names_need_no_sqlalchemy() -> None:
    calls = [("none", ("outbox", *arguments)) for arguments in (("relay", "--help"), ("send",), ())]
    helped, wrong, unnamed = await ended_without("sqlalchemy", *calls)
    assert (helped.code, helped.err) == (0, "")
    assert "--stuck-after" in helped.out
    assert (wrong.code, wrong.out) == (2, "")
    assert (unnamed.code, unnamed.out) == (2, "")
    assert all(name in unnamed.err for name in ("status", "relay", "retry", "purge"))
