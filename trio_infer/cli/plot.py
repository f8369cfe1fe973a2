"""A picture of what a load has shown. It wants the extra ``plot``: matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from .load import BUCKET_SECONDS, Load

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_plot", "draw"]

SUFFIXES: Final = (".svg", ".png")

_PANELS: Final = (
    ("ttft", "time to first token (TTFT)"),
    ("itl", "inter-token latency (ITL)"),
    ("e2el", "end-to-end latency (E2EL)"),
)


def check_plot(path: Path) -> None:
    """Refuses what cannot be drawn, before anything is measured.

    Raises:
        click.ClickException: the file's kind, its directory or matplotlib is not to be had.
    """
    if path.suffix.lower() not in SUFFIXES:
        msg = f"--plot makes {' or '.join(SUFFIXES)} files, and {str(path)!r} is none"
        raise click.UsageError(msg)
    if not path.parent.is_dir():
        msg = "there is no such directory"
        raise click.FileError(str(path), msg)
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = f"no {error.name} here, which --plot needs: install trio-infer[plot]"
        raise click.ClickException(msg) from None


def draw(load: Load, path: Path) -> None:
    """Draws how the times are spread, and how many tokens arrived when.

    Raises:
        click.FileError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots(2, 2).flat
    for (metric, title), panel in zip(_PANELS, axes, strict=False):
        values = sorted(1000 * seconds for seconds in load.measured[metric])
        shares = [(place + 1) / len(values) for place in range(len(values))]
        panel.plot(values, shares, drawstyle="steps-post")
        panel.set(title=title, xlabel="milliseconds", ylabel="share of them", ylim=(0, 1.02))
        panel.grid(alpha=0.3)
    panel = axes[-1]
    buckets = range(max(load.arrivals, default=-1) + 1)
    panel.plot(
        [bucket * BUCKET_SECONDS for bucket in buckets],
        [load.arrivals[bucket] / BUCKET_SECONDS for bucket in buckets],
    )
    panel.set(title="output token throughput", xlabel="seconds", ylabel="tokens/s")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from None
