"""Pictures of what a cache holds, and of what attention reads of it."""

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from ..look import Run
from .cache import FIRST, READ
from .parts import heat
from .style import COLOUR, DIVERGING

INK, QUIET, NEW = "#22262b", "#5b6470", COLOUR["recomputed"]
MASKED, EMPTY = "#c9d0d8", "#f1f3f5"
DWARFED = 4  # a first token with more than so many times any other's weight dwarfs them
LONGEST = 12  # letters of a label

# Inches. The pictures of a run are compared, so nothing may move with the length of a label.
WIDTH, HEAD, FOOT = 8.4, 1.72, 0.78
KEYS, BARS, VALUES, WIDE = 1.42, 3.86, 5.92, 2.3
INSET = 1.02  # from the left end of the bars


@cache
def drawable(word: str) -> str:
    """`word` as a label: cut to 12 letters, those without a glyph in the font as code points."""
    font = get_font(findfont(FontProperties()))
    text = "".join(c if font.get_char_index(ord(c)) else f"U+{ord(c):04X}" for c in word)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def number_scale(run: Run, layer: int, head: int) -> float:
    """End of the colour scale of one head's q, k and v: 99 in 100 of their magnitudes are within.

    The few beyond, which single dimensions of large models have, are drawn in the end's colour.
    """
    parts = [part[layer, head].float().abs().flatten() for part in (run.q, run.k, run.v)]
    return float(np.quantile(np.concatenate(parts), 0.99)) or 1.0


def dwarfed(weights: np.ndarray) -> bool:
    """Whether the first of at least three tokens has more than 4 times any other's weight."""
    return len(weights) > 2 and bool(weights[0] > DWARFED * weights[1:].max())


def inset_scale(run: Run, layer: int, head: int) -> float | None:
    """Largest weight on a later token among the steps where the first dwarfs it; None if none."""
    rows = [run.weights[layer, head, i, : i + 1].float().numpy() for i in range(len(run.words))]
    return max((float(row[1:].max()) for row in rows if dwarfed(row)), default=None)


def cache_step(run: Run, step: int, layer: int, head: int, title: str = "") -> Figure:
    """The figure of one token's query, the rows there are, its weights, and what it takes away.

    Queries, keys, values and output share one diverging scale, weights the scale 0 to 1, both the
    same at every step of `run`. In prefill one pass writes the rows of the whole prompt, and the
    later ones are masked; in decode the rows to come are empty. Where the first token dwarfs the
    others an inset shows the others alone, on their own scale.
    """
    limit, zoom = number_scale(run, layer, head), inset_scale(run, layer, head)
    N, written = len(run.words), max(run.prompt, step + 1)
    row = 0.185 if N <= 32 else 0.15
    figure = plt.figure(figsize=(WIDTH, HEAD + N * row + FOOT), layout="none")
    k, v, q = (part[layer, head].float().numpy() for part in (run.k, run.v, run.q))
    weights = run.weights[layer, head, step].float().numpy()
    for left, cached, single in ((KEYS, k, q[step]), (VALUES, v, weights @ v)):
        draw_numbers(place(figure, left, WIDE, 1.06, row), single[None], limit)
        ax = place(figure, left, WIDE, HEAD, N * row)
        draw_numbers(ax, cached[:written], limit)
        ax.set(ylim=(N - 0.5, -0.5), facecolor=EMPTY)
        mark_rows(ax, run.prompt, step, written)
    bars = place(figure, BARS, 0.8 if zoom else 1.72, HEAD, N * row)
    draw_weights(bars, weights, step, written, 1.0)
    if zoom is not None and dwarfed(weights[: step + 1]):
        inset = place(figure, BARS + INSET, 0.7, HEAD, N * row)
        draw_weights(inset, np.where(np.arange(N) > 0, weights, 0.0), step, written, zoom)
        write(figure, BARS + INSET, HEAD - 0.1, "rest, enlarged", COLOUR["attention"], size=9)
    write_words(figure, run, step, written, row)
    write_heading(figure, run, step, title)
    write_names(figure, run.words[step])
    write_legend(figure, limit)
    return figure


def place(figure: Figure, left: float, width: float, top: float, tall: float) -> Axes:
    """New axes of `figure`, in inches from its upper left corner."""
    height = figure.get_figheight()
    return figure.add_axes((left / WIDTH, 1 - (top + tall) / height, width / WIDTH, tall / height))


def write(figure: Figure, left: float, top: float, text: str, colour: str = INK, **style) -> None:
    """Write `text` as it is, its baseline `top` inches from the upper edge."""
    x, y = left / WIDTH, 1 - top / figure.get_figheight()
    figure.text(x, y, text, color=colour, parse_math=False, **{"size": 10, **style})


def draw_numbers(ax: Axes, numbers, limit: float) -> None:
    """A heat map of signed `numbers` without ticks."""
    heat(ax, numbers, signed=True, limit=limit)
    ax.set(xticks=[], yticks=[])


def mark_rows(ax: Axes, prompt: int, step: int, written: int) -> None:
    """Beside each cached row a W where this pass wrote it or an R where it was read; frame new."""
    first_new = 0 if step < prompt else step
    left, right = ax.get_xlim()
    wide = 0.048 * (right - left)
    for row in range(written):
        letter, colour, ink = ("W", FIRST, "white") if row >= first_new else ("R", READ, INK)
        mark = Rectangle((left - 1.25 * wide, row - 0.42), wide, 0.84, color=colour, clip_on=False)
        ax.add_patch(mark)
        x = left - 0.75 * wide
        ax.text(x, row, letter, color=ink, size=7.5, ha="center", va="center_baseline")
    frame = (left, first_new - 0.5), right - left, written - first_new
    ax.add_patch(Rectangle(*frame, fill=False, edgecolor=NEW, lw=1.8, clip_on=False, zorder=4))


def draw_weights(ax: Axes, weights, step: int, written: int, limit: float) -> None:
    """A bar from 0 to `limit` for each row that may be read; masked and empty rows are shaded."""
    ax.set(xlim=(0, limit), ylim=(len(weights) - 0.5, -0.5), yticks=[])
    ax.barh(range(step + 1), weights[: step + 1], height=0.74, color=COLOUR["attention"])
    rest = (step + 1, written, "masked", MASKED), (written, len(weights), "not there yet", EMPTY)
    for first, end, why, colour in rest:
        ax.axhspan(first - 0.5, end - 0.5, color=colour, lw=0)
        if end - first > 1 and ax.get_position().width * WIDTH > 1:
            middle = limit / 2, (first + end - 1) / 2
            ax.text(*middle, why, color=QUIET, size=9.5, ha="center", va="center_baseline")
    top = int(weights.argmax())
    inside = weights[top] > 0.75 * limit
    ax.annotate(
        f"{weights[top]:.2f}" if limit == 1 else f"{weights[top]:.1g}",
        (weights[top], top),
        (-4 if inside else 4, 0),
        textcoords="offset points",
        color="white" if inside else COLOUR["attention"],
        size=9,
        ha="right" if inside else "left",
        va="center_baseline",
    )
    ax.spines["bottom"].set_visible(False)
    ax.set_xticks([0, limit], ["0", f"{limit:.2g}"], fontsize=9)
    ax.tick_params(axis="x", length=0, pad=2)


def write_words(figure: Figure, run: Run, step: int, written: int, row: float) -> None:
    """The tokens beside the rows of the keys, the one that reads in bold."""
    for i, word in enumerate(run.words[:written]):
        colour = NEW if i == step else INK if i < step else QUIET
        weight = "bold" if i == step else "normal"
        top = HEAD + (i + 0.5) * row
        style = dict(ha="right", va="center_baseline", size=9.5, weight=weight)
        write(figure, KEYS - 0.2, top, drawable(word), colour, **style)


def write_heading(figure: Figure, run: Run, step: int, title: str) -> None:
    """Which pass this is, how many rows it reads and writes, and which word it finds likeliest."""
    prefill = step < run.prompt
    phase = "PREFILL" if prefill else "DECODE"
    chip = dict(boxstyle="round,pad=0.35", facecolor=FIRST if prefill else READ, edgecolor="none")
    ink = "white" if prefill else INK
    write(figure, 0.2, 0.36, phase, ink, weight="bold", size=11, bbox=chip)
    doing = (
        f"token {step + 1} of the {run.prompt} that one pass reads and writes"
        if prefill
        else f"token {step + 1} alone: reads {step} cached rows, writes 1"
    )
    write(figure, 1.42, 0.36, doing, size=11.5)
    word, probability = run.chosen[step]
    told = f"likeliest next: {drawable(word)}  {probability:.0%}"
    write(figure, VALUES + WIDE, 0.36, told, size=11.5, ha="right")
    write(figure, VALUES + WIDE, 0.68, title, QUIET, size=10, ha="right")


def write_names(figure: Figure, word: str) -> None:
    """What each panel is, above it."""
    write(figure, KEYS, 0.98, f"query of {drawable(word)}", INK)
    write(figure, VALUES, 0.98, "output: values, weighted", INK)
    for left, name in ((KEYS, "key cache"), (VALUES, "value cache")):
        colour = COLOUR["k"] if left == KEYS else COLOUR["v"]
        write(figure, left, HEAD - 0.1, name, colour, weight="bold")
    write(figure, BARS, HEAD - 0.1, "attention", COLOUR["attention"], weight="bold")


def write_legend(figure: Figure, limit: float) -> None:
    """The scale of the numbers, and what the marks mean, below the rows."""
    height = figure.get_figheight()
    ax = place(figure, KEYS, WIDE - 0.25, height - 0.45, 0.1)
    heat(ax, np.linspace(-limit, limit, 255)[None], signed=True)
    ax.set_yticks([])
    ax.set_xticks([0, 127, 254], [f"≤ −{limit:.1f}", "0", f"≥ {limit:.1f}"], fontsize=9)
    ax.tick_params(axis="x", pad=2)
    marks = (
        (BARS, FIRST, "W  written by this pass"),
        (BARS, READ, "R  read from the cache"),
        (VALUES + 0.35, None, "frame: rows of this pass"),
        (VALUES + 0.35, None, "␣ space   ↵ line end"),
    )
    for i, (left, colour, text) in enumerate(marks):
        top = height - (0.4 if i % 2 == 0 else 0.17)
        if colour:
            write(figure, left, top, "■", colour, size=11)
        write(figure, left + (0.17 if colour else 0), top, text, QUIET, size=9.5)


def palette() -> list[tuple[int, int, int]]:
    """At most 256 colours, as red, green and blue from 0 to 255, that show `cache_step` well.

    They are the diverging scale, and each other colour on its way to white, as the edges of letters
    have it. Chosen, not counted, so that rare colours are as true as common ones.
    """
    white, ink = np.ones(3), np.array(to_rgb(INK))
    scale = plt.get_cmap(DIVERGING)(np.linspace(0, 1, 129))[:, :3]
    steps = np.linspace(0, 1, 10)[:, None]
    names = [INK, QUIET, NEW, FIRST, READ, *(COLOUR[x] for x in ("q", "k", "v", "attention"))]
    fades = [steps * np.array(to_rgb(name)) + (1 - steps) * white for name in names]
    chip = steps * ink + (1 - steps) * np.array(to_rgb(READ))
    flat = np.array([to_rgb(name) for name in (MASKED, EMPTY)])
    colours = np.round(255 * np.concatenate([scale, *fades, chip, flat])).astype(int)
    return list(dict.fromkeys(tuple(colour) for colour in colours.tolist()))
