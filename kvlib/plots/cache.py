"""Pictures of the cache: what a step computes and reads, whom a mask lets read, what it saves."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from .parts import direct_label, heat
from .style import COLOUR

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
