"""What every cache promises, and the part that all of them share."""

from typing import Protocol

import torch
from torch import Tensor

from ..config import GPT2Config


class Cache(Protocol):
    """Keys and values of the tokens read so far, for every layer of one model.

    `length` alone defines the content. `update` writes at `length` and returns old rows and new;
    only `advance` moves `length`, once per forward pass, after the last layer. So a pass that fails
    halfway leaves the cache meaning what it meant, and a retry writes over what it left.
    """

    length: int
    padding: Tensor | None
    capacity: int | None

    @property
    def position(self) -> int | Tensor: ...
    @property
    def nbytes(self) -> int: ...
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...
    def advance(self, tokens: int) -> None: ...
    def truncate(self, length: int) -> None: ...
    def reset(self) -> None: ...


class Rows:
    """Length, position and checks of a cache whose rows are the tokens themselves, in order."""

    def __init__(self, config: GPT2Config, batch: int, capacity: int | None, device, dtype):
        for name, value in (("batch", batch), ("capacity", capacity)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a positive integer, not {value!r}")
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, not {dtype}")
        self.config, self.batch, self.capacity = config, batch, capacity
        self.device, self.dtype = torch.empty(0, device=device).device, dtype  # "cuda" -> "cuda:0"
        self.length = 0  # rows stored so far
        self.padding: Tensor | None = None  # (B,): leading rows of each sequence that are padding

    @property
    def position(self) -> int | Tensor:
        """The next token's position: `length`, or (B,) of `length - padding` in a ragged batch."""
        return self.length if self.padding is None else self.length - self.padding

    def advance(self, tokens: int) -> None:
        """Count `tokens` rows, which every layer has now written, as stored."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows, 0 to all; the rest is as if never stored."""
        if type(length) is not int or not 0 <= length <= self.length:
            raise ValueError(
                f"cannot keep {length!r} rows of {self.length}; "
                f"give an integer from 0 to {self.length}"
            )
        self.length = length
        if not length:
            self.padding = None

    def reset(self) -> None:
        """Forget everything: the cache is as good as new."""
        self.truncate(0)

    def check(self, k: Tensor, v: Tensor) -> None:
        """Raise ValueError or IndexError where rows `k` and `v` do not belong in this cache."""
        tokens = k.shape[2] if k.dim() == 4 else 1
        shape = (self.batch, self.config.n_head, tokens, self.config.head_dim)
        for name, rows in (("k", k), ("v", v)):
            if tuple(rows.shape) != shape:
                raise ValueError(
                    f"{name} has shape {tuple(rows.shape)} where this cache takes {shape}, "
                    "(batch, heads, tokens, head dim); make the cache for this model and batch"
                )
            expect(rows, self.dtype, self.device)
        if self.capacity is not None and self.length + tokens > self.capacity:
            raise IndexError(
                f"{self.length} stored + {tokens} new rows exceed capacity {self.capacity}; "
                "make the cache larger, truncate it, or generate with on_limit='reprefill'"
            )


def expect(rows: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError where `rows` are of another dtype or on another device than the cache."""
    if rows.dtype != dtype:
        raise ValueError(
            f"rows are {rows.dtype}, the cache {dtype}; make it with the model's dtype"
        )
    if rows.device != device:
        raise ValueError(f"rows are on {rows.device}, the cache on {device}; make it there")
