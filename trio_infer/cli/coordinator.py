"""``trio-infer coordinator``: the embedded coordinator, run for others."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from ..background import running_behind
from ..embedded import Faults, LanguageModel, LlamaModel, open_coordinator
from ..embedded.engine import DEFAULT_MAX_REQUESTS, DEFAULT_MAX_SEQUENCE_LENGTH
from ..protocol.dialects import FRAMED
from .activity import ActivityView
from .blame import blaming_user, opening
from .exits import EXIT_CODES
from .interruption import Interruption
from .model import context_option, load_model, model_option, speaks_bytes
from .options import dialect_option
from .tokenizing import BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["coordinator"]

PROBABLE: Final = tuple(
    field.name for field in attrs.fields(Faults) if field.name != "delay_seconds"
)
"""The faults that have a probability."""

EXAMPLES: Final = """
\b
Examples:
  trio-infer coordinator --bind tcp://127.0.0.1:5555
  trio-infer coordinator --engines 2 --step-time 0.02
  trio-infer coordinator --seed 1 --fault fail=0.1 --fault delay=0.5 --delay-seconds 0.1 2
  trio-infer coordinator --model shakespeare.txt
  trio-infer coordinator --model smollm2
"""


def _parse_faults(_context: object, _option: object, values: Sequence[str]) -> dict[str, float]:
    probabilities = {}
    for value in values:
        name, _, number = value.partition("=")
        try:
            probabilities[name] = float(number)
        except ValueError:
            name = ""
        if name not in PROBABLE:
            msg = f"{value!r} is not NAME=PROBABILITY with one of {', '.join(PROBABLE)}"
            raise click.BadParameter(msg)
    return probabilities


@click.command(
    short_help="A coordinator for others, with a small model of its own.",
    epilog=EXAMPLES + EXIT_CODES,
)
@click.option(
    "--bind",
    default="tcp://127.0.0.1:*",
    show_default=True,
    metavar="ADDRESS",
    help="Listen there; * for the port takes a free one.",
)
@dialect_option
@click.option(
    "--engines",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many engines serve the requests.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_REQUESTS,
    show_default=True,
    help="How many requests an engine runs at once.",
)
@click.option(
    "--step-time",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long an engine takes for a token of each request, beyond computing it.",
)
@click.option(
    "--max-sequence-length",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_SEQUENCE_LENGTH,
    show_default=True,
    help="How many tokens a prompt and what follows it may have.",
)
@click.option(
    "--block-size-tokens",
    type=click.IntRange(min=1),
    help="Give the engines a prefix cache of blocks of so many tokens.",
)
@model_option
@context_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Give equal requests, sent in the same order, the same text and the same faults.",
)
@click.option(
    "--fault",
    "probabilities",
    multiple=True,
    callback=_parse_faults,
    metavar="NAME=PROBABILITY",
    help=f"What befalls messages by chance: {', '.join(PROBABLE)}. Repeatable.",
)
@click.option(
    "--delay-seconds",
    type=(float, float),
    metavar="LEAST MOST",
    help="How long --fault delay holds a reply back.  [default: 0 0.1]",
)
def coordinator(
    *,
    model: str | None,
    context: int | None,
    probabilities: dict[str, float],
    delay_seconds: tuple[float, float] | None,
    **options: Any,
) -> int:
    """Run an embedded coordinator for clients in other processes, until Ctrl-C.

    The first line on standard output is its address, and there is no other. Standard error shows
    what it does: on a terminal as it is now, otherwise line by line as it changes.

    Ctrl-C, SIGTERM or a client's shutdown ends it, with the exit code 0, whatever still runs.
    """
    faults: dict[str, Any] = dict(probabilities)
    if delay_seconds is not None:
        faults["delay_seconds"] = delay_seconds
    with blaming_user():
        options["faults"] = Faults(**faults)
    loaded = options["model"] = load_model(model, context)
    trio.run(_run, options, _tokenizer(model or BYTES, loaded))
    return 0


def _tokenizer(given: str, model: LanguageModel | None) -> str:
    """What names the tokenizer of a model, which was given by that name."""
    if isinstance(model, LlamaModel):
        return str(model.path)
    return BYTES if speaks_bytes(model) else given


async def _run(options: dict[str, Any], tokenizer: str) -> None:
    interruption = Interruption()
    async with interruption.watching():
        with interruption.cancels():
            async with opening(partial(open_coordinator, **options)) as serving:
                click.echo(serving.address)
                _hint(serving.address, options["dialect"], tokenizer)
                view = ActivityView(serving)
                with view.showing():
                    async with running_behind(view.refresh_now_and_then):
                        await serving.wait_until(lambda: serving.stopped)


def _hint(address: str, dialect: str, tokenizer: str) -> None:
    told = f"--tokenizer {shlex.quote(tokenizer)} "
    told += "" if dialect == FRAMED.name else f"--dialect {dialect} "
    asking = f"trio-infer generate --stream {told}--address {shlex.quote(address)} PROMPT"
    click.echo(f"trio-infer: serving until Ctrl-C; to ask it: {asking}", err=True)
