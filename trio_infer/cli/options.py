"""Options that several commands have."""

from __future__ import annotations

from typing import Final

import click

from ..protocol.dialects import DIALECTS, ENVIRONMENT, FRAMED

__all__ = ["SETTINGS", "dialect_option"]

SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""What holds for all commands."""

dialect_option = click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    envvar=ENVIRONMENT,
    show_envvar=True,
    default=FRAMED.name,
    show_default=True,
    help="What the coordinator speaks. The wrong one can kill it.",
)
