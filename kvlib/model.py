"""GPT-2 from scratch: embeddings, pre-norm blocks, tanh GELU, a tied head, and a seat for a cache.

Parameters carry the names of the published weights. Their matrices are stored (out, in), as
`nn.Linear` stores them; the published ones are (in, out) and are transposed on loading.

B batch, T tokens in this call, S stored plus new tokens, H heads, D head dim, C = H * D,
V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import GPT2Config
from .product import linear


class Linear(nn.Linear):
    """x @ weight.T + bias, by a product that is fast for few rows too."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Attention(nn.Module):
    """Causal self-attention: all heads of one layer, over the past that the cache gives back."""

    def __init__(self, config: GPT2Config, layer: int):
        super().__init__()
        self.n_head, self.layer = config.n_head, layer
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, cache, mask) -> Tensor:
        B, T, C = x.shape
        qkv = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        if cache is not None:
            k, v = cache.update(self.layer, k, v)  # (B, H, S, D)
        causal = mask is None and T > 1
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    """Two linear maps around GELU in its tanh form, the form GPT-2 was trained with."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention, then MLP; each reads a normalised copy and adds its result to the stream."""

    def __init__(self, config: GPT2Config, layer: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache, mask) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache, mask)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """The language model: token ids in, logits for the next token out."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.initialise()

    @torch.no_grad()
    def initialise(self, seed: int = 0) -> None:
        """Fill every parameter as GPT-2 did: normal(0, 0.02), residual projections / sqrt(2 L)."""
        device = self.wte.weight.device
        random = torch.Generator(device).manual_seed(seed) if device.type != "meta" else None
        for name, parameter in self.named_parameters():
            if ".ln_" in name or name.startswith("ln_") or name.endswith("bias"):
                parameter.fill_(name.endswith("weight"))
            else:
                residual = math.sqrt(2 * self.config.n_layer) if "c_proj" in name else 1.0
                parameter.normal_(0.0, 0.02 / residual, generator=random)

    def hidden(self, tokens: Tensor, cache=None, *, padding: Tensor | None = None) -> Tensor:
        """The final normalised stream (B, T, C), from which the head reads the logits."""
        x, mask, padding = self.embed(tokens, cache, padding)
        for block in self.h:
            x = block(x, cache, mask)
        if cache is not None:
            cache.advance(tokens.shape[1])
            cache.padding = padding
        return self.ln_f(x)

    def embed(self, tokens: Tensor, cache=None, padding: Tensor | None = None) -> tuple:
        """What the blocks are given: the stream (B, T, C), the mask or None, and the padding."""
        check_tokens(self.config, tokens, cache, padding)
        T = tokens.shape[1]
        past = cache.length if cache is not None else 0
        if past:
            padding = cache.padding
        position = cache.position if past else 0 if padding is None else -padding
        x = self.wte(tokens) + self.wpe(positions(position, T, tokens.device))  # (B, T, C)
        return x, attention_mask(T, past + T, padding, tokens.device), padding

    def forward(
        self,
        tokens: Tensor,
        cache=None,
        *,
        padding: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits (B, T, V) for the token after each of `tokens` (B, T); (B, 1, V) if `last_only`.

        With a cache, `tokens` continue what it holds and are appended to it. `padding` (B,) says
        how many leading tokens of each row are padding; it is given once, with the first tokens.

        Raises ValueError or IndexError, before anything is written, for tokens that are not int64
        (B, T), ids outside the vocabulary, positions past `block_size`, or a cache that does not
        fit.
        """
        x = self.hidden(tokens, cache, padding=padding)
        return linear(x[:, -1:] if last_only else x, self.wte.weight)


def positions(start, tokens: int, device) -> Tensor:
    """Position of each new token: (T,) for an int `start`, (B, T) for one start per row."""
    steps = torch.arange(tokens, device=device)
    if isinstance(start, Tensor):
        return (start[:, None] + steps).clamp(min=0)  # padding has no position of its own
    return steps + start


def attention_mask(tokens: int, stored: int, padding: Tensor | None, device) -> Tensor | None:
    """Which of the `stored` keys each new token may read, True for yes; None where SDPA knows.

    The new tokens are the *last* rows, so the causal diagonal starts at column stored - tokens.
    Shape (T, S), or (B, 1, T, S) with padding. A padding row reads itself, to stay finite.
    """
    if padding is None and (tokens == 1 or tokens == stored):
        return None
    causal = torch.ones(tokens, stored, dtype=torch.bool, device=device).tril(stored - tokens)
    if padding is None:
        return causal
    real = torch.arange(stored, device=device) >= padding[:, None]  # (B, S)
    itself = causal & ~causal.tril(stored - tokens - 1)
    return (causal & real[:, None, None, :]) | itself


def check_tokens(config: GPT2Config, tokens: Tensor, cache, padding: Tensor | None) -> None:
    """Raise ValueError or IndexError where a forward pass over `tokens` could not be right."""
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.dim() != 2:
        what = (tokens.dtype, tuple(tokens.shape)) if isinstance(tokens, Tensor) else type(tokens)
        raise ValueError(f"tokens must be an int64 tensor of shape (B, T), not {what}")
    B, T = tokens.shape
    if not B or not T:
        raise ValueError(f"tokens of shape {(B, T)} hold nothing; give at least one token a row")
    past = cache.length if cache is not None else 0
    if past + T > config.block_size:
        raise IndexError(
            f"{past} stored + {T} new tokens reach position {past + T - 1}, and the model has "
            f"{config.block_size} (block_size); truncate the cache or the prompt"
        )
    if tokens.device.type == "cpu":  # elsewhere reading a value would stop the device
        check_ids(tokens, config.vocab_size)
    if padding is None:
        return
    if past:
        raise ValueError(f"padding is given with the first tokens, not after {past} stored ones")
    if padding.dtype != torch.int64 or padding.shape != (B,):
        raise ValueError(
            f"padding must be int64 of shape ({B},), one count a row, "
            f"not {padding.dtype} {tuple(padding.shape)}"
        )
    if padding.device.type == "cpu":
        low, high = (int(bound) for bound in torch.aminmax(padding))
        if low < 0 or high >= config.block_size:
            raise ValueError(
                f"padding {low if low < 0 else high} is outside 0 to {config.block_size - 1}; "
                "it counts the leading tokens of a row that are not part of its text"
            )


def check_ids(tokens: Tensor, vocab_size: int) -> None:
    """Raise IndexError, naming the id, where one of `tokens` is no row of the embedding."""
    low, high = (int(bound) for bound in torch.aminmax(tokens))
    if low < 0 or high >= vocab_size:
        raise IndexError(
            f"token id {low if low < 0 else high} is outside 0 to {vocab_size - 1}; "
            "encode the text with the tokenizer this model was trained with"
        )
