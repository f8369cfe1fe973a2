"""Chat models without a library: bytes, a token for the end of a turn, and a template."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["END", "Illiterate", "Refusing", "Short", "Talker", "Torn", "Unruly"]

END = 256
MARK = "<end>"
HALVES = "surrogateescape"
CERTAIN = 0.0
NEVER = -1e9


class Talker:
    """Says after whoever asks; to "forever" it says x without end, to "history" what it has seen.

    It has no system role but what its template makes of it.
    """

    vocab_size = 257
    end_token = END
    chat_template: str | None = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}"
        + MARK
        + "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )

    def tokenize(self, text: str) -> list[int]:
        first, *others = (list(part.encode()) for part in text.split(MARK))
        return first + [token for other in others for token in (END, *other)]

    def detokenize(self, tokens: Sequence[int]) -> str:
        return self._read(tokens).decode(errors="replace")

    def _read(self, tokens: Sequence[int]) -> bytes:
        return b"".join(MARK.encode() if token == END else bytes([token]) for token in tokens)

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        rows = []
        for sequence in sequences:
            row = [NEVER] * self.vocab_size
            row[self._next(self._read(sequence).decode(errors=HALVES))] = CERTAIN
            rows.append(row)
        return rows

    def _next(self, text: str) -> int:
        before, _, turn = text.rpartition("user: ")
        question, _, said = turn.partition(f"{MARK}assistant: ")
        if question == "forever":
            return ord("x")
        seen = before.replace(MARK, "|").replace(": ", ":")
        answer = seen if question == "history" else f"You say {question}."
        rest = answer.encode()[len(said.encode(errors=HALVES)) :]
        return rest[0] if rest else END


class Short(Talker):
    """Forgets what is longer than this."""

    max_sequence_length = 60


class Torn(Talker):
    chat_template = "{% for"


class Refusing(Talker):
    chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no\nsystem') }}{% endif %}"
        "{% if messages[-1].content == 'bad' %}{{ raise_exception('bad\nwords') }}{% endif %}"
        "{{ strftime_now('%Y')[:0] }}{% generation %}{{ messages[-1].content }}{% endgeneration %}"
    )


class Illiterate(Talker):
    def tokenize(self, text: str) -> list[int]:
        if "ü" in text:
            msg = "ü is\nno letter"
            raise ValueError(msg)
        return super().tokenize(text)


class Unruly(Talker):
    chat_template = "{{ messages.clear() }}"
