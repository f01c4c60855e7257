"""Measures what keeps the house readable, and fails where a figure is above its limit: ``python tools/house.py [--list RULE]``.

Rules, each read from the syntax trees alone (nothing is imported):

- circles: modules of ``rmq_async`` that import each other in a circle, imports under TYPE_CHECKING included; scripts of
  ``benchmarks`` and its ``support``, with the imports inside functions;
- deep-imports: imports of another package's module instead of its ``__init__`` (``rmq_protocol`` is exempt);
- parameters: functions with more than seven parameters, public ones excepted;
- complexity: functions with a cyclomatic complexity above 15 (``producer/fast_path.py`` is exempt);
- private-reads: attributes with a leading underscore that tests read, set or patch, by any means, on objects that are not
  their own, and names with one that they import;
- words: words that the prose of docstrings, comments, errors, logs and pages does without, and names in tests and the like too.

``limits`` in tools/house.json holds the figure that each rule may have; a figure below its limit asks for a lower limit, so that no
rule loses what was gained. ``words_in`` there lists the modules, pages and folders of prose, ``words_in_names`` those whose names
are read as well, ``words_allowed`` quotes and terms, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "rmq_async"
CODEC: Final = "protocol/rmq_protocol"
"""Users import its modules: what their ``__all__`` names is public."""
PUBLIC_PACKAGES: Final = ("", "embedded", "outbox", "spark", "spark/pipelines", "testing")
"""Packages whose names users import."""
SETTINGS: Final = Path(__file__).with_name("house.json")
MAX_PARAMETERS: Final = 7
MAX_COMPLEXITY: Final = 15
WORDS: Final = re.compile(r"\b(whoever|whatever|whom|nobody|told|tells?|telling)\b", re.IGNORECASE)
PARTS: Final = re.compile(WORDS.pattern.replace(r"\b", ""), re.IGNORECASE)
"""Matches in each file that has one of the words, inside a name too."""
WORD_ENDS: Final = re.compile(r"_|(?<=[a-z])(?=[A-Z])")
PROSE: Final = (".py", ".md", ".java", ".go", ".js")
BRANCHES: Final = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.comprehension, ast.match_case,
)  # fmt: skip
BY_NAME: Final = frozenset({"getattr", "setattr", "hasattr", "delattr", "attrgetter", "object", "patch"})
"""Functions that take an attribute's name as a text: built-in ones, and those of monkeypatch, operator and mock."""
DOCUMENTED: Final = frozenset({"_replace", "_asdict", "_fields", "_make", "_exit"})
"""Public all the same: of named tuples, which keep names without an underscore for their fields, and of os."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """``where``: file and line."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), filename=str(path))


def place(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


# -- imports


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, known: set[str]) -> Iterator[tuple[str, int]]:
    """Modules of the package that ``path`` imports at its top level or under TYPE_CHECKING, and the line."""
    module = module_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _module_level(tree_of(path).body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            target = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                deeper = f"{target}.{alias.name}"
                if deeper in known:
                    yield deeper, node.lineno
                elif target in known:
                    yield target, node.lineno


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _module_level([*node.body, *node.orelse])
        else:
            yield node


def import_graph() -> dict[str, dict[str, str]]:
    """Module -> imported module -> place of the import."""
    paths = {module_of(path): path for path in sources(PACKAGE)}
    return {
        module: {target: place(path, line) for target, line in imported(path, set(paths)) if target != module}
        for module, path in paths.items()
    }


def script_graph() -> dict[str, dict[str, str]]:
    """As ``import_graph``, of the benchmarks, which import by names below their folder, some of them inside functions."""
    folder = ROOT / "benchmarks"
    paths = {
        ".".join(path.relative_to(folder).with_suffix("").parts): path
        for path in sorted([*folder.glob("*.py"), *(folder / "support").glob("*.py")])
    }
    graph: dict[str, dict[str, str]] = {name: {} for name in paths}
    for name, path in paths.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                targets = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            graph[name] |= {target: place(path, node.lineno) for target in targets if target in paths and target != name}
    return graph


def circles() -> Iterator[Finding]:
    graph = import_graph() | script_graph()
    for component in _strongly_connected(graph):
        if len(component) > 1:
            first = sorted(component)[0]
            inside = next(where for target, where in graph[first].items() if target in component)
            for module in sorted(component):
                yield Finding(inside if module == first else module, f"in a circle of {len(component)} modules")


def _strongly_connected(graph: dict[str, dict[str, str]]) -> list[set[str]]:
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component: set[str] = set()
            while node not in component:
                component.add(stack.pop())
            found.append(component)

    for node in graph:
        if node not in index:
            visit(node)
    return found


def deep_imports() -> Iterator[Finding]:
    packages = {module_of(path) for path in sources(PACKAGE) if path.name == "__init__.py"}

    def room(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    for module, targets in import_graph().items():
        for target, where in targets.items():
            own, other = room(module), room(target)
            inside = own == other or own.startswith(other + ".") or (other + ".").startswith(own + ".")
            if not inside and target not in packages and other != PACKAGE:
                yield Finding(where, f"{module} imports {target}")


# -- sizes


def functions(path: Path) -> Iterator[tuple[Function, bool]]:
    """Functions, and whether each one is public: a public name in a module or class of public names."""

    def walk(body: list[ast.stmt], public: bool) -> Iterator[tuple[Function, bool]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, public and not node.name.startswith("_"))
            elif isinstance(node, Function):
                yield node, public and (node.name == "__init__" or not node.name.startswith("_"))
                yield from walk(node.body, False)
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                yield from walk(node.body, public)

    yield from walk(tree_of(path).body, True)


@cache
def public_names() -> frozenset[str]:
    """Names that users import: those of the ``__init__`` of PUBLIC_PACKAGES. A name there that is a module (``spark.pipelines``)
    stands for the ``__all__`` of that module.

    Commands of ``rmq`` are not among them, although ``cli`` has packages with an ``__all__``: users call them with options.
    """
    found: set[str] = set()
    for package in PUBLIC_PACKAGES:
        folder = ROOT / PACKAGE / package
        for name in _identifiers(tree_of(folder / "__init__.py")):
            module = folder / f"{name}.py"
            found |= _exports(tree_of(module)) if module.exists() else {name}
    return frozenset(found)


def _identifiers(tree: ast.Module) -> set[str]:
    """All texts that may be names: packages that load lazily write theirs in tables."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if text.isidentifier()}


def _exports(tree: ast.Module) -> set[str]:
    """The names of ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def parameters() -> Iterator[Finding]:
    for path in sources(PACKAGE, CODEC):
        exported = _exports(tree_of(path)) if path.is_relative_to(ROOT / CODEC) else public_names()
        owners = {
            id(item): node.name
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ClassDef)
            for item in ast.walk(node)
            if isinstance(item, Function)
        }
        for function, public in functions(path):
            every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            many = len([argument for argument in every if argument.arg not in ("self", "cls")])
            name = owners.get(id(function), function.name)
            if many > MAX_PARAMETERS and not (public and name in exported):
                yield Finding(place(path, function.lineno), f"{function.name} has {many} parameters")


def complexity() -> Iterator[Finding]:
    for path in sources(PACKAGE):
        if path.name == "fast_path.py":
            continue
        for function, _ in functions(path):
            found = _complexity_of(function)
            if found > MAX_COMPLEXITY:
                yield Finding(place(path, function.lineno), f"{function.name} has a complexity of {found}")


def _complexity_of(function: Function) -> int:
    count = 1
    stack: list[ast.AST] = [*function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, Function | ast.Lambda | ast.ClassDef):
            continue  # counted by itself
        if isinstance(node, BRANCHES):
            count += 1 + (len(node.ifs) if isinstance(node, ast.comprehension) else 0)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        stack += ast.iter_child_nodes(node)
    return count


# -- tests and prose


def private_reads() -> Iterator[Finding]:
    """Of objects that are not the test's own: by name, by getattr and the like, by monkeypatching, and by import."""
    classes = {
        node.name: node for path in sources("tests") for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)
    }
    for path in sources("tests"):
        own: dict[int, frozenset[str]] = {}
        for node in ast.walk(tree_of(path)):  # outer classes first: the innermost one counts
            if isinstance(node, ast.ClassDef):
                own |= dict.fromkeys(map(id, ast.walk(node)), _members(node, classes))
        for node in ast.walk(tree_of(path)):
            for name in _private_names(node, own.get(id(node), frozenset())):
                yield Finding(place(path, getattr(node, "lineno", 1)), name)


def _private_names(node: ast.AST, own: frozenset[str]) -> Iterator[str]:
    """``own``: members of the class that the node is in."""
    if isinstance(node, ast.Attribute) and _private(node.attr):
        on_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if not (on_self and node.attr in own) and node.attr not in DOCUMENTED:
            yield f".{node.attr}"
    elif isinstance(node, ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in BY_NAME:
            for argument in node.args:
                text = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(text, str) and _private(text.rpartition(".")[2]) and text.replace(".", "").isidentifier():
                    yield f"{function} of {text}"
    elif isinstance(node, ast.ImportFrom):
        yield from [f"import of {alias.name}" for alias in node.names if _private(alias.name)]


def _members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> frozenset[str]:
    """Names that a class of the tests, or a base of it that is one too, defines or assigns."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, Function):
            found.add(inner.name)
        elif isinstance(inner, ast.Attribute | ast.Name) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr if isinstance(inner, ast.Attribute) else inner.id)
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and classes[base.id] is not node:
            found |= _members(classes[base.id], classes)
    return frozenset(found)


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def words() -> Iterator[Finding]:
    settings: dict[str, Any] = json.loads(SETTINGS.read_text())
    allowed = settings["words_allowed"]
    in_names = tuple(ROOT / place for place in settings["words_in_names"])
    for path in [path for place in settings["words_in"] for path in _prose_files(ROOT / place)]:
        if PARTS.search(path.read_text()) is None:  # reading the tokens of all files takes 20 s
            continue
        texts = _prose(path, names=any(path.is_relative_to(place) for place in in_names))
        for line, text in texts if path.suffix == ".py" else enumerate(path.read_text().splitlines(), 1):
            for word in WORDS.findall(text):
                if not any(quote in text for quote in allowed):
                    yield Finding(place(path, line), word)


def _prose_files(place: Path) -> list[Path]:
    """``place``: a module or page, or a folder of them. Of other languages all lines are read."""
    return sorted([each for kind in PROSE for each in place.rglob(f"*{kind}")]) if place.is_dir() else [place]


def _prose(path: Path, *, names: bool) -> Iterator[tuple[int, str]]:
    """Comments and texts by line; with ``names`` also names, as the words they consist of."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
                for number, text in enumerate(token.string.splitlines()):
                    yield token.start[0] + number, text
            elif names and token.type == tokenize.NAME:
                yield token.start[0], WORD_ENDS.sub(" ", token.string)


RULES: Final = {
    "circles": circles,
    "deep-imports": deep_imports,
    "parameters": parameters,
    "complexity": complexity,
    "private-reads": private_reads,
    "words": words,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=RULES, help="print every finding of one rule")
    options = parser.parse_args()
    if options.list:
        print(*RULES[options.list](), sep="\n")
        return 0
    gc.disable()  # the trees have no cycles, and are all kept
    limits = json.loads(SETTINGS.read_text())["limits"]
    failed = 0
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    for rule, find in RULES.items():
        by_rule[rule] = list(find())
        figure, limit = len(by_rule[rule]), limits[rule]
        print(f"{rule:14}{figure:5} of {limit}")
        if figure > limit:
            failed = 1
            print(*by_rule[rule][:40], f"{rule}: {figure}, at most {limit} (tools/house.json)", sep="\n")
        elif figure < limit:
            failed = 1
            print(f"{rule}: {figure} is below the limit; write {figure} into tools/house.json, so that it stays there")
    return failed


if __name__ == "__main__":
    sys.exit(main())
