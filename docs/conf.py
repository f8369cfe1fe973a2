"""How Sphinx builds the documentation."""

from __future__ import annotations

import inspect
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

from sphinx.pycode import ModuleAnalyzer

import trio_infer

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "trio-infer"
author = "The trio-infer developers"
release = version = version_of("trio-infer")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"trio-infer {release}"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autoclass_content = "class"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "py:obj"  # `Completion` in a docstring is a reference, and one that holds

# Aliases of types, told where they occur.
ALIASES = (
    *("AbstractAsyncContextManager", "AbstractContextManager", "Enum", "Prompt", "SocketOptions"),
    *("ZmqContext", "npt.NDArray", "ResultT", "MeterProvider", "TracerProvider"),
    *("CollectorRegistry", "PathLike", "Vocabulary"),
)
nitpick_ignore = [("py:class", name) for name in ALIASES]
# Every reference into this package has to lead somewhere. Those into others are left as they are,
# so that the documentation can be built without a network.
nitpick_ignore_regex = [
    (r"py:class", r"trio_infer\.protocol\.dialect\.(Kind|Layout)"),  # of the table, not public
    (r"py:class", r"trio_infer\.models\.prompt\.SupportsToList"),  # a part of Prompt, told there
    (r"py:.*", r"trio_infer\.models\.result\.ResultT"),  # told by each method that returns it
    (r"py:.*", r"(attrs?|collections|contextlib|enum|logging|numpy|trio|typing|zmq)\..*"),
]

# How these are made is no business of those who get them.
GIVEN = (
    *("InferenceClient", "CompletionStream", "RequestGroup", "EngineControl", "Dialect"),
    "EmbeddedCoordinator",
)


def hide_signature(_app: Sphinx, what: str, name: str, *_: object) -> tuple[str, None] | None:
    return ("", None) if what == "class" and name.rpartition(".")[2] in GIVEN else None


def show_blocks(
    _app: Sphinx,
    _what: str,
    _name: str,
    made: object,
    _options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str] | None:
    # What contextlib makes a block of is annotated as the generator that it was.
    generator = getattr(made, "__wrapped__", None)
    if returns is None or not (
        inspect.isgeneratorfunction(generator) or inspect.isasyncgenfunction(generator)
    ):
        return None
    kind = "Async" if inspect.isasyncgenfunction(generator) else ""
    return signature, f"Abstract{kind}ContextManager[{returns.partition('[')[2]}"


def rejoin_first_line(
    _app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    # Napoleon takes what stands before a colon in a property's first line for its type.
    kinds = [line for line in lines if line.startswith(":type: ")]
    if what == "property" and kinds:
        lines.remove(kinds[0])
        lines[0] = f"{kinds[0].removeprefix(':type: ')}: {lines[0]}"


def forget_overloads(_app: Sphinx) -> None:
    # They would stand in place of the signatures that the page gives.
    analyzer = ModuleAnalyzer.for_module("trio_infer.opening")
    analyzer.analyze()
    analyzer.overloads.clear()


def lead_to_class(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: Any) -> Any:
    # An attribute is told in the docstring of its class: a reference to it leads there.
    owner, _, name = node.get("reftarget", "").rpartition(".")
    described = getattr(trio_infer, owner.rpartition(".")[2], None)
    if not isinstance(described, type) or f"\n    {name}: " not in (
        inspect.getdoc(described) or ""
    ):
        return None
    target = f"trio_infer.{described.__name__}"
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, "class", target, node, contnode
    )


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", forget_overloads)
    app.connect("missing-reference", lead_to_class)
    app.connect("autodoc-process-docstring", rejoin_first_line, priority=900)
    app.connect("autodoc-process-signature", hide_signature)
    app.connect("autodoc-process-signature", show_blocks)
