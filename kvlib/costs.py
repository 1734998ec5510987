"""What a model must hold, read and compute: exact integers from its configuration. No torch here.

A multiplication and the addition that follows count as two floating-point operations (FLOPs). Only
matrix products are counted, and scores over the whole square of queries by keys, as torch's own
counter does; a kernel that skips the masked half does fewer.
"""

from dataclasses import dataclass
from typing import Any

from .config import GPT2Config
from .shapes import Layer, positive, read

LARGEST = 2**63 - 1  # bytes: what a tensor's size, a signed 64-bit integer, can say


@dataclass(frozen=True)
class Format:
    """How a number is stored: in `bits`, and `scale_bytes` more for each group of `group` numbers.

    `group` None: one group a vector, that is, a head's key or value of one token.
    """

    bits: int
    group: int | None = None
    scale_bytes: int = 0

    def vector_bytes(self, length: int) -> int:
        """Whole bytes of one vector of `length` numbers and its scales."""
        group = self.group or length
        if length % group:
            raise ValueError(
                f"a vector of {length} numbers cannot be cut into groups of {group} with a scale "
                f"each; choose a format whose group divides {length}"
            )
        return -(-length * self.bits // 8) + length // group * self.scale_bytes


FORMATS = {
    "float64": Format(64),
    "float32": Format(32),
    "float16": Format(16),
    "bfloat16": Format(16),
    "float8": Format(8),  # one scale for a whole tensor, which no token adds to
    "int8": Format(8, None, 4),  # a float32 scale a vector
    "int4": Format(4, 32, 4),  # a float16 scale and zero point for 32 numbers
    "q8_0": Format(8, 32, 2),  # llama.cpp's cache types: a float16 scale for 32 numbers
    "q4_0": Format(4, 32, 2),
}


def number_format(dtype: "str | Format | None", dtype_bytes: int = 4) -> Format:
    """The Format named `dtype`; without a name, plain numbers of `dtype_bytes` each."""
    if dtype is None:
        positive(dtype_bytes=dtype_bytes)
        return Format(8 * dtype_bytes)
    if isinstance(dtype, Format):
        positive(bits=dtype.bits)
        return dtype
    name = str(dtype).removeprefix("torch.")
    if name not in FORMATS:
        raise ValueError(f"no dtype {name!r}; choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def parameters(config: GPT2Config) -> int:
    """Number of parameters, the tied head counted once with the token embedding."""
    C = config.n_embd
    block = 2 * 2 * C + (3 * C * C + 3 * C) + (C * C + C) + (4 * C * C + 4 * C) + (4 * C * C + C)
    return (config.vocab_size + config.block_size) * C + config.n_layer * block + 2 * C


def weight_bytes(config: GPT2Config, dtype_bytes: int = 4) -> int:
    """Bytes of all parameters."""
    positive(dtype_bytes=dtype_bytes)
    return parameters(config) * dtype_bytes


def layer_bytes_per_token(layer: Layer, numbers: Format) -> int:
    """Bytes of the vectors that one layer stores for one token of one sequence."""
    return sum(count * numbers.vector_bytes(length) for count, length in layer.vectors)


def cache_bytes_per_token(
    config: Any, dtype_bytes: int = 4, *, dtype: str | Format | None = None
) -> int:
    """Bytes of keys and values that one token of one sequence adds, all layers together.

    2 (a key and a value) x layers x key-value heads x head dim x bytes a number; in GPT-2 heads x
    head dim is the width. A windowed layer counts until its window is full. `config` is anything
    that `shapes.read` takes; `dtype` names a format with or without scales, in place of
    `dtype_bytes`.
    """
    numbers = number_format(dtype, dtype_bytes)
    return sum(layer_bytes_per_token(layer, numbers) for layer in read(config).layers)


def cache_bytes_per_tensor(
    config: Any,
    tokens: int,
    batch: int = 1,
    dtype_bytes: int = 4,
    *,
    dtype: str | Format | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Bytes of each tensor in each layer for `batch` sequences of `tokens` tokens.

    A layer's tensors are its keys and its values, or the latents and the rotary keys; none where it
    reads another layer's. A layer with a window holds no more tokens than its window. ValueError
    past 2**63 - 1 bytes.
    """
    positive(tokens=tokens, batch=batch)
    numbers = number_format(dtype, dtype_bytes)
    held = tuple(
        tuple(
            batch * min(tokens, layer.window or tokens) * count * numbers.vector_bytes(length)
            for count, length in layer.vectors
        )
        for layer in read(config).layers
    )
    total = sum(map(sum, held))
    if total > LARGEST:
        raise ValueError(
            f"{tokens} tokens x {batch} sequences are {total} bytes, more than a size can say "
            f"({LARGEST}); ask for fewer"
        )
    return held


def cache_bytes_per_layer(
    config: Any,
    tokens: int,
    batch: int = 1,
    dtype_bytes: int = 4,
    *,
    dtype: str | Format | None = None,
) -> tuple[int, ...]:
    """Bytes of keys and values in each layer for `batch` sequences of `tokens` tokens.

    A layer with a window holds no more tokens than its window. ValueError past 2**63 - 1 bytes.
    """
    tensors = cache_bytes_per_tensor(config, tokens, batch, dtype_bytes, dtype=dtype)
    return tuple(map(sum, tensors))


def cache_bytes(
    config: Any,
    tokens: int,
    batch: int = 1,
    dtype_bytes: int = 4,
    *,
    dtype: str | Format | None = None,
) -> int:
    """Bytes of keys and values for `batch` sequences of `tokens` tokens, all layers together."""
    return sum(cache_bytes_per_layer(config, tokens, batch, dtype_bytes, dtype=dtype))


def most_tokens(
    config: Any, budget_bytes: int, batch: int = 1, *, dtype: str | Format = "float32"
) -> int | None:
    """Most tokens a sequence whose cache, for `batch` sequences, fits `budget_bytes`; 0 for none.

    None where no number is too large: every layer has a window, and all windows fit. The answer
    ignores how many positions the model has.
    """
    positive(batch=batch)
    if type(budget_bytes) is not int or budget_bytes > LARGEST:
        raise ValueError(f"budget_bytes must be an integer up to {LARGEST}, not {budget_bytes!r}")
    numbers, layers = number_format(dtype), read(config).layers
    each = [(layer_bytes_per_token(layer, numbers), layer.window) for layer in layers]
    windows = sorted(window for size, window in each if window and size)
    for last in [*windows, None]:  # between two windows the bytes are a straight line
        full = sum(
            size * window for size, window in each if window and (last is None or window < last)
        )
        rate = sum(
            size for size, window in each if not window or (last is not None and window >= last)
        )
        if rate == 0:
            return None
        tokens = max(0, budget_bytes // batch - full) // rate
        if last is None or tokens < last:
            return tokens
    return None


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
