"""The decode loop, step by step: the interactive figure of the book's first page.

Writes figures/decode_loop.html: the pictures, a slider over them, and a text for each, for
book/_static/explore.js. All numbers are nano's own.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kvlib import load, look, plots, tokenizer
from kvlib.explore import HINT, draw, page_html

PROMPT, NEW = "Good night, good", 2
LAYER, HEAD = 5, 5
NOW, INK, QUIET = plots.COLOUR["recomputed"], plots.COLOUR["measured"], "#5b6470"
PANELS = {  # left end and width
    "k": (0.13, 0.25),
    "v": (0.42, 0.25),
    "weights": (0.73, 0.25),
    "words": (0.81, 0.18),
}
BOTTOM, TALL = 0.24, 0.47


class Step(NamedTuple):
    """What happens in one picture: rows kept, how many of them new, words written, third panel."""

    name: str
    text: str
    rows: int
    new: int
    words: int
    shows: str = ""  # "weights" or "words", in the third panel


def steps(words: list[str], prompt: int) -> list[Step]:
    """Prompt in, prefill and next; then append, read and next for each new token but the last."""
    found = [
        Step("prompt in", f"The text is cut into {prompt} tokens. Nothing is kept.", 0, 0, prompt),
        Step(
            "prefill",
            f"One pass reads all {prompt} at once and keeps a key and\na value of each: "
            f"{prompt} new rows.",
            *(prompt, prompt, prompt, "weights"),
        ),
        Step(
            "next",
            f"The last token's output scores every word. The likeliest,\n{words[prompt]}, is "
            "written.",
            *(prompt, 0, prompt + 1, "words"),
        ),
    ]
    for rows in range(prompt + 1, len(words)):
        word, following = words[rows - 1], words[rows]
        found += [
            Step(
                "append",
                f"Only {word} enters the next pass. It adds one row;\nall rows above stay as they "
                "are.",
                *(rows, 1, rows),
            ),
            Step(
                "read",
                f"The query of {word} is compared with all {rows} keys.\n"
                "The weights say how much of each value it takes.",
                *(rows, 0, rows, "weights"),
            ),
            Step(
                "next",
                f"Its output scores every word. The likeliest, {following},\nis written, and "
                "the loop goes on.",
                *(rows, 0, rows + 1, "words"),
            ),
        ]
    return found


class Loop:
    """nano's run over the prompt, and the picture of each of its steps."""

    def __init__(self):
        model = load("nano")
        ids = torch.tensor([tokenizer().encode_ordinary(PROMPT)])
        self.run = look.run(model, ids, NEW)
        self.prompt = self.run.prompt
        self.words = [*self.run.words, self.run.chosen[-1][0]]
        self.steps = steps([f"“{word}”" for word in self.words], self.prompt)
        seen = ids[0].tolist()
        self.likely: dict[int, list[tuple[str, float]]] = {}  # rows kept -> words and chances
        for rows in range(self.prompt, self.prompt + NEW + 1):
            with torch.no_grad():
                top = model(torch.tensor([seen]), last_only=True)[0, -1].softmax(-1).topk(3)
            chances = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            self.likely[rows] = [(look.readable(token), chance) for token, chance in chances]
            seen.append(int(top.indices[0]))

    def plot(self, step: int) -> Figure:
        """The figure of step 1, 2, ...: the text so far, the rows kept, and what is done."""
        now = self.steps[step - 1]
        figure = plt.figure(figsize=(6.6, 4.9), layout="none")
        figure.text(0.02, 0.95, f"{step}  {now.name.capitalize()}", size=16, weight="bold")
        figure.text(0.02, 0.865, now.text, size=12.5, color=QUIET, va="center", linespacing=1.35)
        self.draw_text(figure, now)
        for name, rows in (("k", self.run.k), ("v", self.run.v)):
            self.draw_rows(figure, name, rows[LAYER, HEAD], now)
        if now.shows == "weights":
            self.draw_weights(figure, now)
        elif now.shows == "words":
            self.draw_words(figure, self.likely[now.rows])
        return figure

    def draw_text(self, figure: Figure, now: Step) -> None:
        """The tokens so far as boxes at the bottom; those that a pass reads now are dark."""
        figure.text(0.02, 0.135, "text so far", size=12, color=QUIET)
        x, entering = 0.02, range(now.rows - now.new, now.rows)
        for i, word in enumerate(self.words[: now.words]):
            dark, fresh = i in entering, now.shows == "words" and i == now.words - 1
            edge = NOW if fresh else INK if dark else "#c9d0d8"
            box = dict(boxstyle="round,pad=0.3", fc=INK if dark else "white", ec=edge, lw=1.5)
            style = dict(size=13, color="white" if dark else INK, bbox=box, va="center")
            shown = figure.text(x, 0.06, word, **style)
            x += shown.get_window_extent().width / figure.bbox.width + 0.04

    def draw_rows(self, figure: Figure, name: str, rows: torch.Tensor, now: Step) -> None:
        """The keys or values kept, a row a token; new rows are ringed, those to come are grey."""
        ax = panel(figure, name)
        shown = rows.clone()
        shown[now.rows :] = torch.nan
        both = torch.stack([self.run.k[LAYER, HEAD], self.run.v[LAYER, HEAD]])
        names = self.run.words if name == "k" else [""] * len(rows)
        plots.heat(ax, shown, signed=True, limit=float(both.abs().max()), rows=names)
        for label, row in zip(ax.get_yticklabels(), range(len(rows)), strict=True):
            label.set_color(INK if row < now.rows else "none")
        ax.set_xticks([])
        title = {"k": "keys kept", "v": "values kept"}[name]
        ax.set_title(title, color=plots.COLOUR[name], size=13)
        if now.new:
            corner, wide = (-0.5, now.rows - now.new - 0.5), rows.shape[1]
            ring = dict(fill=False, edgecolor=NOW, linewidth=3, clip_on=False)
            ax.add_patch(Rectangle(corner, wide, now.new, **ring))

    def draw_weights(self, figure: Figure, now: Step) -> None:
        """How much of each value the newest token takes."""
        ax = panel(figure, "weights")
        weights = self.run.weights[LAYER, HEAD, now.rows - 1, : now.rows].numpy()
        ax.barh(range(now.rows), weights, color=plots.COLOUR["attention"], height=0.7)
        for row, weight in enumerate(weights):
            ax.text(weight + 0.03, row, f"{weight:.2f}", va="center", size=12)
        ax.set(xlim=(0, 1), ylim=(len(self.run.words) - 0.5, -0.5), xticks=[], yticks=[])
        ax.spines[["bottom", "left"]].set_visible(False)
        ax.set_title(
            f"{self.run.words[now.rows - 1]} reads", color=plots.COLOUR["attention"], size=13
        )

    def draw_words(self, figure: Figure, likely: list[tuple[str, float]]) -> None:
        """The three likeliest next words."""
        ax = panel(figure, "words")
        colours = [NOW, *["#c9d0d8"] * (len(likely) - 1)]
        ax.barh(range(len(likely)), [p for _, p in likely], color=colours, height=0.7)
        for row, (_, p) in enumerate(likely):
            ax.text(p + 0.03, row, f"{p:.2f}", va="center", size=12)
        ax.set(xlim=(0, 1), ylim=(len(self.run.words) - 0.5, -0.5), xticks=[])
        ax.set_yticks(range(len(likely)), [word for word, _ in likely])
        ax.tick_params(length=0, labelsize=13)
        ax.spines[["bottom", "left"]].set_visible(False)
        ax.set_title("next word", color=NOW, size=13)

    def alt(self, step: int) -> str:
        """What the picture of a step shows, for those who cannot see it."""
        now = self.steps[step - 1]
        text = f"Step {step}, {now.name}. {' '.join(now.text.split())} "
        text += f"Keys and values kept: {now.rows} rows, {now.new} of them new."
        if now.shows == "weights":
            weights = self.run.weights[LAYER, HEAD, now.rows - 1, : now.rows].tolist()
            told = (
                f"{word} {weight:.2f}" for word, weight in zip(self.words, weights, strict=False)
            )
            text += f" Weights: {', '.join(told)}."
        elif now.shows == "words":
            told = (f"{word} {p:.2f}" for word, p in self.likely[now.rows])
            text += f" Likeliest: {', '.join(told)}."
        return text


def panel(figure: Figure, name: str) -> Axes:
    """The axes of one of the three panels, at the same place in every picture."""
    left, width = PANELS[name]
    return figure.add_axes((left, BOTTOM, width, TALL))


def main():
    plots.use_style()
    loop = Loop()
    numbers = list(range(1, len(loop.steps) + 1))
    pictures = [draw(loop.plot, {"step": number}) for number in numbers]
    page = page_html({"step": numbers}, {"step": 1}, pictures, [loop.alt(n) for n in numbers])
    page = page.replace(HINT, f"The first of {len(numbers)} steps; the slider needs JavaScript.")
    Path(__file__).with_suffix(".html").write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
