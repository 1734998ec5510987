"""One face for every model that decodes: ours, Hugging Face's, or a reader's own.

A `Decoder` has `vocab_size`, `block_size` (None where positions have no end), `device`,
`start(batch, capacity) -> state` and `step(tokens, state) -> (logits, state)`, which consumes its
state. It may also have the powers `truncate(state, n) -> state`, `step(..., padding=)` and
`to_float64() -> Decoder`, a copy. Any object with `vocab_size`, `start` and `step` will do.
"""

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from .generate import new_cache
from .model import GPT2


class Decoder(Protocol):
    """What the lab asks of a model: tokens (B, T) in, logits (B, T, V) out, with a state between."""

    vocab_size: int

    def start(self, batch: int, capacity: int) -> Any: ...
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


class KvlibDecoder:
    """A GPT2 with one of our caches; with none (cache=None) it recomputes the whole past."""

    def __init__(self, model: GPT2, cache: str | None):
        self.model, self.cache = model, cache
        self.vocab_size, self.block_size = model.config.vocab_size, model.config.block_size
        new_cache(model, cache, 1, 1)  # refuses an unknown cache here, not at the first step

    @property
    def device(self) -> torch.device:
        return self.model.wte.weight.device

    def start(self, batch: int, capacity: int):
        if self.cache is None:
            return torch.empty(batch, 0, dtype=torch.int64, device=self.device), None
        return new_cache(self.model, self.cache, batch, capacity)

    def step(self, tokens: Tensor, state, padding: Tensor | None = None):
        with torch.inference_mode():
            if self.cache is not None:
                return self.model(tokens, state, padding=padding), state
            past, padding = state[0], state[1] if padding is None else padding
            seen = torch.cat([past, tokens], dim=1)
            logits = self.model(seen, padding=padding)[:, past.shape[1] :]
            return logits, (seen, padding)

    def truncate(self, state, length: int):
        if self.cache is not None:
            state.truncate(length)
            return state
        seen, padding = state
        if type(length) is not int or not 0 <= length <= seen.shape[1]:
            raise ValueError(f"cannot keep {length!r} tokens of {seen.shape[1]}")
        return seen[:, :length], padding if length else None

    def to_float64(self) -> "KvlibDecoder":
        return KvlibDecoder(copy.deepcopy(self.model).double(), self.cache)


class HFDecoder:
    """A Hugging Face causal language model with its own dynamic or static cache."""

    def __init__(self, model, cache: str):
        if cache not in ("dynamic", "static"):
            raise ValueError(f"no cache {cache!r}; choose 'dynamic' or 'static'")
        self.model, self.cache = model, cache
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        # only learned positions end: rotary ones go on past the length a model was trained at
        self.block_size = getattr(config, "n_positions", None)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def start(self, batch: int, capacity: int):
        from transformers import DynamicCache, StaticCache

        config = self.model.config
        if self.cache == "static":
            return StaticCache(config=config, max_cache_len=capacity), 0
        return DynamicCache(config=config), 0

    def step(self, tokens: Tensor, state):
        cache, length = state
        end = length + tokens.shape[1]
        with torch.inference_mode():
            out = self.model(tokens, **{self.argument: cache}, use_cache=True)
        return out.logits, (cache, end)

    @property
    def argument(self) -> str:
        return "past_key_values"

    def to_float64(self) -> "HFDecoder":
        return HFDecoder(copy.deepcopy(self.model).double(), self.cache)


class PastDecoder:
    """A function in tuple-of-past style: fn(tokens, past) -> (logits, past), past None at first."""

    device = torch.device("cpu")

    def __init__(self, fn: Callable, vocab_size: int, block_size: int | None):
        self.fn, self.vocab_size, self.block_size = fn, vocab_size, block_size

    def start(self, batch: int, capacity: int):
        return None

    def step(self, tokens: Tensor, state):
        with torch.inference_mode():
            return self.fn(tokens, state)


def from_kvlib(model: GPT2, cache: str | None = "static") -> KvlibDecoder:
    """A Decoder of our model with cache "static" or "growing"; None recomputes everything."""
    return KvlibDecoder(model, cache)


def from_hf(hf_model, cache: str = "dynamic") -> HFDecoder:
    """A Decoder of any Hugging Face causal language model, with cache "dynamic" or "static"."""
    return HFDecoder(hf_model, cache)


def from_past(fn: Callable, *, vocab_size: int, block_size: int | None = None) -> PastDecoder:
    """A Decoder of fn(tokens, past) -> (logits, past); `past` is None with the first tokens."""
    return PastDecoder(fn, vocab_size, block_size)
