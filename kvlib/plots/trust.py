"""Pictures of trust: which check catches which bug, and where logits part."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from .parts import direct_label
from .style import COLOUR


def bug_matrix(found: dict, named: dict, checks: Sequence[str]) -> Figure:
    """The figure of bugs (rows) by `checks` (columns): filled where the check fails on the bug.

    `found` maps a bug to the checks that failed, `named` to the one that should; that is ringed.
    """
    figure, ax = plt.subplots(figsize=(7.8, 0.21 * len(found) + 2.3))
    for row, (bug, failed) in enumerate(found.items()):
        for column, check in enumerate(checks):
            colour = COLOUR["recomputed"] if check in failed else "#eef0f2"
            ax.add_patch(plt.Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, facecolor=colour))
            if named.get(bug) == check:
                ax.plot(column, row, "o", color=COLOUR["measured"], fillstyle="none", ms=6)
    ax.set(xlim=(-0.6, len(checks) - 0.4), ylim=(len(found) - 0.4, -0.6))
    ax.set_xticks(range(len(checks)), checks, rotation=55, ha="left", fontsize=9)
    ax.set_yticks(range(len(found)), found, fontsize=9)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    return figure


def parting(gap: Sequence[float], tolerance: float, chunks: Sequence[int], title: str) -> Figure:
    """The figure of how far logits are from right at each position, against the tolerance.

    `gap` (T,) is the largest logit difference at each position of a run cut into `chunks`, whose
    borders are drawn. Positions beyond the tolerance have the colour of what is wrong.
    """
    figure, ax = plt.subplots(figsize=(7, 3.4))
    floor = tolerance / 1e4
    heights = np.clip(np.nan_to_num(np.asarray(gap, dtype=float), nan=1e3), floor, 1e3)
    wrong = heights > tolerance
    colours = [COLOUR["recomputed"] if beyond else COLOUR["cached"] for beyond in wrong]
    ax.vlines(range(len(heights)), floor, heights, colors=colours, linewidth=3)
    ax.axhline(tolerance, color=COLOUR["predicted"], linewidth=1.2)
    for border in np.cumsum([0, *chunks]):
        ax.axvline(border - 0.5, color="#d5d9de", linewidth=0.8, zorder=0)
    ax.set(yscale="log", ylim=(floor, 1e2), xlim=(-1, len(heights) + 0.5), title=title)
    ax.set(xlabel="position in the text (lines between chunks)", ylabel="logit difference")
    direct_label(ax, len(heights) + 0.5, tolerance, "tolerance", COLOUR["predicted"])
    return figure
