"""The version is one, and the parts of tools/release.py that need no build."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_versions_agree_with_each_other_and_with_the_tag(release: ModuleType) -> None:
    found = release.versions(ROOT)
    assert {"pyproject.toml", "rmq_async/__init__.py", "CHANGELOG.md"} <= found.keys()
    assert not release.disagreements(found)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with version 0.2.0 everywhere."""
    (tmp_path / "rmq_async").mkdir()
    (tmp_path / "rmq_async" / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "## [Unreleased]\n\n## [0.2.0] - 2030-01-02\n\n- new\n\n## [0.1.0] - 2030-01-01\n\n- old\n"
    )
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b.invalid commit -qm First"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return tmp_path


def test_a_tag_of_another_version_is_a_disagreement(release: ModuleType, project: Path) -> None:
    assert set(release.versions(project)) == {"pyproject.toml", "rmq_async/__init__.py", "CHANGELOG.md"}
    subprocess.run(["git", "tag", "v0.3.0"], cwd=project, check=True)
    found = release.versions(project)
    assert release.disagreements(found) == ["tag v0.3.0 has version 0.3.0, pyproject.toml 0.2.0"]


def test_notes_are_those_of_the_version(release: ModuleType, project: Path) -> None:
    text = (project / "CHANGELOG.md").read_text()
    assert release.notes(text, "0.2.0") == "- new"
    assert release.notes(text, "0.1.0") == "- old"
    with pytest.raises(SystemExit, match="no heading"):
        release.notes(text, "0.4.0")
