"""Planted bugs: mistakes in key-value caching, each the smallest change to correct code.

Most were seen in public code; `IMAGINED` names those that were not. `CATALOGUE[name]` has
`.decoder(model)`, a Decoder with that bug and no other, `.symptom`, what goes wrong in a line, and
`.check`, the check of `kvlib.parity` that should find it. `matrix()` runs every check on every bug.
"""

from collections.abc import Sequence

import torch

from .. import parity
from ..config import GPT2Config
from ..decoders import from_kvlib
from ..model import GPT2
from . import model as _model  # noqa: F401  enters its bugs in CATALOGUE
from . import storage as _storage  # noqa: F401  and so does this
from .plant import CATALOGUE, Bug, CacheDecoder, PatchedDecoder

__all__ = [
    "CATALOGUE",
    "IMAGINED",
    "Bug",
    "CacheDecoder",
    "PatchedDecoder",
    "matrix",
    "needed",
    "small_model",
]

# Near relations of bugs that were seen, most of them for a check that would have no other.
IMAGINED = (
    "prompt-of-one",
    "one-prompt-for-all",
    "last-is-first",
    "whole-blocks",
    "dropout-left-on",
    "weights-not-loaded",
)


def small_model(seed: int = 0) -> GPT2:
    """The GPT2 that the matrix runs on: two layers of width 32, a block of 320, 97 ids.

    Its weights are four times GPT-2's initial ones, so that attention tells tokens apart.
    """
    model = GPT2(GPT2Config(block_size=320, vocab_size=97, n_layer=2, n_head=4, n_embd=32))
    model.initialise(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and ".ln_" not in name and not name.startswith("ln_"):
                parameter.mul_(4)
    return model.eval()


def matrix(model: GPT2 | None = None, checks: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Bug -> the checks that fail on it, executed; the correct decoder is first, as "correct"."""
    model = model or small_model()
    decoders = {"correct": from_kvlib(model)}
    decoders |= {name: bug.decoder(model) for name, bug in CATALOGUE.items()}
    return {name: parity.check(each, checks=checks).failed for name, each in decoders.items()}


def needed(found: dict[str, list[str]], check: str) -> str | None:
    """A bug for which `check` belongs to some minimal set of checks that finds every bug, or None.

    `found` is a matrix. A set is minimal where none of its checks can be left out. `check` is in
    one exactly if some bug it finds would be missed by a set that finds all bugs without using any
    other check that finds that bug; such a set exists if every other bug has a check left.
    """
    rows = {bug: set(checks) for bug, checks in found.items() if checks}
    for bug, checks in rows.items():
        if check not in checks:
            continue
        without = checks - {check}
        if not any(other <= without for other in rows.values()):
            return bug
    return None
