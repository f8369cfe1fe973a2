"""English prose that every CPython ships: the help topics, with all that is no prose left out."""

from __future__ import annotations

from typing import Final

__all__ = ["english_texts", "prose"]

_SHORTEST: Final = 60
_SHARE_OF_LETTERS: Final = 0.9
_FULL_STOPS: Final = (".", ":")


def english_texts() -> list[str]:
    """The prose of each help topic of Python, some 220 kB in all."""
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte, for whoever asks

    texts = (prose(topic) for topic in topics.values())
    return [text for text in texts if text]


def prose(topic: str) -> str:
    """The paragraphs of running text, each on one line, without headings, code and tables."""
    paragraphs = (" ".join(part.replace("*", "").split()) for part in topic.split("\n\n"))
    return "\n\n".join(paragraph for paragraph in paragraphs if _is_prose(paragraph))


def _is_prose(paragraph: str) -> bool:
    if len(paragraph) < _SHORTEST:
        return False
    if not (paragraph[0].isalpha() and paragraph.endswith(_FULL_STOPS)):
        return False
    letters = sum(map(str.isalpha, paragraph)) + paragraph.count(" ")
    return letters >= _SHARE_OF_LETTERS * len(paragraph)
