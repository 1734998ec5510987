"""A cache allocated once, at full capacity, and written in place."""

import torch
from torch import Tensor

from ..config import GPT2Config
from .base import Rows


class StaticCache(Rows):
    """A cache of `capacity` rows (None: the model's `block_size`), allocated here and never again.

    A step writes one row a layer and copies nothing. Rows past `length` hold whatever was there
    before and are never returned. Holds exactly `costs.cache_bytes(config, capacity, batch)` bytes.
    """

    def __init__(
        self,
        config: GPT2Config,
        batch: int = 1,
        capacity: int | None = None,
        *,
        device="cpu",
        dtype: torch.dtype = torch.float32,
    ):
        rows = config.block_size if capacity is None else capacity
        super().__init__(config, batch, rows, device, dtype)
        shape = (config.n_layer, batch, config.n_head, rows, config.head_dim)
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of key and value storage held, all layers together: the same at every length."""
        return self.keys.nbytes + self.values.nbytes

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of `layer`, (B, H, length + T, D) views, with these T written."""
        self.check(k, v)
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
