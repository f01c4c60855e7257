"""Pages of the site that do not stand in docs/: a hook of mkdocs (see mkdocs.yml).

Pages in docs/ link to files elsewhere in the repository, such as ``../examples/worker.py``. Each such file becomes a page (code,
Markdown) or a file (pictures) of the site, and the links lead there. So a page reads the same in a clone and on the site.

A line ``<!-- modules of FOLDER except NAMES -->`` is replaced by the API of the other modules in that folder.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = "docs"
ALWAYS: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md", "protocol/README.md")
"""In the navigation, whether a page links to them or not."""
LANGUAGES: Final = {".py": "python", ".json": "json", ".toml": "toml", ".yml": "yaml", ".java": "java"}
WEIGHTS: Final = {
    "reference/codec": 0, "reference/": 0.2, "examples/": 0.4, "benchmarks/": 0.1, "tests/": 0.1, "CHANGELOG": 0.1,
    "protocol/": 0.3, "cli": 0.4, "decisions/": 0.01, "results": 0.4, "simulation": 0.5, "spark": 0.6,
    "production": 3, "inbox": 2, "concepts": 2, "quickstart": 2, "tutorial": 2,
}  # fmt: skip
"""How much a hit counts in the search, by the beginning of the page's path; 1 for the others, 0 leaves the page out."""
LINK: Final = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
MODULES: Final = re.compile(r"^<!-- modules of (protocol/([\w/]+)) except ([\w, ]+) -->$", re.MULTILINE)
ERROR: Final = re.compile(r"^(::: rmq_async\.errors\.(?!RocketMQError$)\w+)$", re.MULTILINE)
FENCED: Final = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files that pages link to, and the files that the added pages link to."""
    waiting = list(ALWAYS)
    for file in files.documentation_pages():
        waiting += linked(f"{DOCS}/{file.src_uri}", (ROOT / DOCS / file.src_uri).read_text())
    added: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in added or path.startswith(f"{DOCS}/"):
            continue
        added.add(path)
        if path.endswith(".md"):
            text = (ROOT / path).read_text()
            waiting += linked(path, text)
            files.append(File.generated(config, path, content=text))
        elif Path(path).suffix in LANGUAGES:
            files.append(File.generated(config, page_of(path), content=code_page(path)))
        else:
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to files outside docs/ to their pages, names modules for the API, and weighs the page for the search."""
    uri = page.file.src_uri
    weight = next((weight for start, weight in WEIGHTS.items() if uri.startswith(start)), 1)
    page.meta.setdefault("search", {}).update({"boost": weight} if weight else {"exclude": True})
    markdown = MODULES.sub(
        lambda found: directives(ROOT / found[1], found[2].replace("/", "."), found[3].split(", ")), markdown
    )
    if uri == "reference/errors.md":  # each class has its own attributes, and the bases by which it is caught
        markdown = ERROR.sub(r"\1\n    options: {inherited_members: false, show_bases: true}", markdown)
    own = uri if page.file.generated_by else f"{DOCS}/{uri}"
    here = posixpath.dirname(uri)

    def replaced(found: re.Match[str]) -> str:
        target = resolved(own, found[2])
        if target is None:
            return found[0]
        place = target.removeprefix(f"{DOCS}/") if target.startswith(f"{DOCS}/") else page_of(target)
        return f"{found[1]}{posixpath.relpath(place, here or '.')}{found[3] or ''}{found[4]}"

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)


def directives(folder: Path, package: str, left_out: list[str]) -> str:
    """Return what mkdocstrings takes for the public names of the modules of a package, except ``left_out`` and subpackages."""
    modules = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_") and path.stem not in left_out)
    options = "    options: {filters: public, show_root_full_path: true}"
    return "\n\n".join(f"::: {package}.{module}\n{options}" for module in modules)


def linked(own: str, text: str) -> list[str]:
    """Files of the repository that a page links to, as paths from its root."""
    targets = [resolved(own, found[2]) for found in LINK.finditer(FENCED.sub("", text))]
    return [target for target in targets if target is not None]


def resolved(own: str, target: str) -> str | None:
    """The path from the root of the repository, of a folder its README.md; None for a link that leads elsewhere."""
    if "://" in target or target.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(own), target))
    if (ROOT / path).is_dir():
        path += "/README.md"
    return path if (ROOT / path).is_file() else None


def page_of(path: str) -> str:
    """Where a file outside docs/ is on the site."""
    suffix = Path(path).suffix
    return path.removesuffix(suffix) + ".md" if suffix in LANGUAGES else path


def code_page(path: str) -> str:
    return f"# {path}\n\n````{LANGUAGES[Path(path).suffix]}\n{(ROOT / path).read_text()}````\n"
