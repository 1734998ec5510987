"""What every check is given and gives back: a `Lab`, an `Outcome`, and the list `CHECKS`.

A check takes a `Lab` and returns an `Outcome`. It raises NotImplementedError for a power that the
decoder lacks; any other error is the decoder's and makes a failing row.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .judge import Judge, WrongLogits, first_layer, first_place, gaps, precision, run

LONGEST = 1024  # tokens tested, where the decoder allows more
ENDLESS = 320  # where it declares neither an end nor a length: small number types lose count at 256
KEEPS, PADDED_KEEP = (15, 11, 0), 12  # lengths to roll back to
REFUSED = object()  # what `attempt` returns of a call that raised


class Outcome(NamedTuple):
    """What a check found: whether all was well, how far logits were off, where, and a note."""

    ok: bool
    max_abs_diff: float | None = None
    where: str = ""
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One check: its name, function, what its failing usually means, why it may be redundant."""

    name: str
    function: Callable[["Lab"], Outcome]
    meaning: str
    diagnostic: str


CHECKS: dict[str, Check] = {}


def check(name: str, meaning: str, diagnostic: str = ""):
    """Enter the function below into CHECKS. `diagnostic`: why it stays though others suffice."""

    def enter(function):
        CHECKS[name] = Check(name, function, meaning, diagnostic)
        return function

    return enter


class Texts:
    """What the checks read, drawn at once, so that rounding is measured on all of it beforehand.

    `long` (1, limit) is the judge's own sequence; `swapped` its first tokens in another order;
    `batch` and `others` batches that share a row; `ragged` a batch to be padded; `pair` two
    prompts; `first` what is cut by truncate, and `second` what is read then.
    """

    def __init__(self, lab: "Lab"):
        self.limit, self.long = lab.limit, lab.draw(1, lab.limit, 0)
        self.swapped = self.long[:, :24].clone()
        self.swapped[:, 1:12] = self.swapped[:, 1:12].flip(1)
        self.batch, self.others = lab.draw(4, 24, 1), lab.draw(4, 24, 2)
        self.others[2] = self.batch[2]  # every other row changed, this one the same
        self.ragged, self.pair = lab.draw(3, 24, 3), lab.draw(2, 20, 4)
        self.first, self.second = lab.draw(3, 20, 6, False), lab.draw(3, 13, 7, False)
        self.takes_padding = lab.takes_padding

    def padding(self, length: int) -> Tensor:
        """Leading padding (3,) of three rows, of which some of the first `length` are tokens."""
        return torch.tensor([5, 0, 2], device=self.long.device).clamp(max=length - 1)

    def unpadded(self) -> list[Tensor]:
        """The tokens (1, t) of each row of `ragged`."""
        pads = self.padding(self.ragged.shape[1]).tolist()
        return [row[None, pad:] for row, pad in zip(self.ragged, pads, strict=True)]

    def kept(self, keep: int, padded: bool = False) -> tuple[int, list[Tensor]]:
        """How many of `first` stay, `keep` at most, and all that each row then is (1, t)."""
        keep = min(keep, self.first.shape[1] - 1)
        pads = self.padding(keep).tolist() if padded and keep else [0, 0, 0]
        more = self.second[:, : self.limit - keep]
        rows = zip(self.first, more, pads, strict=True)
        return keep, [torch.cat([a[pad:keep], b])[None] for a, b, pad in rows]

    def beside(self) -> list[Tensor]:
        """Every sequence (1, t) but `long` that the right logits are needed of."""
        rows = torch.cat([self.batch, self.others]).split(1)
        found = [self.swapped, *rows, *self.pair.split(1)]
        for keep in KEEPS:
            found += self.kept(keep)[1]
        if self.takes_padding:
            found += [*self.unpadded(), *self.kept(PADDED_KEEP, padded=True)[1]]
        return found


class Lab:
    """A decoder under examination: its judge, and the tokens that all checks draw from.

    `limit` is the tested length: the decoder's `block_size`, or where it has none its `length`.
    """

    def __init__(self, decoder, reference=None, declared: float | None = None):
        self.decoder, self.given, self.declared = decoder, reference, declared
        block = getattr(decoder, "block_size", None) or getattr(decoder, "length", None)
        self.limit = min(block or ENDLESS, LONGEST)
        self.device = getattr(decoder, "device", "cpu")

    @cached_property
    def texts(self) -> Texts:
        return Texts(self)

    @cached_property
    def judge(self) -> Judge:
        long, more = self.texts.long, self.texts.beside()
        dtype = precision(self.decoder, long[:, :1]) if self.given else None
        return Judge(self.given or self.decoder, long, self.declared, more, dtype)

    @property
    def takes_padding(self) -> bool:
        return "padding" in inspect.signature(self.decoder.step).parameters

    def draw(self, rows: int, length: int, seed: int, marked: bool = True) -> Tensor:
        """Seeded token ids (rows, length); where `marked`, rows share the first, as prompts do."""
        random = torch.Generator().manual_seed(seed)
        shape = (rows, min(length, self.limit))
        tokens = torch.randint(0, self.decoder.vocab_size, shape, generator=random)
        if marked:
            tokens[:, 0] = tokens[0, 0]
        return tokens.to(self.device)

    def measure(self, tokens: Tensor, chunks, right: Tensor, padding=None) -> Outcome:
        """The outcome of reading `tokens` in `chunks` where the logits should be `right`.

        Where `right` has fewer rows, it is that of the last ones: others are read and not judged.
        """
        found = run(self.decoder, tokens, chunks, padding=padding)
        gap = gaps(found[-len(right) :], right, padding)
        gap = F.pad(gap, (0, 0, len(tokens) - len(right), 0))
        outcome = self.verdict(gap, chunks)
        at = first_place(gap, chunks, self.judge.tolerance)
        if at is None:
            return outcome
        layer = first_layer(self.decoder, tokens, chunks, padding, at)
        return outcome._replace(where=outcome.where + layer)

    def verdict(self, gap: Tensor, chunks) -> Outcome:
        """The outcome where logits of a run in `chunks` are off by `gap` (B, T)."""
        at = first_place(gap, chunks, self.judge.tolerance)
        where = f"row {at.row}, position {at.position}, chunk {at.chunk}" if at else ""
        return Outcome(at is None, float(gap.max()), where)

    def along(self, chunks) -> Outcome:
        """The outcome of reading the first tokens of the judge's own sequence in `chunks`."""
        length = sum(chunks)
        return self.measure(self.texts.long[:, :length], chunks, self.judge.right[:, :length])

    def power(self, name: str):
        """The decoder's method `name`; NotImplementedError where it has none."""
        method = getattr(self.decoder, name, None)
        if method is None:
            raise NotImplementedError(f"the decoder has no {name}()")
        return method


def pieces(length: int, *sizes: int) -> list[int]:
    """Chunk sizes that add up to `length`: `sizes` in turn, the last again and again."""
    found: list[int] = []
    while sum(found) < length:
        size = sizes[min(len(found), len(sizes) - 1)]
        found.append(min(size, length - sum(found)))
    return found


def worst(outcomes) -> Outcome:
    """The first of `outcomes` that fails, or else the one with the largest difference."""
    largest = Outcome(True, 0.0)
    for outcome in outcomes:  # later ones are not worked out once one has failed
        if not outcome.ok:
            return outcome
        largest = max(largest, outcome, key=lambda each: each.max_abs_diff or 0.0)
    return largest


def attempt(call):
    """What `call()` returns, and REFUSED where it raises, as a call that cannot be answered should.

    Logits of a wrong shape are the lab's own objection, and no refusal.
    """
    try:
        return call()
    except (NotImplementedError, WrongLogits):
        raise
    except Exception:  # the decoder is anyone's, and so is the type of its error
        return REFUSED
