"""The sampling parameters as options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from ..models import SamplingParams
from ..models.sampling_params import FIELD_NAMES
from .options import gather_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import Decorator

__all__ = ["NUM_TOKENS", "chat_sampling_options", "sampling_options"]

NUM_TOKENS: Final = 256
"""The budget where no other is given."""


def _parse_extra(_context: object, _option: object, values: Sequence[str]) -> dict[str, Any]:
    extra = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not (name and equals):
            msg = f"{value!r} is not of the form NAME=VALUE"
            raise click.BadParameter(msg)
        if name in FIELD_NAMES:
            msg = f"{name!r} has an option of its own"
            raise click.BadParameter(msg)
        try:
            extra[name] = json.loads(text)
        except ValueError:
            extra[name] = text  # what is no JSON is a string
        except RecursionError:
            msg = f"the value of {name!r} is nested too deeply"
            raise click.BadParameter(msg) from None
    return extra


_CHOICE: Final = (
    click.option(
        "-n",
        "--num-tokens",
        type=click.IntRange(min=0),
        help=f"Generate so many tokens at most.  [default: {NUM_TOKENS}]",
    ),
    click.option(
        "--num-tokens-total",
        type=click.IntRange(min=0),
        help="So many tokens at most, prompt and generated ones together.",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        default=1.0,
        show_default=True,
        help="Below 1 favours the likely tokens, above it the unlikely.",
    ),
    click.option(
        "--top-k", type=click.IntRange(min=0), help="Sample among the K likeliest tokens."
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1),
        help="Sample among the likeliest tokens that together reach this probability.",
    ),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. Repeatable."),
    click.option(
        "--detokenize-stop-sequence", is_flag=True, help="Keep the text that ended it as well."
    ),
    click.option(
        "--termination-id",
        type=int,
        metavar="ID",
        help="End with this token, rather than with the model's own; -1: with none.",
    ),
)
_KNOWLEDGE: Final = (
    click.option("--add-bos", is_flag=True, help="Begin a text prompt with the model's BOS token."),
    click.option("--log-probs", is_flag=True, help="Tell how probable each token was."),
    click.option(
        "--top-n-logprobs",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Tell the N likeliest tokens at each place as well.",
    ),
    click.option(
        "--prompt-log-probs",
        is_flag=True,
        help="Tell how probable the prompt's tokens were, too; --return-prompt-tokens names them.",
    ),
    click.option("--return-prompt-tokens", is_flag=True, help="Ask for the prompt's token ids."),
    click.option(
        "--return-segments", is_flag=True, help="Ask for the text of each token, if engines can."
    ),
)
_OTHER: Final = (
    click.option(
        "--streaming-interval",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="So many tokens at least come at a time, while it is generated.",
    ),
    click.option(
        "--param",
        "extra",
        multiple=True,
        callback=_parse_extra,
        metavar="NAME=VALUE",
        help="A parameter that newer engines know; VALUE is JSON, or else a string. Repeatable.",
    ),
)


def _take(given: dict[str, Any]) -> SamplingParams:
    """Takes the options out of those given, and makes parameters of them."""
    num_tokens, total = given.pop("num_tokens"), given.pop("num_tokens_total")
    if num_tokens is None and total is None:
        num_tokens = NUM_TOKENS
    prompt_log_probs = given.pop("prompt_log_probs", False)
    top_n = given.pop("top_n_logprobs", 0)
    log_probs = given.pop("log_probs", False) or prompt_log_probs or top_n > 0
    return SamplingParams(
        num_tokens_to_generate=num_tokens,
        num_tokens_total=total,
        temperature=given.pop("temperature"),
        top_k=given.pop("top_k") or 0,
        top_p=given.pop("top_p") or 0.0,
        stop_words=list(given.pop("stop")) or None,
        detokenize_stop_sequence=given.pop("detokenize_stop_sequence"),
        termination_id=given.pop("termination_id"),
        add_BOS=given.pop("add_bos", False),
        return_log_probs=log_probs,
        skip_prompt_log_probs=log_probs and not prompt_log_probs,
        top_n_logprobs=top_n,
        return_prompt_tokens=given.pop("return_prompt_tokens", False),
        return_segments=given.pop("return_segments", False),
        streaming_interval=given.pop("streaming_interval"),
        extra=given.pop("extra"),
    )


sampling_options: Decorator = gather_options(
    "sampling_params", _CHOICE + _KNOWLEDGE + _OTHER, _take
)
"""Gives a command these options, which it gets as its argument ``sampling_params``."""

chat_sampling_options: Decorator = gather_options("sampling_params", _CHOICE + _OTHER, _take)
"""As `sampling_options`, without those for what is told of a completion beside its text."""
