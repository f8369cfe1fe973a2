"""Documented is public: the reference page and the export lists name the same things."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

import trio_infer
import trio_infer.embedded

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"

PACKAGES = ("trio_infer", "trio_infer.embedded")


def documented() -> dict[str, list[str]]:
    """The names on the reference page, by the module that they are imported from."""
    names: dict[str, list[str]] = defaultdict(list)
    module = ""
    directive = re.compile(r"^\.\. (\w+):: (\S+)$", re.MULTILINE)
    for kind, name in directive.findall(REFERENCE.read_text("utf-8")):
        if kind in ("module", "currentmodule"):
            module = name
        elif kind.startswith("auto"):
            names[module].append(name)
    return dict(names)


def test_the_page_documents_these_packages_and_no_other() -> None:
    assert sorted(documented()) == sorted(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_exported_is_what_is_documented(package: str) -> None:
    assert sorted(documented()[package]) == sorted(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_no_other_public_names(package: str) -> None:
    module = importlib.import_module(package)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert public == set(module.__all__)


MODULES = [info.name for info in pkgutil.walk_packages(trio_infer.__path__, "trio_infer.")]


@pytest.mark.parametrize("name", [name for name in MODULES if "._" not in name])
def test_each_module_says_what_it_offers_and_has_it(name: str) -> None:
    module = importlib.import_module(name)
    offered = getattr(module, "__all__", [])
    assert len(set(offered)) == len(offered)
    assert all(hasattr(module, each) for each in offered)
    if not hasattr(module, "__path__"):
        assert offered, "a module without __all__"
