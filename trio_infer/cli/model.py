"""The language model of a coordinator: counted from a text, or an object of the user's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from ..embedded import LanguageModel, NgramModel

__all__ = ["load_model"]


def load_model(given: str) -> LanguageModel:
    """The model that is meant: ``module:object``, or the name of a file of text.

    Raises:
        click.ClickException: it cannot be had.
    """
    module, colon, name = given.partition(":")
    if colon and not Path(given).exists():
        return _import(module, name)
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


def _import(module: str, name: str) -> LanguageModel:
    sys.path.insert(0, "")  # as with python -m; the program itself is a script elsewhere
    try:
        model = getattr(importlib.import_module(module), name)
        if isinstance(model, type):
            model = model()
        if isinstance(model, LanguageModel):
            return model
    except (Exception, SystemExit) as error:  # it is the user's code
        msg = f"the model {module}:{name} cannot be had: {type(error).__name__}: {error}"
        raise click.ClickException(msg) from error
    msg = f"{module}:{name} is no LanguageModel: it lacks some of its methods"
    raise click.ClickException(msg)
