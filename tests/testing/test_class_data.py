"""What servers load, kept for the next ones: where that does not work they start as if it did not exist."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from rmq_async.testing import _jars
from rmq_async.testing._jars import ClassData

CALLS = """\
#!/bin/sh
echo "$@" >> {calls}
{then}
"""


@pytest.fixture
def jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a java of 17, and beside it jars."""
    monkeypatch.setattr(_jars, "java_major", lambda java: 17)
    for name in ("java", "one.jar", "two.jar"):
        (tmp_path / name).write_text(name)
    return tmp_path


def jcmd(jdk: Path, then: str) -> Path:
    """Writes one; the file that it lists its calls in."""
    calls, program = jdk / "calls", jdk / "jcmd"
    program.write_text(CALLS.format(calls=calls, then=then))
    program.chmod(0o755)
    return calls


def data(jdk: Path, *, static: bool = True) -> ClassData:
    jars = os.pathsep.join(str(jdk / f"{name}.jar") for name in ("one", "two"))
    return ClassData(str(jdk / "java"), "org.example.Start", jars, static=static)


def left(jdk: Path) -> set[str]:
    return {path.name for path in jdk.iterdir()} - {"java", "jcmd", "one.jar", "two.jar", "calls"}


@pytest.mark.parametrize(
    ("static", "option", "what"), [(True, (), "static_dump"), (False, ("-XX:+RecordDynamicDumpInfo",), "dynamic_dump")]
)
def test_it_is_written_once_and_then_used(jdk: Path, static: bool, option: tuple[str, ...], what: str) -> None:
    calls = jcmd(jdk, 'echo data > "$5"')
    first = data(jdk, static=static)
    assert (first.wanted, first.options()) == (True, option)
    first.write(4711)
    first.write(4711)
    (used,) = data(jdk, static=static).options()
    name, _, file = used.partition("=")
    assert (name, Path(file).read_text()) == ("-XX:SharedArchiveFile", "data\n")
    (call,) = calls.read_text().splitlines()
    assert call.startswith(f"-J-XX:-UsePerfData 4711 VM.cds {what} /")
    assert left(jdk) == {Path(file).name, Path(file).with_suffix(".lock").name}


@pytest.mark.parametrize("changed", ["java", "one.jar", "two.jar"])
def test_another_java_or_jar_needs_it_written_anew(jdk: Path, changed: str) -> None:
    jcmd(jdk, 'echo data > "$5"')
    data(jdk).write(1)
    assert not data(jdk).wanted
    (jdk / changed).write_text("of another day")
    assert data(jdk).wanted


@pytest.mark.parametrize("then", ["echo no such command; exit 1", "exit 0"])
def test_what_failed_is_not_tried_again(jdk: Path, then: str) -> None:
    calls = jcmd(jdk, then)
    for _ in range(2):
        data(jdk).write(1)
        assert (data(jdk).wanted, data(jdk).options()) == (False, ())
    assert len(calls.read_text().splitlines()) == 1


def test_one_process_writes_it_and_others_go_on(jdk: Path) -> None:
    jcmd(jdk, 'echo data > "$5"')
    mine = data(jdk)
    with mine._file.with_suffix(".lock").open("w") as other:  # noqa: SLF001
        fcntl.flock(other, fcntl.LOCK_EX)
        mine.write(1)
        assert mine.wanted
    mine.write(1)
    assert not mine.wanted


def test_a_mere_jre_and_an_old_java_do_without(jdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (data(jdk).wanted, data(jdk).options()) == (False, ())
    jcmd(jdk, "exit 0")
    monkeypatch.setattr(_jars, "java_major", lambda java: 16)
    assert (data(jdk).wanted, data(jdk).options()) == (False, ())


def test_a_cache_that_cannot_be_written_to_is_no_failure(jdk: Path, caplog: pytest.LogCaptureFixture) -> None:
    jcmd(jdk, "exit 0")
    mine = data(jdk)
    mine._file.with_suffix(".lock").mkdir()  # noqa: SLF001
    with caplog.at_level("INFO"):
        mine.write(1)
    assert "the class data of a server cannot be stored" in caplog.text
    assert mine.wanted
