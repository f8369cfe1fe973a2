"""A conversation as the token ids of all that was said, which only become more."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import click

from ..embedded.language_model import Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..embedded.language_model import Vocabulary

__all__ = ["Conversation"]


class Conversation:
    """Turns, in the words of a chat template.

    What was generated is never made text and tokens again: of each prompt all but the last turn is
    to the letter what engines have seen before, and have in their caches.

    Args:
        vocabulary: a tokenizer with a ``chat_template``.
        system: what the model is told before all else; None: nothing but what the template says.

    Attributes:
        end_of_turn: the token that ends an answer; None if that is not known.

    Raises:
        click.ClickException: there is no template, or it refuses such conversations, or the
            tokenizer does.
    """

    def __init__(self, vocabulary: Vocabulary, system: str | None) -> None:
        source = getattr(vocabulary, "chat_template", None)
        if source is None:
            msg = (
                "this model has no chat template, which says how turns look to it: give another"
                " one, such as --model smollm2, or ask this one by trio-infer generate"
            )
            raise click.UsageError(msg)
        try:
            from .chat_template import ChatTemplate  # noqa: PLC0415 - Jinja may be missing
        except ImportError as error:
            msg = f'chat templates need jinja2 ({error}): pip install "trio-infer[chat]"'
            raise click.ClickException(msg) from None
        self._vocabulary = vocabulary
        self._traits = traits = Traits.of(vocabulary)
        self._template = ChatTemplate(
            source,
            bos_token=self._text_of(traits.begin_token),
            eos_token=self._text_of(vocabulary.end_token),
        )
        self._beginning = [] if system is None else [{"role": "system", "content": system}]
        # In the place of each answer: what stands behind the last one is yet to be made tokens.
        self._mark = f"answer-{secrets.token_hex(16)}"
        self._answer = {"role": "assistant", "content": self._mark}
        self.end_of_turn: int | None = self._find_end()
        self.reset()
        self.prompt("?")  # what is wrong with all turns is told at once

    def reset(self) -> None:
        """Forgets all turns."""
        self._messages = list(self._beginning)
        self._tokens: list[int] = []

    def prompt(self, text: str) -> list[int]:
        """The tokens of all that was said, of a turn with this text, and of an answer's beginning.

        Raises:
            click.ClickException: the template refuses it, or the tokenizer does.
        """
        messages = [*self._messages, _user(text)]
        rendered = self._template.render(messages, add_generation_prompt=True)
        if self._tokens:
            return self._tokens + self._tokenize(self._behind_answer(rendered))
        tokens, begin = self._tokenize(rendered), self._traits.begin_token
        return [begin, *tokens] if self._traits.begins_prompts and tokens[:1] != [begin] else tokens

    def keep(self, text: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Keeps a turn.

        Args:
            text: its text.
            prompt: what `prompt` has made of it.
            answer: what was generated then. How it ends the template says, in the next prompt.
        """
        end = len(answer)
        while end and answer[end - 1] in self._traits.end_tokens:
            end -= 1
        self._tokens = [*prompt, *answer[:end]]
        self._messages += [_user(text), self._answer]

    def _tokenize(self, text: str) -> list[int]:
        try:
            return self._vocabulary.tokenize(text)
        except ValueError as error:
            msg = f"the tokenizer has no tokens for this conversation: {error}"
            raise click.ClickException(msg) from None

    def _find_end(self) -> int | None:
        """The first of the tokens that end texts which the template puts behind an answer."""
        messages = [*self._beginning, _user("?"), self._answer]
        rendered = self._template.render(messages, add_generation_prompt=False)
        behind = self._tokenize(self._behind_answer(rendered))
        ends = self._traits.end_tokens
        found = next((token for token in behind if token in ends), self._vocabulary.end_token)
        return found if found >= 0 else None

    def _behind_answer(self, rendered: str) -> str:
        _, mark, behind = rendered.rpartition(self._mark)
        if not mark:
            msg = "the chat template leaves out what was answered"
            raise click.ClickException(msg)
        return behind

    def _text_of(self, token: int) -> str:
        return self._vocabulary.detokenize([token]) if token >= 0 else ""


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
