"""Draws nano's loss against training steps, with the n-grams it has to beat."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

from kvlib import plots

HERE = Path(__file__).parent
record = json.loads((HERE.parent / "kvlib" / "data" / "nano" / "training.json").read_text())
curve, quality = record["curve"], record["quality"]
steps = [row["step"] for row in curve]

plots.use_style()
fig, ax = plt.subplots()
ax.plot(steps, [row["train"] for row in curve], color="0.75", lw=1)
ax.plot(steps, [row["held_out"] for row in curve], color=plots.COLOUR["measured"])
ax.text(steps[-1], curve[-1]["held_out"], " held out", va="center", color=plots.COLOUR["measured"])
early = [row["train"] for row in curve[: len(curve) // 3]]
ax.text(steps[0], min(early) - 0.3, "one training batch", va="top", color="0.45")
for name in ("bigram", "trigram"):
    ax.axhline(quality[name], color=plots.COLOUR["predicted"], lw=1, ls="--")
    where = dict(ha="right", va="bottom")
    ax.text(steps[-1], quality[name], name, color=plots.COLOUR["predicted"], **where)
ax.set(xlabel="step", ylabel="loss (nats a token)", xlim=(0, steps[-1] * 1.16))
fig.savefig(HERE / "nano_curve.svg", metadata={"Date": None})
