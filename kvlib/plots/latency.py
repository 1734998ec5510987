"""Pictures of latency: one token, one batch, one prediction beside what was measured."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ..samples import Trace
from .style import COLOUR

LINES = {  # a cached step has the cached colour; a copy made at every step is dashed
    "none": dict(color=COLOUR["recomputed"], linestyle="-"),
    "growing": dict(color=COLOUR["cached"], linestyle="--"),
    "static": dict(color=COLOUR["cached"], linestyle="-"),
}
CALLED = {"none": "no cache", "growing": "growing cache", "static": "static cache"}


def line_of(name: str) -> dict:
    """How the line of the cache `name` is drawn; any other decoder's is dotted."""
    return LINES.get(name, dict(color=COLOUR["measured"], linestyle=":"))


def name_lines(ax: Axes, ends: Mapping[str, tuple[float, float]]) -> None:
    """Write each line's name beside its end (x, y), apart from one another where ends are close."""
    ax.figure.canvas.draw()  # the limits are final only now
    to_axes = (ax.transData + ax.transAxes.inverted()).transform
    last = -1.0
    for name, end in sorted(ends.items(), key=lambda item: item[1][1]):
        height = float(to_axes(end)[1])
        last = max(height, last + 0.07)
        ax.annotate(
            CALLED.get(name, name),
            end,
            (8, (last - height) * ax.bbox.height * 72 / ax.figure.dpi),
            textcoords="offset points",
            color=line_of(name)["color"],
            va="center",
        )


def per_token(traces: Mapping[str, Trace]) -> Figure:
    """The figure of milliseconds for each token of a generation: median, and quartiles as a band.

    The first token, which carries the prefill, is drawn as a dot.
    """
    figure, ax = plt.subplots(figsize=(7.6, 4.2))
    ends = {}
    for name, trace in traces.items():
        style, number = line_of(name), np.arange(1, trace.new_tokens + 1)
        low, middle, high = 1e3 * np.quantile(trace.runs_s, (0.25, 0.5, 0.75), axis=0)
        ax.plot(number[1:], middle[1:], **style)
        ax.fill_between(number[1:], low[1:], high[1:], color=style["color"], alpha=0.2, linewidth=0)
        ax.plot(number[:1], middle[:1], "o", color=style["color"])
        ends[name] = number[-1], middle[-1]
    ax.set(xlabel="token of the generation", ylabel="ms for this token", ylim=(0, None))
    last = max(number for number, _ in ends.values())
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlim(0, 1.3 * last)
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= last])
    name_lines(ax, ends)
    return figure


def by_batch(traces: Mapping[tuple[int, str], Trace]) -> Figure:
    """The figure of TTFT, TPOT, throughput and cache bytes against batch: (batch, cache) -> Trace.

    Both axes are logarithmic: what is proportional to the batch grows tenfold where it does.
    """
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 6.2), sharex=True)
    panels = {
        "TTFT, ms": lambda trace: 1e3 * trace.ttft_s,
        "TPOT, ms": lambda trace: 1e3 * trace.tpot_s,
        "tokens/s of the batch, prefill included": lambda trace: trace.tokens_per_s,
        "bytes kept between steps, MiB": lambda trace: trace.state_bytes / 2**20,
    }
    names = list(dict.fromkeys(name for _, name in traces))
    for ax, (title, value) in zip(axes.flat, panels.items(), strict=True):
        for name in names:
            if "bytes" in title and name == "none":
                continue  # it keeps token ids only
            found = {batch: value(row) for (batch, each), row in traces.items() if each == name}
            label = CALLED.get(name, name)
            ax.plot(list(found), list(found.values()), marker="o", label=label, **line_of(name))
        ax.set_title(title)
        logarithmic(ax, sorted({batch for batch, _ in traces}))
    for ax in axes[1]:
        ax.set_xlabel("batch")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    axes[1, 1].legend(handles, labels, frameon=False, loc="lower right")
    return figure


def logarithmic(ax: Axes, ticks: Sequence[int]) -> None:
    """Logarithmic axes with plain numbers, the x axis marked at `ticks`."""
    ax.set(xscale="log")
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    plain_log(ax)


def plain_log(ax: Axes) -> None:
    """A logarithmic y axis in plain numbers, marked at 1, 2 and 5 of each power of ten; at 1 alone
    where there are more than two powers.
    """
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def against_context(
    predicted_s: Mapping[str, Sequence[float]],
    contexts: Sequence[int],
    measured_s: Mapping[str, Mapping[int, float]],
) -> Figure:
    """The figure of ms per step against context, by cache: line predicted, dots measured."""
    figure, ax = plt.subplots(figsize=(7.6, 4.6))
    ends = {}
    for name in {**predicted_s, **measured_s}:
        style, dots = line_of(name), measured_s.get(name, {})
        points = {context: 1e3 * value for context, value in dots.items()}
        face = "white" if name == "growing" else style["color"]
        if name in predicted_s:
            line = [1e3 * value for value in predicted_s[name]]
            ax.plot(contexts, line, **style, alpha=0.7)
            points.setdefault(contexts[-1], line[-1])
        kept = {context: value for context, value in points.items() if context in dots}
        ax.plot(list(kept), list(kept.values()), "o", color=style["color"], markerfacecolor=face)
        if name in predicted_s:
            ends[name] = max(points), points[max(points)]
        else:
            name_dots(ax, name, points)
    plain_log(ax)
    ax.set(xlabel="context, tokens", ylabel="ms per step")
    ax.set_xlim(0, max(contexts) * 1.3)
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= max(contexts)])
    name_lines(ax, ends)
    return figure


def name_dots(ax: Axes, name: str, points: Mapping[int, float]) -> None:
    """Write the name of dots that no line joins above the last but one of `points`, x -> y."""
    x = sorted(points)[-2:][0]
    ax.annotate(
        CALLED.get(name, name),
        (x, points[x]),
        (0, 7),
        textcoords="offset points",
        color=line_of(name)["color"],
        ha="center",
        va="bottom",
    )


def cost_of_a_token(
    predicted_s: Mapping[tuple[int, int], float],
    measured_s: Mapping[tuple[int, int], float],
    batch: int,
    context: int,
    limits: tuple[float, float],
    title: str,
) -> Figure:
    """The figure of TPOT against context at one `batch`, and throughput against batch at one
    `context`: (batch, context) -> seconds per step, predicted as lines and measured as dots.

    The chosen pair is ringed. `limits` are the least and most seconds of any frame's axis.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4))
    batches, contexts = (sorted({key[i] for key in predicted_s}) for i in (0, 1))
    low, high = limits
    for values, colour, mark in (
        (predicted_s, COLOUR["predicted"], "-"),
        (measured_s, COLOUR["measured"], "o"),
    ):
        here = [c for c in contexts if (batch, c) in values]
        left.plot(here, [1e3 * values[batch, c] for c in here], mark, color=colour)
        here = [b for b in batches if (b, context) in values]
        right.plot(here, [b / values[b, context] for b in here], mark, color=colour)
    chosen = dict(s=160, facecolor="none", edgecolor=COLOUR["recomputed"], linewidth=1.6, zorder=3)
    now = predicted_s[batch, context]
    left.scatter(context, 1e3 * now, **chosen)
    right.scatter(batch, batch / now, **chosen)
    left.set(title=f"TPOT, ms, batch {batch}", xlabel="context, tokens")
    left.set_ylim(1e3 * low, 1e3 * high)
    plain_log(left)
    right.set(title=f"tokens/s, context {context}", xlabel="batch")
    right.set_ylim(0.9 / high, 1.1 * batches[-1] / low)
    logarithmic(right, batches)
    figure.suptitle(f"{title}; line: predicted, dots: measured")
    return figure
