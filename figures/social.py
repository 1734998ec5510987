"""The picture shown where the book is linked: its name beside real rows of a cache.

Draws figures/social.png, 1200 by 630 pixels: the keys that one head of nano keeps, a row a token.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from kvlib import StaticCache, load, plots, tokenizer

TEXT = "Our revels now are ended. These our actors, as I foretold you, were all spirits"
LAYER, HEAD = 3, 0
GROUND, INK, QUIET = "#0f2a43", "#ffffff", "#a9c4dc"


def main():
    model, ids = load("nano"), tokenizer().encode_ordinary(TEXT)
    cache = StaticCache(model.config)
    with torch.no_grad():
        model(torch.tensor([ids]), cache)
    keys = cache.keys[LAYER][0, HEAD, : len(ids)]
    words = [tokenizer().decode([token]).strip() for token in ids]
    plots.use_style()
    figure = plt.figure(figsize=(12, 6.3), facecolor=GROUND, layout="none")
    title = dict(color=INK, size=42, weight="bold", va="center")
    figure.text(0.06, 0.64, "The KV Cache,\nMeasured", **title)
    lines = "A course in notebooks, and a book:\npredict by arithmetic, build, prove, measure."
    figure.text(0.06, 0.28, lines, color=QUIET, size=19, va="center", linespacing=1.5)
    ax = figure.add_axes((0.6, 0.1, 0.35, 0.8))
    plots.heat(ax, keys, signed=True, rows=words)
    ax.tick_params(axis="y", labelcolor=QUIET, labelsize=14)
    ax.set_xticks([])
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=100, facecolor=GROUND)


if __name__ == "__main__":
    main()
