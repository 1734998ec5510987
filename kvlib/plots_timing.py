"""Pictures of latency: one token, one batch, one prediction beside what was measured."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .plots import COLOUR, direct_label
from .samples import Trace

LINES = {  # a cached step has the cached colour; a copy made at every step is dashed
    "none": dict(color=COLOUR["recomputed"], linestyle="-"),
    "growing": dict(color=COLOUR["cached"], linestyle="--"),
    "static": dict(color=COLOUR["cached"], linestyle="-"),
}
CALLED = {"none": "no cache", "growing": "growing cache", "static": "static cache"}


def line_of(name: str) -> dict:
    """How the line of the cache `name` is drawn; any other decoder's is dotted."""
    return LINES.get(name, dict(color=COLOUR["measured"], linestyle=":"))


def per_token(traces: Mapping[str, Trace]) -> Figure:
    """The figure of milliseconds for each token of a generation: median, and quartiles as a band.

    The first token, which carries the prefill, is drawn as a dot.
    """
    figure, ax = plt.subplots(figsize=(7.6, 4.2))
    for name, trace in traces.items():
        style, number = line_of(name), np.arange(1, trace.new_tokens + 1)
        low, middle, high = 1e3 * np.quantile(trace.runs_s, (0.25, 0.5, 0.75), axis=0)
        ax.plot(number[1:], middle[1:], **style)
        ax.fill_between(number[1:], low[1:], high[1:], color=style["color"], alpha=0.2, linewidth=0)
        ax.plot(number[:1], middle[:1], "o", color=style["color"])
        direct_label(ax, number[-1], middle[-1], CALLED.get(name, name), style["color"])
    ax.set(xlabel="token of the generation", ylabel="ms for this token", ylim=(0, None))
    ax.set_xlim(0, ax.dataLim.x1 * 1.25)
    return figure


def by_batch(traces: Mapping[tuple[int, str], Trace]) -> Figure:
    """The figure of TTFT, TPOT, throughput and cache bytes against batch: (batch, cache) -> Trace.

    Both axes are logarithmic, so that a straight line at 45 degrees is proportional growth.
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
    axes[0, 0].legend(frameon=False)
    return figure


def logarithmic(ax: Axes, ticks: Sequence[int]) -> None:
    """Logarithmic axes, with the x axis marked at `ticks`."""
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()


def against_context(
    predicted_s: Mapping[str, Sequence[float]],
    contexts: Sequence[int],
    measured_s: Mapping[str, Mapping[int, float]],
) -> Figure:
    """The figure of ms per step against context, by cache: line predicted, dots measured."""
    figure, ax = plt.subplots(figsize=(7.6, 4.4))
    for name, line in predicted_s.items():
        style = line_of(name)
        ax.plot(contexts, [1e3 * value for value in line], color=style["color"], alpha=0.6)
        dots = measured_s.get(name, {})
        ax.plot(list(dots), [1e3 * value for value in dots.values()], "o", color=style["color"])
        direct_label(ax, contexts[-1], 1e3 * line[-1], CALLED.get(name, name), style["color"])
    ax.set(yscale="log", xlabel="context, tokens", ylabel="ms per step")
    ax.set_xlim(0, max(contexts) * 1.25)
    return figure


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
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.9))
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
    left.set(title=f"TPOT, ms, batch {batch}", xlabel="context, tokens", yscale="log")
    left.set_ylim(1e3 * low, 1e3 * high)
    right.set(
        title=f"tokens/s, context {context}",
        xlabel="batch",
        ylim=(0.9 / high, 1.1 * batches[-1] / low),
    )
    logarithmic(right, batches)
    right.text(0.03, 0.93, "line: predicted", transform=right.transAxes, color=COLOUR["predicted"])
    right.text(0.03, 0.86, "dots: measured", transform=right.transAxes)
    figure.suptitle(title)
    return figure
