"""The picture of the whole: one decode step through one block, and where each chapter looks.

Draws figures/overview.svg. Only chapters that exist are marked.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from kvlib import plots

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 660, 640
INK, QUIET, PALE = "#22262b", "#5b6470", "#f1f4f7"
COLOUR = plots.COLOUR
TOKENS = ["the", "cat", "sat", "on"]  # the last one is new
# Chapter -> where its mark stands.
MARKS = {
    "01": (300, 268),
    "02": (106, 122),
    "03": (604, 345),
    "04": (317, 98),
    "05": (634, 230),
    "06": (604, 420),
    "07": (634, 150),
    "10": (604, 382),
}


def box(ax: Axes, x, y, width, height, text="", *, fill=PALE, edge="none", colour=INK, size=12):
    """A rounded box with its lower left corner at (x, y), and centred text."""
    shape = "round,pad=0,rounding_size=7"
    ax.add_patch(FancyBboxPatch((x, y), width, height, shape, fc=fill, ec=edge, lw=1.2))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=colour, size=size)


def arrow(ax: Axes, start, end, *, colour=QUIET, bend=0.0):
    """An arrow from `start` to `end`, curved by `bend`."""
    style = f"arc3,rad={bend}"
    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=13, lw=1.5, color=colour,
            connectionstyle=style, shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip


def path(ax: Axes, points, *, colour=QUIET):
    """A line through `points`, with square corners and an arrow head at its end."""
    ax.plot(*zip(*points, strict=True), color=colour, lw=1.5, solid_joinstyle="round")
    arrow(ax, points[-2], points[-1], colour=colour)


def rows(ax: Axes, x, y, name, colour):
    """One layer's stored rows of K or V, oldest on top; the last row is being written."""
    for i in range(len(TOKENS)):
        new = i == len(TOKENS) - 1
        fill = colour if new else COLOUR["cached"]
        for j in range(4):
            cell = (x + 19 * j, y - 25 * i)
            ax.add_patch(Rectangle(cell, 17, 21, fc=fill, alpha=1 if new else 0.55))
    ax.text(x + 37, y + 33, name, ha="center", va="center", color=colour, size=14, weight="bold")


def draw_token_row(ax: Axes):
    """Tokens on top: all but the last were read before."""
    for i, token in enumerate(TOKENS):
        new = i == len(TOKENS) - 1
        fill, colour = (INK, "white") if new else (PALE, QUIET)
        box(ax, 40 + 92 * i, 588, 80, 34, token, fill=fill, colour=colour)
    box(ax, 408, 588, 80, 34, "?", fill="white", edge="#c9d0d8", colour=QUIET)
    ax.text(370, 576, "only the newest enters", va="center", color=QUIET, size=11)
    arrow(ax, (356, 588), (356, 562))
    box(ax, 150, 522, 412, 36, "token embedding + position embedding")
    arrow(ax, (356, 522), (356, 498))


def draw_block(ax: Axes):
    """One block: q, k, v of the new token, the rows kept, the weighted sum, the MLP."""
    box(ax, 20, 150, 584, 346, fill="white", edge="#c9d0d8")
    ax.text(590, 166, "one block of many", ha="right", va="center", color=QUIET, size=11)
    for i, name in enumerate("qkv"):
        box(ax, 56, 410 - 52 * i, 118, 34, name, fill=COLOUR[name], colour="white", size=14)
    path(ax, [(356, 496), (356, 478), (36, 478), (36, 323), (54, 323)])
    arrow(ax, (36, 427), (54, 427))
    arrow(ax, (36, 375), (54, 375))
    ax.text(56, 272, "three projections\nof the new token", va="center", color=QUIET, size=11)
    rows(ax, 406, 410, "K", COLOUR["k"])
    rows(ax, 500, 410, "V", COLOUR["v"])
    ax.text(490, 462, "the cache", ha="center", color=INK, size=12)
    arrow(ax, (174, 375), (402, 348), colour=COLOUR["k"], bend=0.1)
    arrow(ax, (174, 323), (497, 335), colour=COLOUR["v"], bend=0.16)
    ax.text(406, 302, "rows kept, and\none new row", va="top", color=QUIET, size=11)


def draw_attention(ax: Axes):
    """The weights of the new token over all keys, and the sum of values they make."""
    for i, weight in enumerate((0.5, 0.2, 0.7, 0.35)):
        ax.add_patch(Rectangle((262 + 24 * i, 400), 19, 50 * weight, fc=COLOUR["attention"]))
    arrow(ax, (174, 427), (254, 420), colour=COLOUR["q"])
    arrow(ax, (402, 420), (364, 420), colour=COLOUR["k"])
    ax.text(308, 460, "attention weights", ha="center", color=COLOUR["attention"], size=11)
    box(ax, 216, 176, 168, 40, "weighted sum of V")
    arrow(ax, (300, 398), (300, 220), colour=COLOUR["attention"])
    path(ax, [(537, 330), (537, 196), (390, 196)], colour=COLOUR["v"])
    box(ax, 56, 176, 100, 40, "MLP")
    arrow(ax, (216, 196), (158, 196))


def draw_end(ax: Axes):
    """Logits, the next token, and back to the top."""
    arrow(ax, (106, 176), (106, 92), bend=0.0)
    box(ax, 40, 54, 250, 36, "logits: one score per word")
    arrow(ax, (290, 72), (342, 72))
    box(ax, 344, 54, 110, 36, "the", fill=INK, colour="white")
    ax.text(399, 36, "next token", ha="center", color=QUIET, size=11)
    path(ax, [(458, 72), (634, 72), (634, 605), (494, 605)])


def mark(ax: Axes, chapter: str):
    """The number of a chapter, where it looks."""
    x, y = MARKS[chapter]
    ax.add_patch(Circle((x, y), 15, fc="white", ec=COLOUR["recomputed"], lw=1.6, zorder=5))
    ax.text(x, y - 1, chapter, ha="center", va="center", size=11, zorder=6,
            color=COLOUR["recomputed"], weight="bold")  # fmt: skip


def main():
    plots.use_style()
    figure, ax = plt.subplots(figsize=(WIDTH / 100, HEIGHT / 100))
    ax.set(xlim=(0, WIDTH), ylim=(20, HEIGHT), aspect="equal")
    ax.axis("off")
    for part in (draw_token_row, draw_block, draw_attention, draw_end):
        part(ax)
    there = {path.name[:2] for path in (FOLDER.parent / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    for chapter in sorted(there & set(MARKS)):
        mark(ax, chapter)
    figure.savefig(FOLDER / "overview.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
