"""How a bug is planted: one method of a cache or decoder, or one function of a model, replaced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from .. import model as engine
from ..caches.base import Rows
from ..caches.growing import GrowingCache
from ..decoders import KvlibDecoder
from ..model import GPT2


@dataclass(frozen=True)
class Bug:
    """A planted bug: its family, the one-line symptom, the check that finds it, and its code."""

    name: str
    family: str
    symptom: str
    check: str
    part: Any  # a cache class, a decoder class, or a function
    replaces: str = ""  # the function of kvlib.model whose place it takes

    def decoder(self, model: GPT2) -> KvlibDecoder:
        """A Decoder of `model` that has this bug and no other."""
        if self.replaces:
            return PatchedDecoder(model, self.replaces, self.part)
        if issubclass(self.part, Rows):
            return CacheDecoder(model, self.part)
        return self.part(model, "static")


class CacheDecoder(KvlibDecoder):
    """A decoder of our model with a cache of another class."""

    def __init__(self, model: GPT2, cache_class):
        super().__init__(model, "growing" if issubclass(cache_class, GrowingCache) else "static")
        self.cache_class = cache_class

    def start(self, batch: int, capacity: int):
        weight = self.model.wte.weight
        rows = (batch,) if self.cache == "growing" else (batch, capacity)
        return self.cache_class(self.model.config, *rows, device=weight.device, dtype=weight.dtype)


class PatchedDecoder(KvlibDecoder):
    """A decoder during whose calls one function of `kvlib.model` is replaced by another."""

    def __init__(self, model: GPT2, name: str, function: Callable):
        super().__init__(model, "static")
        self.name, self.function = name, function

    def run(self, *args, **kwargs):
        with patch.object(engine, self.name, self.function):
            return super().run(*args, **kwargs)

    def full(self, tokens):
        with patch.object(engine, self.name, self.function):
            return super().full(tokens)


# The checks that most bugs are found by.
ONE, CHUNKS, PROMPT, LAST = (
    "one token at a time",
    "chunks",
    "long prompt then decode",
    "to the last position",
)
PADDING = "left padding"

CATALOGUE: dict[str, Bug] = {}


def planted(name: str, family: str, check: str, symptom: str, replaces: str = ""):
    """Enter the class or function below into CATALOGUE."""

    def enter(part):
        CATALOGUE[name] = Bug(name, family, symptom, check, part, replaces)
        return part

    return enter
