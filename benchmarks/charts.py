"""The charts of the documentation: small SVGs that can be read on light pages and on dark ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from contest import ANYIO, ASYNCIO, OURS
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator
from pages import DOCS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contest import Result
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#808080"  # as far from white as from black
COLORS = {OURS: "#2f8f5b", ASYNCIO: "#c77c2e", ANYIO: "#7f7fd5"}
NARROW = 100  # so few powers of ten are divided further
SERIES_COLORS = ("#2f8f5b", "#7f7fd5")

mpl.use("svg")
mpl.rcParams.update({
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "trio-infer",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
})  # fmt: skip


def save(figure: Figure, name: str) -> None:
    """Writes it where the pages look for it: the same figures make the same bytes."""
    path = DOCS / f"{name}.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def _bars(axes: Axes, results: Sequence[Result], names: dict[str, str]) -> None:
    modules = [module for module in COLORS if module in names]
    height = 0.8 / len(modules)
    for place, module in enumerate(modules):
        spreads = [
            spread if result.row.figure in ("rate", "delay") else _inverted(spread)
            for result in results
            for spread in [result.ratios[module]]
        ]
        medians = [spread[0] for spread in spreads]
        errors = [
            [median - lowest for median, lowest, _ in spreads],
            [highest - median for median, _, highest in spreads],
        ]
        axes.barh(
            [row + place * height for row in range(len(results))],
            medians,
            height,
            xerr=errors,
            color=COLORS[module],
            ecolor=INK,
            error_kw={"elinewidth": 0.8},
            label=names[module],
        )
    for place, result in enumerate(results):
        for bound, style in ((result.row.bar, "-"), (result.row.aim, ":")):
            if bound is not None:
                value = bound if result.row.figure in ("rate", "delay") else 1 / bound
                ends = [place - height / 2, place + 0.8 - height / 2]
                axes.plot([value, value], ends, style, color=INK, linewidth=1.5)
    axes.set_yticks(
        [place + 0.4 - height / 2 for place in range(len(results))],
        [result.row.title for result in results],
    )
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)


def _inverted(spread: Sequence[float]) -> tuple[float, float, float]:
    median, lowest, highest = spread
    return 1 / median, 1 / highest, 1 / lowest


def draw_table(results: Sequence[Result], names: dict[str, str]) -> None:
    """How fast each is, as a share of the floor's speed, and how long it keeps others waiting."""
    delays = [result for result in results if result.row.figure == "delay"]
    speeds = [result for result in results if result.row.figure != "delay"]
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7.5, 7), height_ratios=(len(speeds), len(delays) + 0.5), layout="constrained"
    )
    _bars(above, speeds, names)
    above.set_xlim(left=0)
    above.set_xlabel("share of the floor's speed (more is better)")
    _bars(below, delays, names)
    below.set_xscale("log")
    below.minorticks_off()
    below.set_xlabel("delay, as a share of zmq.asyncio's (less is better)")
    above.plot([], [], "-", color=INK, label="bar")
    above.plot([], [], ":", color=INK, label="aim")
    above.legend(ncols=5, loc="lower left", bbox_to_anchor=(-0.35, 1.0))
    save(figure, "numbers")


def draw_growth(
    name: str, measured: dict[str, dict[int, float]], grows_with: str, of_what: str
) -> None:
    """Seconds over a size, both in powers of ten."""
    figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
    colors = iter(SERIES_COLORS)
    for label, values in measured.items():
        is_floor = label == "floor"
        axes.plot(
            list(values),
            [seconds * 1e6 for seconds in values.values()],
            "o--" if is_floor else "o-",
            color=INK if is_floor else next(colors),
            label=label,
            linewidth=1.2,
            markersize=3,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(grows_with)
    axes.set_ylabel(f"µs, {of_what}")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    if high / low < NARROW:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True)
    axes.legend()
    save(figure, f"growth-{name}")
