"""What is right, and how near to it a decoder must come: float64 is the judge.

Changing the shapes of a product changes the order of its sums, so two correct ways to the same
logits differ by rounding and bit equality is not owed. How much rounding is owed is measured: the
reference runs in its own precision and, as a copy, in float64, and the distance between the two
passes is what rounding does to this model. A bug is what lies beyond a small multiple of it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .model import GPT2

MULTIPLE = 8  # of the measured rounding; real bugs are thousands of times larger
# Largest difference that rounding explains, over the largest logit, where nothing can be measured.
DECLARED = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Place(NamedTuple):
    """Where two runs differ: row of the batch, position in it, and which chunk of the run."""

    row: int
    position: int
    chunk: int


class Difference(NamedTuple):
    """The largest absolute logit difference of two runs, and where it is (None where it is 0)."""

    max_abs_diff: float
    where: Place | None


def one_pass(decoder, tokens: Tensor) -> Tensor:
    """Logits (B, T, V) of one pass over `tokens` (B, T): with no cache where the decoder can."""
    full = getattr(decoder, "full", None)
    logits = full(tokens.clone()) if full else run(decoder, tokens, [tokens.shape[1]])
    return checked(logits, tokens, decoder)


def run(decoder, tokens: Tensor, chunks, *, padding: Tensor | None = None) -> Tensor:
    """Logits (B, T, V) of `tokens` (B, T) read by a fresh state in pieces of sizes `chunks`."""
    if sum(chunks) != tokens.shape[1] or min(chunks, default=0) < 1:
        raise ValueError(f"chunks {list(chunks)} do not add up to {tokens.shape[1]} tokens")
    state = decoder.start(*tokens.shape)
    return feed(decoder, tokens, chunks, state, padding=padding)[0]


def feed(decoder, tokens: Tensor, chunks, state, *, padding: Tensor | None = None) -> tuple:
    """Logits (B, T, V) of `tokens` given to `state` in pieces of sizes `chunks`, and the state."""
    first: dict[str, Any] = {} if padding is None else {"padding": padding.clone()}
    found = []
    for piece in tokens.split(list(chunks), dim=1):
        logits, state = decoder.step(piece.clone(), state, **first)
        found.append(checked(logits, piece, decoder))
        first = {}
    return torch.cat(found, dim=1), state


def checked(logits: Tensor, tokens: Tensor, decoder) -> Tensor:
    """`logits`, where they are (B, T, V) for `tokens` (B, T); ValueError where they are not."""
    shape = (*tokens.shape, decoder.vocab_size)
    if tuple(logits.shape) != shape:
        raise ValueError(
            f"logits have shape {tuple(logits.shape)} where {shape} is owed: "
            "a row for every token of the call, not for the last alone"
        )
    return logits


def gaps(found: Tensor, right: Tensor, padding: Tensor | None = None) -> Tensor:
    """Largest absolute logit difference at each position, (B, T); 0 where a row is padding."""
    pieces = []
    for a, b in zip(found.split(64, dim=1), right.split(64, dim=1), strict=True):
        a, b = a.double(), b.double()
        pieces.append(torch.where(a == b, 0.0, (a - b).abs()).amax(-1))  # -inf equals -inf
    gap = torch.cat(pieces, dim=1)
    if padding is None:
        return gap
    real = torch.arange(gap.shape[1], device=gap.device) >= padding[:, None]
    return torch.where(real, gap, 0.0)


def first_place(gap: Tensor, chunks, tolerance: float) -> Place | None:
    """The earliest position of `gap` (B, T) that is not within `tolerance` (nan never is)."""
    beyond = ~(gap <= tolerance)
    if not beyond.any():
        return None
    position = int(beyond.any(0).nonzero()[0])
    return place(int(beyond[:, position].nonzero()[0]), position, chunks)


def place(row: int, position: int, chunks) -> Place:
    """The Place of a position in a run that was cut into `chunks`."""
    ends = torch.tensor(list(chunks)).cumsum(0)
    return Place(row, position, int((ends <= position).sum()))


def compare(decoder, reference, tokens: Tensor, chunks) -> Difference:
    """The largest absolute logit difference of `decoder` from `reference`, and where it is.

    `decoder` reads `tokens` (B, T) in pieces of sizes `chunks`, which add up to T; `reference`
    reads them in one pass, without its cache where it can.
    """
    gap = gaps(run(decoder, tokens, chunks), one_pass(reference, tokens))
    largest = float(gap.max())
    if largest == 0:
        return Difference(0.0, None)
    at = int(gap.argmax())
    return Difference(largest, place(at // gap.shape[1], at % gap.shape[1], chunks))


class Judge:
    """The logits that are right for any tokens, and the tolerance that rounding is owed.

    `long` (1, T) is the judge's own sequence, and `right` its logits. `declared` replaces the
    measured tolerance by an absolute one.
    """

    def __init__(self, reference, long: Tensor, declared: float | None):
        self.reference, self.declared = reference, declared
        self.copy = float64_copy(reference)
        self.distance = 0.0  # of the reference from its copy, the largest so far
        self.long, self.right = long, self.full(long)
        self.scale = float(self.right[self.right.isfinite()].abs().max())
        part = long[:, : max(1, long.shape[1] * 2 // 5)]  # another shape, so other sums
        self.noise = float(gaps(self.full(part), self.right[:, : part.shape[1]]).max())
        self.dtype = one_pass(reference, part).dtype

    def full(self, tokens: Tensor) -> Tensor:
        """The right logits (B, T, V) of `tokens` (B, T).

        Rounding is measured on the same tokens, for it depends on them: in a trained model one
        token in a thousand may be ten times further from float64 than the rest.
        """
        if self.copy is None:
            return one_pass(self.reference, tokens)
        right = one_pass(self.copy, tokens)
        own = one_pass(self.reference, tokens)
        self.distance = max(self.distance, float(gaps(own, right).max()))
        return right

    @property
    def tolerance(self) -> float:
        """The logit difference that is owed to rounding on the tokens judged so far."""
        if self.declared is not None:
            return self.declared
        bound = DECLARED.get(self.dtype, DECLARED[torch.bfloat16]) * self.scale
        if self.copy is None:
            return bound
        rounding = max(self.noise, self.distance, torch.finfo(self.dtype).eps * self.scale)
        return MULTIPLE * min(rounding, bound)  # more than that is no rounding

    @property
    def why(self) -> str:
        """Why the tolerance is what it is."""
        if self.declared is not None:
            return "declared by the caller"
        if self.copy is None:
            share = self.tolerance / self.scale
            return f"{share:g} of the largest logit: no float64 copy to measure rounding with"
        name = str(self.dtype).removeprefix("torch.")
        return (
            f"{MULTIPLE} times what rounding does here: an uncached {name} pass is up to "
            f"{self.distance:.1e} from its float64 copy, whose own noise is {self.noise:.1e}"
        )


def float64_copy(decoder):
    """A float64 copy of `decoder`, or None where it offers none or cannot make it."""
    try:
        return decoder.to_float64()
    except Exception:  # a model that cannot be copied or cast: the tolerance is then declared
        return None


def first_layer(decoder, tokens: Tensor, chunks, padding: Tensor | None, at: Place) -> str:
    """Where inside our model the difference at `at` starts: ", layer 1"; "" where it is not ours.

    The stream after the embeddings and after each block is caught by hooks, in the run that went
    wrong and in one pass of the same model, and the two are compared at that row and position.
    """
    model = getattr(decoder, "model", None)
    if not isinstance(model, GPT2) or decoder.cache is None:
        return ""
    pad = 0 if padding is None else int(padding[at.row])
    alone = tokens[at.row : at.row + 1, pad:]
    found = streams(model, lambda: run(decoder, tokens, chunks, padding=padding))
    right = streams(model, lambda: one_pass(decoder, alone))
    if found[0].shape[:2] != tokens.shape:  # it reads other tokens than it was given
        return ""
    names = ["the embeddings", *(f"layer {i}" for i in range(len(model.h)))]
    for name, a, b in zip(names, found, right, strict=True):
        ours, theirs = a[at.row, at.position], b[0, at.position - pad]
        if not (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max():
            return f", starts in {name}"
    return ", in no layer of its own: the reference differs"


def streams(model: GPT2, call) -> list[Tensor]:
    """The stream (B, T, C) after the embeddings and after each block, over all of `call()`."""
    seen: list[list[Tensor]] = [[] for _ in range(len(model.h) + 1)]
    hooks = [model.h[0].register_forward_pre_hook(lambda _, x: seen[0].append(x[0].clone()))]
    for after, block in zip(seen[1:], model.h, strict=True):
        keep = lambda _, x, out, after=after: after.append(out.clone())  # noqa: E731
        hooks.append(block.register_forward_hook(keep))
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(pieces, dim=1) for pieces in seen]
