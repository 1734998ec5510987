"""What a model must hold, read and compute: exact integers from its configuration. No torch here.

A multiplication and the addition that follows count as two floating-point operations (FLOPs). Only
matrix products are counted, and scores over the whole square of queries by keys, as torch's own
counter does; a kernel that skips the masked half does fewer.
"""

from .config import GPT2Config


def positive(**sizes: int) -> None:
    """Raise ValueError, naming the first of `sizes` that is not a positive integer."""
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a positive integer, not {value!r}")


def parameters(config: GPT2Config) -> int:
    """Number of parameters, the tied head counted once with the token embedding."""
    C = config.n_embd
    block = 2 * 2 * C + (3 * C * C + 3 * C) + (C * C + C) + (4 * C * C + 4 * C) + (4 * C * C + C)
    return (config.vocab_size + config.block_size) * C + config.n_layer * block + 2 * C


def weight_bytes(config: GPT2Config, dtype_bytes: int = 4) -> int:
    """Bytes of all parameters."""
    positive(dtype_bytes=dtype_bytes)
    return parameters(config) * dtype_bytes


def cache_bytes_per_token(config: GPT2Config, dtype_bytes: int = 4) -> int:
    """Bytes of keys and values that one token of one sequence adds, all layers together.

    2 (a key and a value) x layers x width x bytes a number: the heads of a layer share its width.
    """
    positive(dtype_bytes=dtype_bytes)
    return 2 * config.n_layer * config.n_embd * dtype_bytes


def cache_bytes(config: GPT2Config, tokens: int, batch: int = 1, dtype_bytes: int = 4) -> int:
    """Bytes of keys and values for `batch` sequences of `tokens` tokens."""
    positive(tokens=tokens, batch=batch)
    return tokens * batch * cache_bytes_per_token(config, dtype_bytes)


def forward_flops(config: GPT2Config, tokens: int, stored: int, heads_at: int) -> int:
    """FLOPs of one pass over `tokens` new tokens that read `stored` keys (the new ones included).

    `heads_at` is how many of the new positions the logits are computed for.
    """
    C, L = config.n_embd, config.n_layer
    linear = 2 * tokens * (3 * C * C + C * C + 4 * C * C + 4 * C * C)  # q, k, v; out; up; down
    attention = 2 * 2 * tokens * stored * C  # scores, and the weighted sum of values
    return L * (linear + attention) + 2 * heads_at * C * config.vocab_size


def decode_flops(config: GPT2Config, context: int) -> int:
    """FLOPs of one cached decode step whose token reads `context` keys, its own included."""
    positive(context=context)
    return forward_flops(config, 1, context, 1)


def prefill_flops(config: GPT2Config, tokens: int, last_only: bool = True) -> int:
    """FLOPs of one pass over `tokens` tokens with nothing stored: a prefill, or an uncached step.

    Logits for the last position alone, as generation needs, or for all of them.
    """
    positive(tokens=tokens)
    return forward_flops(config, tokens, tokens, 1 if last_only else tokens)


def decode_bytes(config: GPT2Config, context: int, batch: int = 1, dtype_bytes: int = 4) -> int:
    """Bytes that one cached decode step must read: every weight once, and every stored row.

    Of the two embedding tables only the tied head is read whole; a token's own rows are counted
    with it, and the rest of the position table is not read.
    """
    unread = (config.block_size - 1) * config.n_embd * dtype_bytes
    weights = weight_bytes(config, dtype_bytes) - unread
    return weights + cache_bytes(config, context, batch, dtype_bytes)
