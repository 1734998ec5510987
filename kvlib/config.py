"""GPT-2's shape: the numbers everything else is derived from. Imports no torch."""

from dataclasses import dataclass, fields

PRESETS = {
    "nano": dict(block_size=256, n_layer=6, n_head=6, n_embd=192),
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
}


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a GPT-2: positions, vocabulary ids, layers, heads per layer, and width.

    Raises ValueError where a size is not a positive integer, or `n_head` does not divide `n_embd`.
    """

    block_size: int = 1024
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{field.name} must be a positive integer, not {value!r}")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd={self.n_embd} cannot be cut into n_head={self.n_head} equal heads; "
                f"choose a width that is a multiple of {self.n_head}"
            )

    @property
    def head_dim(self) -> int:
        """Numbers in one head's query, key or value, per token."""
        return self.n_embd // self.n_head

    @classmethod
    def preset(cls, name: str) -> "GPT2Config":
        """The published configuration called `name`; ValueError lists the names there are."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
        return cls(**PRESETS[name])
