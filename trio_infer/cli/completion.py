"""``trio-infer completion``: what makes a shell complete its commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from .exits import EXIT_CODES

__all__ = ["VARIABLE", "completion"]

NAME: Final = "trio-infer"

VARIABLE: Final = "_TRIO_INFER_COMPLETE"
"""In the environment it says that a shell asks, as click has it."""

SHELLS: Final = ("bash", "zsh", "fish")

EXAMPLES: Final = """
\b
Examples:
  eval "$(trio-infer completion bash)"
  trio-infer completion fish > ~/.config/fish/completions/trio-infer.fish
"""


@click.command(short_help="A script for a shell's completion.", epilog=EXAMPLES + EXIT_CODES)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print what lets SHELL complete commands, options and their values.

    Put the first example into ~/.bashrc, with zsh for bash into ~/.zshrc; the second is run once.
    Bash has to be 4.4 or later.
    """
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(context.find_root().command, {}, NAME, VARIABLE).source())
    return 0
