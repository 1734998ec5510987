"""Pictures of attention without a cache: one query by hand, and the rows made again."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .parts import bars, direct_label
from .style import COLOUR

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
        x, y = (float(part) for part in tip)
        vector(match, tip, COLOUR["k"], name, (20, 9) if x > y else (0, 15))
    vector(match, query, COLOUR["q"], "q", beside_query(float(query[1])))
    match.set(title="1  query q and keys", xlim=(-1.7, 2.9), ylim=(-1.7, 2.8), aspect="equal")
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


def beside_query(y: float) -> tuple[float, float]:
    """Where the query's letter stands beside its point at height `y`, in points: clear of the keys'
    names, which stand above and right of points from 0 to 1.
    """
    if y > 1:
        return 0, 13
    return (12, 0) if y > 0 else (0, -14)


def vector(ax: Axes, tip, colour: str, name: str, away: tuple[float, float]) -> None:
    """Draw a line from the origin to `tip` in `ax`, with its name `away` points from the tip."""
    x, y = (float(part) for part in tip)
    ax.plot([0, x], [0, y], color=colour, marker="o", markevery=[1])
    ax.annotate(
        name,
        (x, y),
        away,
        textcoords="offset points",
        color=colour,
        ha="center",
        va="center",
    )


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
