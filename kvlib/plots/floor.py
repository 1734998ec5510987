"""Pictures of a step's least time: predicted beside measured, lever by lever, and what binds it."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .style import COLOUR

REGIMES = {  # what binds a step -> its colour
    "launch": COLOUR["recomputed"],
    "weights": COLOUR["predicted"],
    "arithmetic": COLOUR["v"],
    "cache": COLOUR["cached"],
}
RING = COLOUR["predicted"]
PALE = 0.55  # how opaque a regime's colour is, so that numbers and dots are read on it


def moves(panels: Mapping[str, tuple[Sequence, Mapping, Sequence]], unit: Sequence[str]) -> Figure:
    """The figure of ms per step along several ways: predicted parts stacked, measured as dots.

    A panel is its title -> (x values, part -> ms at each x, measured ms at each x); `unit` labels
    the x axes. Parts have the colours of their regimes.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(8.4, 3.6), squeeze=False)
    for ax, (title, (xs, parts, measured)), label in zip(
        axes[0], panels.items(), unit, strict=True
    ):
        colours = [REGIMES[name] for name in parts]
        ax.stackplot(xs, list(parts.values()), colors=colours, alpha=PALE)
        ax.plot(xs, measured, "o", color=COLOUR["measured"], clip_on=False, zorder=3)
        ax.set(title=title, xlabel=label, ylim=(0, None), xlim=(min(xs), max(xs)))
    axes[0, 0].set_ylabel("ms per step")
    figure.set_layout_engine("constrained", rect=(0, 0.09, 1, 0.91))
    drawn = {name for _, parts, _ in panels.values() for name, ms in parts.items() if any(ms)}
    name_regimes(figure, [name for name in REGIMES if name in drawn], 0.03)
    figure.text(0.98, 0.03, "dots: measured", ha="right")
    return figure


def name_regimes(figure: Figure, names: Sequence[str], y: float) -> None:
    """Write the names of regimes in a row, each behind a square of its colour."""
    for i, name in enumerate(names):
        figure.text(0.03 + 0.17 * i, y, "■", color=REGIMES[name], alpha=PALE)
        figure.text(0.055 + 0.17 * i, y, name)


def rungs(
    predicted: Mapping[str, float], measured: Mapping[str, float], why: Mapping[str, str]
) -> Figure:
    """The figure of the gain of each lever, predicted as a ring and measured as a dot.

    A gain is time before over time after; `why` says in words what is drawn for a lever that has
    neither.
    """
    names = [*dict.fromkeys([*predicted, *measured, *why])]
    figure, ax = plt.subplots(figsize=(7.6, 0.36 * len(names) + 1.3))
    ax.axvline(1, color="#c5cbd3", linewidth=1, zorder=0)
    for row, name in enumerate(names):
        ends = [found[name] for found in (predicted, measured) if name in found]
        ax.plot(ends, [row] * len(ends), color="#c5cbd3", linewidth=3, zorder=0)
        if name in predicted:
            ax.scatter(predicted[name], row, s=80, facecolor="white", edgecolor=RING, linewidth=2)
        if name in measured:
            ax.plot(measured[name], row, "o", color=COLOUR["measured"])
        else:
            ax.text(max(ends, default=1) * 1.06, row, why.get(name, ""), va="center", fontsize=10)
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.4, -0.6), xscale="log", xlabel="gain: time before / time after")
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, 0.45), max(high, 2.8))
    ax.xaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4, 8]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.set_title("ring: predicted, dot: measured")
    return figure


def regime_map(
    title: str,
    batches: Sequence[int],
    contexts: Sequence[int],
    binds: Sequence[Sequence[str]],
    step_s: Sequence[Sequence[float]],
    positions: int,
) -> Figure:
    """The figure of what binds a step, by batch (rows) and context (columns), with its time in ms.

    `binds` names a regime for each cell. A line stands after the last context that the model has
    `positions` for.
    """
    names = list(REGIMES)
    index = np.array([[names.index(name) for name in row] for row in binds])
    figure, ax = plt.subplots(figsize=(7, 4.4))
    colours = ListedColormap(list(REGIMES.values()))
    ax.imshow(index, cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, aspect="auto", alpha=PALE)
    for (row, column), seconds in np.ndenumerate(np.array(step_s)):
        value = 1e3 * seconds
        text = f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
        ax.text(column, row, text, ha="center", va="center", fontsize=10)
    ax.set_xticks(range(len(contexts)), [f"{context:,}" for context in contexts])
    ax.set_yticks(range(len(batches)), [f"{batch}" for batch in batches])
    ax.set(xlabel="context, tokens", ylabel="batch", title=title)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    inside = sum(context <= positions for context in contexts)
    if inside < len(contexts):
        ax.axvline(inside - 0.5, color=COLOUR["measured"], linewidth=1.2)
    figure.set_layout_engine("constrained", rect=(0, 0.08, 1, 0.92))
    name_regimes(figure, names, 0.025)
    figure.text(0.98, 0.025, "in the cells: ms", ha="right")
    return figure
