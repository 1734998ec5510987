"""How well a model predicts text it has not seen, and whether it uses what it has read."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .model import GPT2
from .ngram import KneserNey

BATCH = 64  # windows a forward pass


@torch.inference_mode()
def losses(model: GPT2, ids: Tensor, targets: Tensor, context: int) -> Tensor:
    """-log p in nats of each target position of `ids`, given exactly `context` tokens before it."""
    if int(targets.min()) < context or context > model.config.block_size:
        raise ValueError(
            f"a context of {context} tokens does not fit before position {int(targets.min())} "
            f"in {model.config.block_size} positions; choose later targets or a shorter context"
        )
    windows = ids[targets[:, None] + torch.arange(-context, 0)]  # (N, context)
    found = []
    for rows, right in zip(windows.split(BATCH), ids[targets].split(BATCH), strict=True):
        logits = model(rows, last_only=True)[:, 0]
        found.append(F.cross_entropy(logits, right, reduction="none"))
    return torch.cat(found)


def repeated_gain(model: GPT2, ids: Tensor, passages: int = 64, length: int = 60) -> float:
    """Nats a token that a passage gains when the model has just read it once (same targets)."""
    starts = torch.linspace(0, len(ids) - length, passages).long()
    rows = ids[starts[:, None] + torch.arange(length)]
    with torch.inference_mode():
        logits = model(torch.cat([rows, rows], 1))
    right = rows[:, 1:].flatten()

    def mean_loss(first: int) -> Tensor:
        return F.cross_entropy(logits[:, first : first + length - 1].flatten(0, 1), right)

    return float(mean_loss(0) - mean_loss(length))


def report(model: GPT2, train_ids: Tensor, held_ids: Tensor, samples: int = 4000) -> dict:
    """Held-out losses in nats a token, every one on the same `samples` evenly spaced targets.

    The model's with exactly 8 and exactly 128 tokens of context, an n-gram's of order 1, 2 and 3
    counted on `train_ids`; and the gain on a passage read a second time.
    """
    targets = torch.linspace(128, len(held_ids) - 1, samples).long()
    found: dict[str, float] = dict(targets=samples)
    for context in (8, 128):
        found[f"context_{context}"] = float(losses(model, held_ids, targets, context).mean())
    for name, order in (("unigram", 1), ("bigram", 2), ("trigram", 3)):
        counts = KneserNey(train_ids.numpy(), order, model.config.vocab_size)
        at = targets.numpy() - (order - 1)
        found[name] = float(counts.losses(held_ids.numpy())[at].mean())
    found["context_gain"] = found["context_8"] - found["context_128"]
    found["trigram_gain"] = found["trigram"] - found["context_128"]
    found["repeated_gain"] = repeated_gain(model, held_ids)
    return found
