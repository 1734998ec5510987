"""The small model that the tests of a decode step share, and its prompts."""

import torch

from kvlib import GPT2Config

CONFIG = GPT2Config(block_size=40, vocab_size=58, n_layer=2, n_head=4, n_embd=32)


def prompt(length: int, rows: int = 1) -> torch.Tensor:
    """Token ids (rows, length), the same for the same numbers."""
    return torch.randint(58, (rows, length), generator=torch.Generator().manual_seed(length))
