"""The documents are correct: every Python block runs, defaults and codes are those of the code, links lead somewhere.

The blocks of a page are parts of one coroutine; ``server`` is an embedded cluster of two brokers. A block that ends in
``rmq_async.run(...)`` is a program and runs as one. Those of docs/spark.md and docs/spark-kafka.md need a Spark session: they run
in tests/spark. Those of docs/simulation.md are one module of tests, and so are two blocks of docs/testing.md.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
import re
import signal
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rmq_async
from rmq_async import (
    ClientConfig,
    ConsumerConfig,
    FaultTable,
    ProducerConfig,
    ProducerHealth,
    Retry,
    allocate_evenly,
    errors,
    select_best,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.health import ProblemCode
from rmq_async.testing import ThreadedRocketMQ

ROOT = Path(__file__).parents[2]
PAGES = [
    *[ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")],
    *sorted((ROOT / "examples").rglob("README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)((?: [^\n]*)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""With a title it is a file or a terminal of a tutorial, which tests/project/test_tutorial.py runs."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Line number and text of each block."""
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start(3)) + 1, found[3])
        for found in BLOCK.finditer(text)
        if found[1] == language and not found[2]
    ]


def is_program(source: str) -> bool:
    return "rmq_async.run(" in source


OF_THEIR_OWN = ("simulation.md", "spark.md", "spark-kafka.md")
SNIPPETS = [
    page
    for page in PAGES
    if page.name not in OF_THEIR_OWN and any(not is_program(source) for _, source in blocks(page, "python"))
]
WITH_THREADS = ("inbox.md", "outbox.md", "sending.md", "testing.md")
"""Real time: databases, handlers that block and sends from other threads need threads."""


@pytest.mark.virtual_time
@pytest.mark.parametrize("page", [each for each in SNIPPETS if each.name not in WITH_THREADS], ids=name_of)
async def test_the_blocks_of_a_page_run(page: Path) -> None:
    await run(page)


@pytest.mark.parametrize("page", [each for each in SNIPPETS if each.name in WITH_THREADS], ids=name_of)
async def test_the_blocks_of_a_page_with_threads_run(page: Path) -> None:
    await run(page)


async def run(page: Path) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        names: dict[str, Any] = {"server": server, "__name__": "page"}
        for line, source in blocks(page, "python"):
            if is_program(source):
                continue
            tree = ast.parse(source)
            ast.increment_lineno(tree, line - 1)
            code = compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, names)
            if inspect.iscoroutine(waiting):
                await waiting


def test_the_blocks_of_the_page_on_simulations_run(tmp_path: Path) -> None:
    module = tmp_path / "test_page.py"
    module.write_text("\n\n".join(source for _, source in blocks(ROOT / "docs" / "simulation.md", "python")))
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_SEED"}
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider", str(module)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 0, ended.stdout
    assert " 2 passed" in ended.stdout


def test_the_tests_of_handlers_on_the_page_on_testing_run(tmp_path: Path) -> None:
    (source,) = [source for _, source in blocks(ROOT / "docs" / "testing.md", "python") if "wait_settled" in source]
    assert " 1 passed" in output_of_tests(source, tmp_path)


def test_the_tests_of_probes_on_the_page_on_testing_run(tmp_path: Path) -> None:
    found = BLOCK.finditer((ROOT / "docs" / "testing.md").read_text())
    (source,) = [block[3] for block in found if 'title="test_service.py"' in block[2]]
    without_httpx2 = "ignore:Using `httpx` with `starlette.testclient` is deprecated"
    assert " 2 passed" in output_of_tests(source, tmp_path, "-W", without_httpx2)


def output_of_tests(source: str, folder: Path, *options: str) -> str:
    """Runs a module of tests, and returns what pytest prints."""
    module = folder / "test_page.py"
    module.write_text(source)
    given = ["-W", "error", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function", *options]
    command = [sys.executable, "-m", "pytest", *given, str(module)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_readme_is_a_landing_page_whose_programs_have_eight_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
    sizes = [len([line for line in source.splitlines() if line.strip()]) for _, source in blocks(ROOT / "README.md", "python")]
    assert len(sizes) == 3
    assert max(sizes) <= 8


def test_programs_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    with ThreadedRocketMQ() as server:
        for name, (_, source) in zip(("send.py", "worker.py", "check.py"), blocks(ROOT / "README.md", "python"), strict=True):
            (tmp_path / name).write_text(source.replace("127.0.0.1:9876", server.namesrv))
        command = [sys.executable, "-u", "-W", "error"]
        sent = subprocess.run([*command, str(tmp_path / "send.py")], capture_output=True, text=True, timeout=60)
        assert sent.returncode == 0, sent.stderr
        assert "stored as " in sent.stdout
        with subprocess.Popen([*command, str(tmp_path / "worker.py")], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "billed: order 17 paid\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        checked = subprocess.run([*command, str(tmp_path / "check.py")], capture_output=True, text=True, timeout=60)
        assert checked.returncode == 0, checked.stderr


# -- tables


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of a table, the one whose first heading is ``heading``."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


@pytest.mark.parametrize("config", [ClientConfig, ProducerConfig, ConsumerConfig, Retry])
def test_types_and_defaults_of_options_are_those_of_the_code(config: type[Any]) -> None:
    listed = {cells[0].strip("`"): cells[1:] for cells in rows("configuration.md", f"`{config.__name__}`")}
    assert listed.keys() == {field.name for field in dataclasses.fields(config)}
    made = config()
    by_name = {
        "select_best": select_best,
        "allocate_evenly": allocate_evenly,
        "FaultTable.V5": FaultTable.V5,
        "Retry()": Retry(),
    }
    for field in dataclasses.fields(config):
        kind, default, meaning, *_ = listed[field.name]
        shown = re.fullmatch(r"`(.+)`(?:, (s|bytes))?", kind)
        assert shown, field.name
        assert shown[1].replace(r"\|", "|") == field.type, field.name
        assert ("float" in str(field.type)) == (shown[2] == "s"), field.name
        assert meaning, field.name
        if default == "random, once per process":
            continue
        name = default.strip("`")
        assert (by_name[name] if name in by_name else ast.literal_eval(name)) == getattr(made, field.name), field.name


@pytest.mark.parametrize("config", [ClientConfig, ProducerConfig, ConsumerConfig, Retry, rmq_async.Batching])
def test_each_option_has_a_docstring_beside_it(config: type[Any]) -> None:
    body = ast.parse(inspect.cleandoc(inspect.getsource(config))).body[0].body  # type: ignore[attr-defined]
    documented = {
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
    }
    assert documented == {field.name for field in dataclasses.fields(config)}


def test_defaults_of_batching_are_those_of_the_code() -> None:
    listed = {cells[0].strip("`"): ast.literal_eval(cells[1].strip("`")) for cells in rows("sending.md", "`Batching`")}
    assert listed == dataclasses.asdict(rmq_async.Batching())


def test_defaults_of_the_embedded_broker_are_those_of_the_code() -> None:
    listed = {cells[0].strip("`"): ast.literal_eval(cells[1].strip("`")) for cells in rows("embedded.md", "option")}
    parameters = inspect.signature(EmbeddedRocketMQ).parameters
    assert listed == {name: parameter.default for name, parameter in parameters.items()}


def test_codes_and_policy_of_errors_are_those_of_the_code() -> None:
    listed = {cells[0].strip("`"): cells[1:3] for cells in rows("errors.md", "class")}
    for name, (code, retriable) in listed.items():
        error = getattr(errors, name)
        own = getattr(error, "response_code", None) or error.code
        assert code.partition(";")[0] in (str(int(own)) if own is not None else "none", "varies"), name
        assert retriable == ("yes" if error.retriable else "no"), name


def test_problem_codes_are_those_of_the_code() -> None:
    documented = [code for cells in rows("production.md", "problem") for code in re.findall(r"`(\w+)`", cells[0])]
    assert documented == [code.value for code in ProblemCode]


@pytest.mark.parametrize("kind", [ProducerHealth])
def test_fields_of_health_are_those_of_the_code(kind: type[Any]) -> None:
    documented = {cells[0].strip("`") for cells in rows("production.md", "field")}
    assert documented == {field.name for field in dataclasses.fields(kind)}


def test_every_class_of_error_is_documented() -> None:
    listed = {cells[0].strip("`") for cells in rows("errors.md", "class")}
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and not name.startswith("_")}
    kinds = {name for name, kind in classes.items() if issubclass(kind, errors.RocketMQError)}
    in_a_row_of_its_base = {"LocalProtocolError", "RemoteProtocolError"}
    assert kinds - listed == in_a_row_of_its_base


def test_the_outcome_of_others_calls_here_is_there() -> None:
    """The right column of each table: names that are called, and keywords."""
    tables = re.findall(r"^\|[^|]*\|([^|]*)\|$", (ROOT / "docs" / "migration.md").read_text(), re.MULTILINE)
    code = " ".join(span for cell in tables for span in re.findall(r"`([^`]*)`", cell))
    listed = set(re.findall(r"\b(\w+)(?:\(|=)", code)) - {"f"}
    users = (
        *(rmq_async.Producer, rmq_async.TransactionProducer, rmq_async.Admin, rmq_async.Credentials, rmq_async.split_batches),
        *(rmq_async.Consumer, rmq_async.PullConsumer, rmq_async.Batch, rmq_async.Delivery, rmq_async.Retry),
    )
    methods = [method for user in users for name, method in inspect.getmembers(user, callable) if not name.startswith("_")]
    known = {*rmq_async.__all__, *vars(errors), *(method.__name__ for method in methods)}
    for called in (*users, *methods, ClientConfig, ProducerConfig, ConsumerConfig, rmq_async.Message):
        known |= inspect.signature(called).parameters.keys()
    assert len(listed) > 40
    assert listed <= known


# -- commands and links


def test_the_readmes_first_command_installs_an_extra_that_exists_and_a_script_that_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first = blocks(ROOT / "README.md", "sh")[0][1].splitlines()[0]
    assert first == "python -m pip install '.[cli]' && rmq demo"
    assert "cli" in project["optional-dependencies"]
    assert project["scripts"] == {"rmq": "rmq_async.cli:main"}


def test_the_readmes_second_command_is_what_ci_runs() -> None:
    command = blocks(ROOT / "README.md", "sh")[0][1].splitlines()[1].split(" && ")[-1]
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("a source distribution has no .ci")
    assert f"\n{command} " in script.read_text()


def test_what_the_readme_says_of_versions_is_what_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme = (ROOT / "README.md").read_text()
    assert f"Version {project['version']} " in readme
    assert f"Python {project['requires-python'].removeprefix('>=')} or later" in readme
    assert project["license"] in readme


def test_links_lead_somewhere() -> None:
    assert not [f"{page.name}: {target}" for page in PAGES for target in links(page) if not leads_somewhere(page, target)]


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)]+)\)", BLOCK.sub("", page.read_text()))
    return [target for target in found if not target.startswith("https://")]


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    linked = (page.parent / path).resolve() if path else page
    if not anchor or not linked.exists():
        return linked.exists()
    return anchor in anchors(linked)


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert not [page for page in pages if f"](docs/{page})" not in readme]


def test_lines_are_short_enough_to_read() -> None:
    lines = [(page.name, line) for page in PAGES for line in BLOCK.sub("", page.read_text()).splitlines()]
    assert not [each for each in lines if len(each[1]) > 180 and not each[1].startswith("|")]
