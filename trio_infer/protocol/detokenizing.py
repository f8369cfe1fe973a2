"""Text out of token ids while they arrive, at a cost linear in their number.

Decoding all of them again for each delta would be quadratic. So what is decoded is a window: the
last few tokens, with enough before them that they read as they do in the whole. What a decoded
window has beyond the text that was given of it already is new. It is held back while it may still
change: while it ends in U+FFFD, which is what stands for half a character, or contradicts what was
given.

The window moves on to where a decoded tail is the end of what the window decodes to. For all but
contrived tokenizers nothing more is needed, and what remains is found out: in the end all tokens
are decoded at once, and compared with what was given.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

__all__ = ["NO_TEXT", "Detokenizer", "Tokenizer", "check_tokenizer"]

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

LONG: Final = 24
"""From so many tokens on a window is to be shortened."""

KEPT: Final = 6
"""To at least so many, and to less than twice that; a character has at most 4 tokens."""

PATIENCE: Final = 8
"""A window that cannot be shortened has to grow by this part of itself to be decoded again."""


class Tokenizer(Protocol):
    """What makes text of tokens: a ``tokenizers.Tokenizer``, or anything else that can `decode`."""

    def decode(self, ids: list[int], /) -> str:
        """The text of token ids, one or more, wherever they were cut.

        Half a character is U+FFFD, or nothing. Called in the trio thread, by the task that reads.
        """
        ...


class _NoText:
    """Makes no text."""

    def decode(self, _: list[int]) -> str:
        return ""


NO_TEXT: Final[Tokenizer] = _NoText()
"""For a stream whose text nobody looks at: the client's tokenizer could but cost, or raise."""


def check_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer, or None.

    Raises:
        TypeError: it cannot decode.
    """
    can_decode = callable(getattr(tokenizer, "decode", None))
    if tokenizer is None or (can_decode and not isinstance(tokenizer, type | bytes | bytearray)):
        return tokenizer
    msg = f"tokenizer must be an object with decode(ids), not {type(tokenizer).__name__}"
    raise TypeError(msg)


class Detokenizer:
    """The text of one request's tokens, given bit by bit.

    Whatever ``decode`` raises comes out, and changes nothing: the next call tries again.

    Args:
        tokenizer: what decodes.
    """

    __slots__ = (
        *("_due", "_given", "_joint", "_pieces", "_rest_taken", "_start", "_tokenizer"),
        "_whole",
    )

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start = 0  # of the window
        self._given = ""  # of its text
        self._due = 1  # so many tokens are worth another look
        self._pieces: list[str] = []
        self._joint = ("", 0)  # the first of the pieces in one, and how many those are
        self._whole: str | None = None
        self._rest_taken = False

    def take(self, tokens: list[int], *, ended: bool) -> str:
        """The text that has become certain since the last call.

        Args:
            tokens: all so far.
            ended: whether these are all that there will be; then it is the rest of the text, if
                what was given before is the beginning of it. See `check`.
        """
        if self._rest_taken:
            return ""
        if ended:
            return self._take_rest(tokens)
        if len(tokens) < self._due:
            return ""
        return self._take_settled(tokens)

    def _take_settled(self, tokens: list[int]) -> str:
        start, given = self._start, self._given
        size = len(tokens) - start
        text = self._decode(tokens[start:])
        settled, new = text.rstrip(REPLACEMENT), ""
        if settled.startswith(given):
            new, given = settled[len(given) :], settled
            if size >= LONG:
                start, given = self._shortened(tokens, text, settled)
        stuck = size >= LONG and start == self._start
        self._due = len(tokens) + (size // PATIENCE if stuck else 1)
        self._start, self._given = start, given
        self._pieces.append(new)
        return new

    def _shortened(self, tokens: list[int], text: str, settled: str) -> tuple[int, str]:
        """Where a shorter window may begin, and what has been given of its text."""
        end = len(tokens)
        for start in range(end - KEPT, end - 2 * KEPT, -1):
            tail = self._decode(tokens[start:])
            given = tail.rstrip(REPLACEMENT)
            if given and text.endswith(tail):
                return start, given
        return self._start, settled

    def _take_rest(self, tokens: list[int]) -> str:
        if self._whole is not None:
            return ""
        whole, given = self._decode(tokens[:]), self._joined()
        self._whole = whole
        if not whole.startswith(given):
            return ""
        rest = whole[len(given) :]
        self._pieces.append(rest)
        return rest

    def take_all(self) -> None:
        """Counts the rest as taken: `text` has it, `take` has nothing more."""
        self._rest_taken = True

    def check(self) -> None:
        """For when everything has been taken: whether that was the right text.

        Raises:
            ValueError: the tokenizer makes another text of all tokens than of those at the
                beginning, some of which was given before that could be known.
        """
        if not self._rest_taken and self._whole != self._joined():
            msg = (
                "the tokenizer takes back text: the decoding of all tokens does not begin with "
                "that of the first ones, so what the deltas have told is wrong; stream.text is "
                "right once the stream is closed"
            )
            raise ValueError(msg)

    def text(self, tokens: list[int]) -> str:
        """What was given so far; after `take_all` the decoding of all tokens.

        Args:
            tokens: all that there are, after `take_all`.
        """
        if not self._rest_taken:
            return self._joined()
        if self._whole is None:
            self._whole = self._decode(tokens[:])
        return self._whole

    def _joined(self) -> str:
        text, count = self._joint
        new = self._pieces[count:]
        if new:
            text += "".join(new)
            self._joint = (text, count + len(new))  # at once: other threads may look at the text
        return text

    def _decode(self, tokens: list[int]) -> str:
        text: object = self._tokenizer.decode(tokens) if tokens else ""  # some fail of nothing
        if not isinstance(text, str):
            msg = f"a tokenizer must decode to a str, not {type(text).__name__}"
            raise TypeError(msg)
        return text
