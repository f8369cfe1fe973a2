"""Documented is public: the reference page and the export lists name the same things."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

import trio_infer
import trio_infer.embedded

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"

PACKAGES = ("trio_infer", "trio_infer.embedded", "trio_infer.telemetry", "trio_infer.testing")


def documented() -> dict[str, dict[str, str]]:
    """The names on the reference page, by the module that they are imported from.

    With each stands the signature that the page gives it; empty where it leaves that to the code.
    """
    names: dict[str, dict[str, str]] = defaultdict(dict)
    module = ""
    directive = re.compile(r"^\.\. (\w+):: ([\w.]+)(\(.*\))?$", re.MULTILINE)
    for kind, name, signature in directive.findall(REFERENCE.read_text("utf-8")):
        if kind in ("module", "currentmodule"):
            module = name
        elif kind.startswith("auto"):
            assert name not in names[module], f"{name} is documented twice"
            names[module][name] = signature
    return dict(names)


SIGNATURES = [
    (package, name, signature)
    for package, names in documented().items()
    for name, signature in names.items()
    if signature
]


def test_the_page_documents_these_packages_and_no_other() -> None:
    assert sorted(documented()) == sorted(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_exported_is_what_is_documented(package: str) -> None:
    assert sorted(documented()[package]) == sorted(importlib.import_module(package).__all__)


def test_what_is_overloaded_is_documented_with_one_signature() -> None:
    assert [name for _, name, _ in SIGNATURES] == ["open_client", "connect_client"]


@pytest.mark.parametrize(("package", "name", "signature"), SIGNATURES)
def test_a_documented_signature_is_that_of_the_function(
    package: str, name: str, signature: str
) -> None:
    said = inspect.signature(eval(f"lambda {signature[1:-1]}: None"))
    real = inspect.signature(getattr(importlib.import_module(package), name))
    assert shape(said) == shape(real)


def shape(signature: inspect.Signature) -> list[tuple[object, ...]]:
    """The names of parameters, how they are given, and their defaults, in order."""
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_no_other_public_names(package: str) -> None:
    module = importlib.import_module(package)
    assert all(hasattr(module, name) for name in module.__all__)  # some come when asked for
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
