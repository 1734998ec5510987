"""Pictures of memory: an allocator's segments, and the bill of a model against its context."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .parts import direct_label
from .style import COLOUR


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
            ax.text(middle, row, block.name, ha="center", va="center", color="white", fontsize=11)
    ax.set(xlim=(0, scale_bytes / mib), xlabel="MiB", title=title)
    ax.set(yticks=range(len(segments)), ylim=(4.5, -0.5), ylabel="segment")
    return figure


def memory_bill(tokens: Sequence[int], weights: float, totals: Sequence[float], devices: dict):
    """The figure of weights and cache against the context, beside what devices hold, in GB.

    `totals` is weights and cache at each of `tokens`; `devices` maps a name to its GB.
    """
    figure, ax = plt.subplots(figsize=(7, 3.9))
    ax.axhline(weights, color=COLOUR["predicted"], linewidth=1.2)
    ax.plot(tokens, totals, color=COLOUR["cached"], linewidth=3)
    for name, end, colour, below in (
        ("weights", weights, COLOUR["predicted"], True),
        ("weights + cache", totals[-1], COLOUR["cached"], False),
    ):
        ax.annotate(
            name,
            (tokens[-1], end),
            (-4, -6 if below else 8),
            textcoords="offset points",
            color=colour,
            ha="right",
            va="top" if below else "bottom",
            bbox=dict(boxstyle="square,pad=0.05", color="white"),
        )
    for name, size in devices.items():
        ax.axhline(size, color=COLOUR["measured"], linewidth=0.8, linestyle=":")
        direct_label(ax, tokens[-1], size, name, COLOUR["measured"]).set_fontsize(10)
    ax.set(xscale="log", yscale="log", xlim=(tokens[0], tokens[-1]), ylim=(1, 30_000))
    ax.set(xlabel="context, tokens a sequence", ylabel="GB")
    return figure
