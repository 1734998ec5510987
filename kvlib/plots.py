"""Pictures from numbers: every plotting function of the course, in one style.

A function here draws one matplotlib figure from the numbers it is given and returns it. It computes
nothing that a reader would want to check. `heat`, `bars` and `direct_label` draw into given axes.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from matplotlib_inline.backend_inline import set_matplotlib_formats

HERE = Path(__file__).resolve().parent
INSTALLED, CHECKOUT = HERE / "data" / "kv.mplstyle", HERE.parent / "figures" / "kv.mplstyle"
STYLE = str(INSTALLED if INSTALLED.exists() else CHECKOUT)

# One colour per idea (Okabe and Ito's palette, told apart by readers of every colour vision).
COLOUR = {
    "q": "#cc79a7",
    "k": "#0072b2",
    "v": "#009e73",
    "attention": "#7a5195",
    "recomputed": "#d55e00",
    "cached": "#56b4e9",
    "predicted": "#8b929b",
    "measured": "#22262b",
}
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"


def use_style() -> None:
    """Give every later figure of this session the course's look, at double pixels in a notebook."""
    plt.style.use(STYLE)
    if get_ipython() is not None:
        set_matplotlib_formats("retina", bbox_inches=None)


def heat(
    ax: Axes,
    values,
    *,
    signed: bool = False,
    limit: float | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    digits: int | None = None,
) -> AxesImage:
    """The image drawn into `ax` for `values` (rows, columns), row 0 on top; NaN is left grey.

    Magnitudes get a sequential map from 0 to `limit`, `signed` values a diverging one from -limit
    to limit, so zero is always the map's middle. `limit` defaults to the largest magnitude: pass
    one number for all frames of an explorer. `digits` writes each value in its cell.
    """
    array = np.ma.masked_invalid(np.asarray(values, dtype=float))
    if limit is None:
        limit = float(abs(array).max()) if array.count() else 1.0
    limit = limit or 1.0  # all zeros still need a scale
    image = ax.imshow(
        array,
        cmap=plt.get_cmap(DIVERGING if signed else SEQUENTIAL).with_extremes(bad="#e4e7eb"),
        vmin=-limit if signed else 0.0,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
    )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    for axis, labels in ((ax.xaxis, columns), (ax.yaxis, rows)):
        if labels is not None:
            axis.set_ticks(range(len(labels)), labels)
        else:
            axis.set_major_locator(MaxNLocator(integer=True))
    if digits is not None:
        write_cells(ax, array, image, digits)
    return image


def write_cells(ax: Axes, array, image: AxesImage, digits: int) -> None:
    """Write each number of `array` into its cell of `image`, dark on light and light on dark."""
    for (row, column), value in np.ma.ndenumerate(array):  # leaves out what is masked
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
        colour = "white" if dark else "#22262b"
        ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=colour)


def bars(
    ax: Axes,
    names: Sequence[str],
    values: Sequence[float],
    *,
    colour: str | Sequence[str] = COLOUR["measured"],
    unit: str = "",
    form: str = "{:,.3g}",
) -> BarContainer:
    """Horizontal bars, the first on top, each labelled at its end with its value and `unit`."""
    container = ax.barh(range(len(names)), values, color=colour, height=0.62)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    labels = [f"{form.format(value)} {unit}".strip() for value in values]
    ax.bar_label(container, labels, padding=5, color="#3a3f47", fontsize=11)
    ax.margins(x=0.2)
    ax.spines[["bottom", "left"]].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xticks([])
    return container


def direct_label(ax: Axes, x: float, y: float, text: str, colour: str, *, side: str = "right"):
    """The name of a line written beside its point (x, y), instead of a legend; left or right."""
    offset, align = ((7, 0), "left") if side == "right" else ((-7, 0), "right")
    return ax.annotate(
        text, (x, y), offset, textcoords="offset points", color=colour, ha=align, va="center"
    )


FIRST, READ, AGAIN = "#5b6470", COLOUR["cached"], COLOUR["recomputed"]


def decode_step(words: Sequence[str], prompt: int, step: int):
    """The figure of one step without and with a cache: which rows are computed, and which read.

    `words` (N,) are the tokens; step 0 reads the first `prompt` of them at once (prefill), each
    later step one more (decode). A row is a token, with its query, key and value and the scores of
    its query with the keys up to its own.
    """
    count, old = prompt + step, prompt + step - 1 if step else 0
    so_far = [sum(range(prompt, count + 1)), count]
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 4.1), sharey=True)
    for ax, cached, total in zip(axes, (False, True), so_far, strict=True):
        for row in range(len(words)):
            for column in range(3 + len(words)):
                draw_cell(ax, row, column, count, old, cached)
        ax.set(xlim=(-0.6, 3.6 + len(words)), ylim=(len(words) - 0.4, -0.6), aspect="equal")
        ax.set_xticks([0, 1, 2, 3 + len(words) / 2], ["Q", "K", "V", "scores with each key"])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        now = count - old if cached else count
        ax.set_title("With a cache" if cached else "Without a cache")
        ax.set_xlabel(f"keys computed: {now} now, {total} so far")
    axes[0].set_yticks(range(len(words)), words)
    fig.set_layout_engine("constrained", rect=(0, 0.08, 1, 0.92))
    legend = [("computed", FIRST), ("computed again", AGAIN), ("R read from the cache", READ)]
    for x, (name, colour) in zip((0.02, 0.2, 0.46), legend, strict=True):
        fig.text(x, 0.02, "■", color=colour)
        fig.text(x + 0.025, 0.02, name)
    fig.text(0.79, 0.02, "W written to it")
    return fig


def draw_cell(ax: Axes, row: int, column: int, count: int, old: int, cached: bool) -> None:
    """One square of `decode_step`: Q, K, V in columns 0 to 2, the score with key j in 3 + j."""
    kept = cached and column in (1, 2)
    colour, letter = "#f1f3f5", ""  # not there yet, masked, or not asked for again
    if old <= row < count and column - 3 <= row:
        colour, letter = FIRST, "W" if kept else ""
    elif row < old and kept:
        colour, letter = READ, "R"
    elif row < old and not cached and column - 3 <= row:
        colour = AGAIN
    x = column + (0.6 if column > 2 else 0.0)
    ax.add_patch(plt.Rectangle((x - 0.46, row - 0.46), 0.92, 0.92, facecolor=colour))
    ink = "white" if letter == "W" else "#22262b"
    ax.text(x, row, letter, ha="center", va="center_baseline", fontsize=9, color=ink)


def mask_alignments(masks: dict, diffs: dict):
    """The figure of several masks (new, stored), True for readable, and what each does to logits.

    `diffs` gives, for each mask's name, the largest logit difference of each new row.
    """
    fig, axes = plt.subplots(len(masks), 1, figsize=(7, 1.35 * len(masks) + 0.4), sharex=True)
    for ax, (name, mask) in zip(axes, masks.items(), strict=True):
        new, stored = mask.shape
        colours = ListedColormap(["#e4e7eb", COLOUR["attention"]])
        ax.pcolormesh(
            np.flipud(mask), cmap=colours, vmin=0, vmax=1, edgecolor="white", linewidth=1.5
        )
        ax.set_yticks([i + 0.5 for i in range(new)], range(stored - 1, stored - new - 1, -1))
        ax.set(title=name, aspect="equal")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        for row, diff in enumerate(diffs[name]):
            text = "right" if diff < 1e-6 else f"off by {diff:.2g}"
            ax.text(stored + 0.4, new - row - 0.5, text, va="center", fontsize=11)
    axes[1].set_ylabel("token that reads")
    axes[-1].set_xlabel("token that is read")
    axes[-1].set_xticks([i + 0.5 for i in range(stored)], range(stored))
    return fig


def cache_rows(keys, values, words: Sequence[str], title: str):
    """The figure of one head's cached `keys` and `values` (tokens, head dim), a row a token."""
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 0.2 * len(words) + 1.2), sharey=True)
    for ax, name, rows in zip(axes, ("keys", "values"), (keys, values), strict=True):
        image = heat(ax, rows, signed=True, rows=words)
        ax.set(title=f"{name}, {title}", xlabel="head dimension")
        fig.colorbar(image, ax=ax, shrink=0.9)
    return fig


def growth(tokens: Sequence[int], flops: dict):
    """The figure of total FLOPs against tokens generated, both logarithmic: one line a name.

    Names say "no cache" where there is none, and "attention" for the lines that are dashed.
    """
    fig, ax = plt.subplots(figsize=(7.6, 4.2))
    for name, totals in flops.items():
        colour = AGAIN if "no cache" in name else READ
        ax.loglog(tokens, totals, color=colour, linestyle="--" if "attention" in name else "-")
        direct_label(ax, tokens[-1], totals[-1], name, COLOUR["measured"])
    ax.set(xlabel="tokens generated, N", ylabel="FLOPs, all N together")
    ax.set_xlim(tokens[0], tokens[-1])
    return fig


def next_token_work(contexts: Sequence[int], everything, newest, model: str, mark: int):
    """The figure of GFLOP for one next token against context, by all rows and by the newest alone.

    Logarithmic axes, the same for every model; `mark` is the index of the context written out.
    """
    fig, ax = plt.subplots(figsize=(7, 4))
    ax.fill_between(contexts, newest, everything, color=COLOUR["recomputed"], alpha=0.15)
    ax.plot([contexts[mark]] * 2, [newest[mark], everything[mark]], ":", color=COLOUR["measured"])
    for name, gflop, idea in (
        ("all rows", everything, "recomputed"),
        ("newest row", newest, "cached"),
    ):
        ax.plot(contexts, gflop, "o-", color=COLOUR[idea], markevery=[mark])
        direct_label(ax, contexts[-1], gflop[-1], name, COLOUR[idea])
    ax.set(xscale="log", yscale="log", xlim=(contexts[0] / 1.3, contexts[-1] * 7), ylim=(0.1, 9999))
    ax.set_xticks(contexts, [str(context) for context in contexts])
    ax.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1000"])
    ax.minorticks_off()
    work, row = everything[mark], newest[mark]
    title = f"{model}, {contexts[mark]} tokens: {work:,.2f} and {row:,.2f} GFLOP"
    ax.set_title(f"{title}, ratio {work / row:,.0f}")
    ax.set(xlabel="tokens of context", ylabel="GFLOP for the next token")
    return fig


def repeated_rows(passes: int) -> Figure:
    """The figure of the rows that `passes` growing passes make, where nothing is kept between them.

    Pass n reads tokens 1 to n. The last row it makes is new, all others were made before.
    """
    figure, ax = plt.subplots(figsize=(6.6, 3.9))
    new, again = "#5b6470", COLOUR["recomputed"]
    for n in range(1, passes + 1):
        colours = [again] * (n - 1) + [new]
        ax.bar(range(1, n + 1), 0.86, 0.86, bottom=n - 0.43, color=colours)
    before = passes * (passes - 1) // 2
    labels = (0.88, f"{passes} new", new), (0.76, f"{before} made before", again)
    for height, text, colour in labels:
        ax.text(0.97, height, text, color=colour, ha="right", transform=ax.transAxes)
    ax.set(xlabel="token", ylabel="pass", ylim=(passes + 0.6, 0.4), xlim=(0.4, passes + 0.6))
    ax.set_xticks(range(1, passes + 1))
    ax.set_yticks(range(1, passes + 1))
    return figure


# Fixed, where the style's layout would follow the length of the labels from frame to frame.
EDGES = dict(left=0.08, right=0.98, bottom=0.07, top=0.92, wspace=0.24, hspace=0.4)


def one_query(query, keys, values, scores, weights, output, names: Sequence[str]) -> Figure:
    """The figure of one query over two-dimensional keys and values, in four steps.

    Query and keys as points, their scores and weights as bars, the output among the values. `keys`
    and `values` are (S, 2), `scores` and `weights` (S,), `names` the S tokens. The axes are the
    same for every query from -1 to 2, so that frames can be compared.
    """
    figure, ((match, score), (weight, mean)) = plt.subplots(
        2, 2, figsize=(6.6, 4.7), layout="none", gridspec_kw=EDGES
    )
    for tip, name in zip(keys, names, strict=True):
        vector(match, tip, COLOUR["k"], name)
    vector(match, query, COLOUR["q"], "query", below=True)
    match.set(title="1  query and keys", xlim=(-1.7, 2.9), ylim=(-1.9, 2.5), aspect="equal")
    match.set(xticks=range(-1, 3), yticks=range(-1, 3))
    bars(score, names, scores, colour=COLOUR["attention"], form="{:.2f}")
    score.set(title="2  scores, scaled", xlim=(-2.9, 4.2))
    score.axvline(0, color=COLOUR["predicted"], linewidth=0.8)
    bars(weight, names, weights, colour=COLOUR["attention"], form="{:.2f}")
    weight.set(title="3  weights", xlim=(0, 1.3))
    mean.fill(*zip(*values, strict=True), color=COLOUR["v"], alpha=0.12)
    for tip, size, name in zip(values, weights, names, strict=True):
        mean.scatter(*tip, s=20 + 300 * float(size), color=COLOUR["v"])
        mean.annotate(name, tip, (0, 14), textcoords="offset points", color=COLOUR["v"])
    mean.scatter(*output, marker="X", s=80, color=COLOUR["measured"], edgecolor="white", zorder=3)
    mean.set(title="4  values and output (cross)", xlim=(-0.6, 5.4), ylim=(-0.5, 3.2))
    return figure


def vector(ax: Axes, tip, colour: str, name: str, *, below: bool = False) -> None:
    """Draw a line from the origin to `tip` in `ax`, with its name beyond the tip or `below` it."""
    x, y = (float(part) for part in tip)
    away = (0, -16) if below else (20 * (x > y), 15 * (y >= x))
    ax.plot([0, x], [0, y], color=colour, marker="o", markevery=[1])
    ax.annotate(
        name,
        (x, y),
        away,
        textcoords="offset points",
        color=colour,
        ha="center",
        va="center",
        bbox=dict(boxstyle="round,pad=0.1", color="white", alpha=0.7) if below else None,
    )


def allocator_segments(segments: Sequence, scale_bytes: int, title: str) -> Figure:
    """The figure of an allocator's segments as bars of blocks, the axis `scale_bytes` long.

    `segments` are those of `allocator.CachingAllocator`: a bar is reserved, the coloured blocks in
    it are in use. A block whose name speaks of values takes their colour, any other that of keys.
    """
    figure, ax = plt.subplots(figsize=(7, 2.8))
    mib = 1 << 20
    for row, segment in enumerate(segments):
        ax.barh(row, segment.size / mib, color="#e4e7eb", height=0.72)
        for block in segment.blocks:
            if block.requested is None:
                continue
            colour = COLOUR["v" if "v" in block.name else "k"]
            place = dict(left=block.offset / mib, color=colour, edgecolor="white", linewidth=0.8)
            ax.barh(row, block.size / mib, height=0.72, **place)
            middle = (block.offset + block.size / 2) / mib
            ax.text(middle, row, block.name, ha="center", va="center", color="white", fontsize=8)
    ax.set(xlim=(0, scale_bytes / mib), ylim=(4.5, -0.5), xlabel="MiB", title=title)
    ax.set(yticks=range(5), ylabel="segment")
    return figure


def memory_bill(tokens: Sequence[int], weights: float, totals: Sequence[float], devices: dict):
    """The figure of weights and cache against the context, beside what devices hold, in GB.

    `totals` is weights and cache at each of `tokens`; `devices` maps a name to its GB.
    """
    figure, ax = plt.subplots(figsize=(7, 3.9))
    ax.axhline(weights, color=COLOUR["predicted"], linewidth=1.2)
    ax.plot(tokens, totals, color=COLOUR["cached"], linewidth=3)
    for name, size in devices.items():
        ax.axhline(size, color=COLOUR["measured"], linewidth=0.8, linestyle=":")
        ax.text(tokens[0], size * 1.06, name, color=COLOUR["measured"], fontsize=10)
    ax.set(xscale="log", yscale="log", xlim=(tokens[0], tokens[-1]), ylim=(1, 30_000))
    ax.set(xlabel="context, tokens a sequence", ylabel="GB")
    ax.text(tokens[-1], weights / 1.12, "weights", color=COLOUR["predicted"], ha="right", va="top")
    direct_label(ax, tokens[-1], totals[-1], "weights\n+ cache", COLOUR["cached"])
    return figure


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
