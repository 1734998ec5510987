"""What attention read in a run: queries, the cached keys and values, and the weights between them.

L layers, H heads, N tokens of the run (prompt, then new ones), D head dim, B batch.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .generate import check_request, new_cache
from .model import GPT2
from .tokenizer import tokenizer

MARKS = {" ": "␣", "\n": "↵", "\r": "␍", "\t": "⇥"}  # white space, made visible
RECORDING = Path(__file__).parent / "data" / "induction.json"
NEAR = 4  # tokens that the `near` score counts, the reading one included


@dataclass(frozen=True)
class Run:
    """A prefill of `prompt` tokens and one decode step for each later one, as it happened.

    `words` are the N tokens as labels. `q`, `k`, `v` are (L, H, N, D): each token's query, and the
    rows that the cache held at the end. `weights` (L, H, N, N): row i is what token i read, 0 after
    column i. `chosen` is, for each token, the word that was likeliest after it and its probability.
    """

    words: list[str]
    prompt: int
    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    chosen: list[tuple[str, float]]


def readable(token: int) -> str:
    """A GPT-2 token as a label: white space as signs, a part of a letter as its bytes in hex."""
    try:
        piece = tokenizer().decode_single_token_bytes(token)
    except KeyError:  # a model may have more rows than the tokenizer has words
        return f"<{token}>"
    try:
        letters = piece.decode()
    except UnicodeDecodeError:
        return f"<{piece.hex(' ').upper()}>"
    signs = (MARKS.get(c, c if c.isprintable() else f"U+{ord(c):04X}") for c in letters)
    return "".join(signs)


@contextlib.contextmanager
def queries(model: GPT2) -> Iterator[list[Tensor]]:
    """A list that receives q (B, H, T, D) of each layer in turn, for every pass in the `with`."""
    found: list[Tensor] = []
    n_head, width = model.config.n_head, model.config.n_embd

    def keep(_, __, qkv: Tensor) -> None:
        found.append(qkv[..., :width].unflatten(-1, (n_head, -1)).transpose(1, 2).clone())

    blocks: Iterable[Any] = model.h
    hooks = [block.attn.c_attn.register_forward_hook(keep) for block in blocks]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def attention(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention weights (..., T, S) of the last T of S tokens, from q and k (..., D)."""
    T, S = q.shape[-2], k.shape[-2]
    allowed = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1)


@torch.no_grad()
def run(model: GPT2, tokens: Tensor, new: int) -> Run:
    """The Run of `model` over a prompt (1, T) and `new` greedy tokens, each of them read too.

    Raises ValueError or IndexError for tokens that are not int64 (1, T), or do not fit the model.
    """
    check_request(model, tokens, new, 0.0, None, "reprefill")
    if tokens.shape[0] != 1:
        raise ValueError(f"a run is one sequence, not {tokens.shape[0]}; give tokens (1, T)")
    prompt, block = tokens.shape[1], model.config.block_size
    if prompt + new > block:
        raise IndexError(
            f"{prompt} prompt + {new} new tokens exceed the model's {block} positions; "
            f"shorten the prompt or ask for at most {max(0, block - prompt)} new tokens"
        )
    cache: Any = new_cache(model, "static", 1, prompt + new)
    seen = fresh = tokens
    passes: list[Tensor] = []
    chosen: list[tuple[int, float]] = []
    for step in range(new + 1):
        with queries(model) as found:
            likely = model(fresh, cache)[0].softmax(-1).max(-1)
        passes.append(torch.cat(found))  # (L, H, T, D)
        chosen += zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        fresh = likely.indices[None, -1:]
        if step < new:
            seen = torch.cat([seen, fresh], dim=1)
    q, k, v = torch.cat(passes, dim=2), cache.keys[:, 0], cache.values[:, 0]
    words = [readable(token) for token in seen[0].tolist()]
    told = [(readable(token), probability) for token, probability in chosen]
    return Run(words, prompt, q, k, v, attention(q, k), told)


@torch.no_grad()
def weights(model: GPT2, tokens: Tensor) -> Tensor:
    """Attention weights (L, B, H, T, T) of one pass over `tokens` (B, T)."""
    cache: Any = new_cache(model, "static", *tokens.shape)
    with queries(model) as found:
        model.hidden(tokens, cache)
    return attention(torch.stack(found), cache.keys)


def scores(weights: Tensor) -> dict[str, Tensor]:
    """Where each head's weight goes, from `weights` (L, B, H, T, T): name -> (L, H), each 0 to 1.

    Means over sequences and over every query but those too early to have the choice: "previous" is
    the token before, "first" is token 0, "near" is the last 4 tokens, the query's own included.
    """
    near = [weights.diagonal(-back, -2, -1)[..., NEAR - back :] for back in range(NEAR)]
    return {
        "previous": weights.diagonal(-1, -2, -1)[..., 1:].mean((1, 3)),
        "first": weights[..., 2:, 0].mean((1, 3)),
        "near": torch.stack(near).sum(0).mean((1, 3)),
    }


def induction(weights: Tensor, period: int) -> Tensor:
    """Weight (L, H) on the token after the last occurrence, where a text ends with two copies.

    `weights` (L, B, H, T, T) are of texts whose last 2 * `period` tokens are one passage twice.
    A query in the second copy reads, at `period` - 1 tokens back, what came next the first time.
    """
    return weights.diagonal(1 - period, -2, -1)[..., -period:].mean((1, 3))


def entropy(weights: Tensor) -> Tensor:
    """Entropy (L, H) of the weights (L, B, H, T, T), in nats, mean over sequences and queries.

    Its exponential is the number of tokens that a head would read if it read them equally.
    """
    return torch.special.entr(weights).sum(-1).mean((1, 3))


def recording() -> dict:
    """What `tools/induction.py` recorded of a real pretrained model's heads.

    "scores" maps a name to (L, H) lists, "repeated_gain" is in nats a token, "how" says how it was
    made; `recorded` reads the rest.
    """
    return json.loads(RECORDING.read_text(encoding="utf-8"))


def recorded(name: str) -> Run:
    """The recorded Run of one head, "induction" or "first", as its layer 0 and head 0.

    A sentence is read in prefill, then once more, token by token.
    """
    found = recording()
    head = found["heads"][name]
    q, k, v, read = (torch.tensor(head[part])[None, None] for part in ("q", "k", "v", "weights"))
    chosen = [(word, probability) for word, probability in found["chosen"]]
    return Run(found["words"], found["prompt"], q, k, v, read, chosen)
