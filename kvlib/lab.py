"""What every check is given and gives back: a `Lab`, an `Outcome`, and the list `CHECKS`.

A check takes a `Lab` and returns an `Outcome`. It raises NotImplementedError for a power that the
decoder lacks; any other error is the decoder's and makes a failing row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from .judge import Judge, first_layer, first_place, gaps, run

LONGEST = 1024  # tokens tested, where the decoder allows more
ENDLESS = 320  # and where it declares no end: past 256, where small number types lose count


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


class Lab:
    """A decoder under examination: its judge, and the tokens that all checks draw from."""

    def __init__(self, decoder, reference=None, declared: float | None = None):
        self.decoder, self.given, self.declared = decoder, reference, declared
        block = getattr(decoder, "block_size", None)
        self.limit = ENDLESS if block is None else min(block, LONGEST)
        self.device = getattr(decoder, "device", "cpu")

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.given or self.decoder, self.draw(1, self.limit, 0), self.declared)

    def draw(self, rows: int, length: int, seed: int) -> Tensor:
        """Seeded token ids (rows, length); rows share the first, as prompts with a mark do."""
        random = torch.Generator().manual_seed(seed)
        shape = (rows, min(length, self.limit))
        tokens = torch.randint(0, self.decoder.vocab_size, shape, generator=random)
        tokens[:, 0] = tokens[0, 0]
        return tokens.to(self.device)

    def measure(self, tokens: Tensor, chunks, right: Tensor, padding=None) -> Outcome:
        """The outcome of reading `tokens` in `chunks` where the logits should be `right`."""
        gap = gaps(run(self.decoder, tokens, chunks, padding=padding), right, padding)
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
        return self.measure(self.judge.long[:, :length], chunks, self.judge.right[:, :length])

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


def refuses(call) -> bool:
    """Whether `call()` raises, as a call that cannot be answered should."""
    try:
        call()
    except NotImplementedError:
        raise
    except Exception:  # the decoder is anyone's, and so is the type of its error
        return True
    return False
