"""A tokenizer in a directory as Hugging Face has them, by the package ``tokenizers``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["HuggingFaceVocabulary"]

_NONE: Final = -1


class HuggingFaceVocabulary:
    """Tokens, their texts, and the chat template, if there is one.

    Args:
        directory: with ``tokenizer.json``; ``tokenizer_config.json``, ``generation_config.json``
            and ``chat_template.jinja`` are looked at as well, where they are.

    Attributes:
        vocab_size: how many tokens there are.
        end_token: the one that ends a text; -1 if it is not known.
        end_tokens: all those that do, such as at the end of a turn.
        begin_token: the one that begins a text; -1 if it is not known.
        chat_template: in Jinja's language; None if there is none.

    Raises:
        ImportError: ``tokenizers`` is not installed.
        OSError: the file cannot be read.
        ValueError: there is something else in one of them.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - may be missing
        except ImportError as error:
            msg = f'{directory} needs tokenizers ({error}): pip install "trio-infer[chat]"'
            raise ImportError(msg) from error
        path = directory / "tokenizer.json"
        source = path.read_text("utf-8")
        try:
            self._tokenizer = tokenizer = Tokenizer.from_str(source)
        except Exception as error:  # noqa: BLE001 - it has no kind of its own
            msg = f"{path} is no tokenizer: {error}"
            raise ValueError(msg) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = _read(directory / "tokenizer_config.json")
        self.vocab_size: int = 1 + max(tokenizer.get_vocab().values(), default=-1)
        self.end_token: int = self._id_of(config.get("eos_token"))
        self.begin_token: int = self._id_of(config.get("bos_token"))
        ends = _read(directory / "generation_config.json").get("eos_token_id")
        known = ends if isinstance(ends, list) else [ends]
        self.end_tokens: set[int] = {
            end for end in (self.end_token, *known) if isinstance(end, int)
        }
        self.chat_template: str | None = _template(directory, config)

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text; those that stand for marks of the model's, such as turns, too."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Their text, in which marks are visible."""
        known = [token for token in tokens if token >= 0]
        text: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return text

    def _id_of(self, token: Any) -> int:
        text = token.get("content") if isinstance(token, dict) else token
        found = self._tokenizer.token_to_id(text) if isinstance(text, str) else None
        return _NONE if found is None else found


def _read(path: Path) -> dict[str, Any]:
    """An object of JSON; empty where there is no file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        msg = f"{path} is no JSON: {error}"
        raise ValueError(msg) from None
    if not isinstance(found, dict):
        msg = f"{path} is no object of JSON"
        raise ValueError(msg)  # noqa: TRY004 - of a file
    return found


def _template(directory: Path, config: dict[str, Any]) -> str | None:
    """The template in a file of its own, or else the one that the configuration calls default."""
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text("utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        named = (each for each in found if isinstance(each, dict))
        found = next(
            (each.get("template") for each in named if each.get("name") == "default"), None
        )
    return found if isinstance(found, str) else None
