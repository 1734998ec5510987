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
ROUNDED = 16  # units of rounding that the stream of a correct layer may be off, over its size
# Largest difference that rounding explains, over the logits' size, where nothing can be measured.
DECLARED = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class WrongLogits(ValueError):
    """Logits of another shape or type than is owed: the lab's verdict, not a decoder's refusal."""


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
    """`logits`, where they are (B, T, V) for `tokens` (B, T); WrongLogits where they are not."""
    if not logits.is_floating_point():
        raise WrongLogits(f"logits are {logits.dtype} where a floating-point type is owed")
    found, owed = tuple(logits.shape), (*tokens.shape, decoder.vocab_size)
    if found == owed:
        return logits.detach()
    hint = ""
    if found[-1:] != owed[-1:]:
        hint = f": vocab_size is {owed[-1]}, and a row has {found[-1] if found else 'no'} logits"
    elif found == (owed[0], 1, owed[2]):
        hint = ": a row for every token of the call, not for the last alone"
    raise WrongLogits(f"logits have shape {found} where {owed} is owed{hint}")


def gaps(found: Tensor, right: Tensor, padding: Tensor | None = None) -> Tensor:
    """Largest absolute logit difference at each position, (B, T); 0 where a row is padding."""
    pieces = []
    for a, b in zip(found.split(64, dim=1), right.split(64, dim=1), strict=True):
        a, b = in_float64(a), in_float64(b)
        pieces.append(torch.where(a == b, 0.0, (a - b).abs()).amax(-1))  # -inf equals -inf
    gap = torch.cat(pieces, dim=1)
    if padding is None:
        return gap
    real = torch.arange(gap.shape[1], device=gap.device) >= padding[:, None]
    return torch.where(real, gap, 0.0)


def in_float64(logits: Tensor) -> Tensor:
    """`logits` in float64; -inf where a mask wrote the lowest number of their type, or of another.

    A model and its float64 copy mask the same id with different numbers.
    """
    lowest = max(torch.finfo(kind).min for kind in (logits.dtype, torch.bfloat16))
    return logits.double().masked_fill(logits <= lowest, -torch.inf)


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

    `long` (1, T) is the judge's own sequence, and `right` its logits. Rounding is measured on it
    and on all of `texts`, (1, t) each, before anything is judged. `declared` replaces the measured
    tolerance by an absolute one; `dtype` is the type that the decoder under test computes in, where
    that is not the reference.
    """

    def __init__(self, reference, long: Tensor, declared: float | None, texts=(), dtype=None):
        self.reference, self.declared, self.long = reference, declared, long
        self.copy = float64_copy(reference, long[:, :4])
        part = long[:, : max(1, long.shape[1] * 2 // 5)]  # another shape, so other sums
        own = precision(reference, part)
        self.own, self.dtype = own, max(own, dtype or own, key=eps)  # the coarser sets what is owed
        self.measured = self.copy is not None and self.dtype == own
        self.known: dict[tuple, Tensor] = {}
        self.distance = 0.0  # of the reference from its copy, the largest on any sequence
        for tokens in (long, *texts):
            self.learn(tokens)
        self.right = self.full(long)
        self.scale = size(self.right)
        self.noise = float(gaps(self.full(part), self.right[:, : part.shape[1]]).max())

    def learn(self, tokens: Tensor) -> None:
        """Work out and keep the right logits of `tokens` (1, t), and measure rounding on them.

        It depends on the tokens: in a trained model one in a thousand may be ten times further
        from float64 than the rest.
        """
        self.known[key(tokens)] = right = self.full(tokens)
        if self.copy is not None:
            self.distance = highest(
                self.distance, float(gaps(one_pass(self.reference, tokens), right).max())
            )

    def full(self, tokens: Tensor) -> Tensor:
        """The right logits (B, T, V) of `tokens` (B, T)."""
        right = self.known.get(key(tokens))
        return one_pass(self.copy or self.reference, tokens) if right is None else right

    def bound_of(self, dtype: torch.dtype) -> float:
        """The largest logit difference that rounding can explain in this data type."""
        return DECLARED.get(dtype, DECLARED[torch.bfloat16]) * self.scale

    @property
    def tolerance(self) -> float:
        """The logit difference that is owed to rounding."""
        if self.declared is not None:
            return self.declared
        bound = self.bound_of(self.dtype)
        if not self.measured:
            return bound
        rounding = highest(self.noise, self.distance, eps(self.dtype) * self.scale)
        return MULTIPLE * min(rounding, bound)  # more than that is no rounding

    @property
    def why(self) -> str:
        """Why the tolerance is what it is."""
        if self.declared is not None:
            return "declared by the caller"
        name = str(self.dtype).removeprefix("torch.")
        if not self.measured:
            share = DECLARED.get(self.dtype, DECLARED[torch.bfloat16])
            lacks = "no float64 copy" if self.copy is None else f"no reference in {name}"
            return f"{share:g} of the logits' size, {self.scale:.2g}: {lacks} to measure with"
        return (
            f"{MULTIPLE} times what rounding does here: an uncached {name} pass is up to "
            f"{self.distance:.1e} from its float64 copy, whose own noise is {self.noise:.1e}"
        )


def size(logits: Tensor) -> float:
    """How large `logits` (B, T, V) are: at each position the largest, of those the median.

    Only the highest tenth is looked at: ids that pad a vocabulary are masked with numbers as low as
    the type has, and say nothing of the rest.
    """
    some = logits[:, :: max(1, logits.shape[1] // 64)]
    top = some.topk(max(1, some.shape[-1] // 10)).values
    return float(top[..., [0, -1]].abs().amax(-1).median())


def highest(*numbers: float) -> float:
    """The largest of `numbers`, and nan where one is nan."""
    return float(torch.tensor(numbers, dtype=torch.float64).max())


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def key(tokens: Tensor) -> tuple:
    """What tells one sequence or batch from another."""
    return (len(tokens), *tokens.flatten().tolist())


def precision(decoder, tokens: Tensor) -> torch.dtype:
    """The type that `decoder` computes in: its `dtype`, the coarsest of its model, its logits'."""
    given = getattr(decoder, "dtype", None)
    if isinstance(given, torch.dtype):
        return given
    model = getattr(decoder, "model", None)
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    types = {p.dtype for p in parameters if p.dtype in DECLARED}
    return max(types, key=eps) if types else one_pass(decoder, tokens).dtype


def float64_copy(decoder, tokens: Tensor):
    """A float64 copy of `decoder` that can read `tokens`, or None where there is none."""
    try:
        copy = decoder.to_float64()
        one_pass(copy, tokens)
        run(copy, tokens, [tokens.shape[1]])
    except Exception:  # a model that cannot be copied, cast or run: the tolerance is then declared
        return None
    return copy


def first_layer(decoder, tokens: Tensor, chunks, padding: Tensor | None, at: Place) -> str:
    """Where inside our model the difference at `at` starts: ", layer 1"; "" where it is not ours.

    The stream after the embeddings and after each block is caught by hooks, in the run that went
    wrong and in one pass of the same model, and the two are compared at that row and position. They
    are caught in the model alone: of a step that reads its weights in another form nothing is said.
    """
    model = getattr(decoder, "model", None)
    cache, form = getattr(decoder, "cache", None), getattr(decoder, "form", "float32")
    if not isinstance(model, GPT2) or cache is None or form != "float32":
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
        if not (ours - theirs).abs().max() <= ROUNDED * eps(ours.dtype) * theirs.abs().max():
            return f", starts in {name}"
    exact = eps(found[0].dtype) <= eps(torch.float32)  # else rounding may hide the layer
    return ", in no layer of its own: the reference differs" if exact else ""


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
