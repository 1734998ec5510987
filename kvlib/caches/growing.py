"""A cache that grows by concatenation: the simplest thing that is right."""

import torch
from torch import Tensor

from ..config import GPT2Config
from .base import Rows


class GrowingCache(Rows):
    """A cache that holds exactly the rows it was given, copying all of them at every step.

    There is no capacity to exceed and none to waste. The price is in `update`: old and new rows
    are copied into a new tensor, so while a layer grows its old and new copies exist at once.
    """

    def __init__(
        self,
        config: GPT2Config,
        batch: int = 1,
        *,
        device="cpu",
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(config, batch, None, device, dtype)
        self.drop(0)

    @property
    def nbytes(self) -> int:
        """Bytes of key and value storage now held, all layers together."""
        return sum(rows.nbytes for rows in (*self.keys, *self.values))

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of `layer`, (B, H, length + T, D) each, with these T appended."""
        self.check(k, v)
        self.keys[layer] = torch.cat([self.keys[layer][:, :, : self.length], k], dim=2)
        self.values[layer] = torch.cat([self.values[layer][:, :, : self.length], v], dim=2)
        return self.keys[layer], self.values[layer]

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.drop(length)

    def drop(self, length: int) -> None:
        """Hold copies of the first `length` rows, so that the memory of the rest is given back."""
        if not length:
            shape = (self.batch, self.config.n_head, 0, self.config.head_dim)
            empty = torch.empty(shape, device=self.device, dtype=self.dtype)
            self.keys = [empty] * self.config.n_layer
            self.values = [empty] * self.config.n_layer
            return
        self.keys = [k[:, :, :length].clone() for k in self.keys]
        self.values = [v[:, :, :length].clone() for v in self.values]
