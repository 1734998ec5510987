"""One decode step of one sequence, with everything that does not depend on the token made before.

A step's time is the reading of the weights plus the price of calling things: modules, their
attributes, views of weights. None of those depends on the token, so a `Step` makes them once. What
is left are the operators of the model, in its order, on its numbers: the same logits to the bit.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import GPT2, MLP, Attention, Block, Linear
from .product import slices

PLAIN = (Attention, Block, GPT2, Linear, MLP, nn.Embedding, nn.LayerNorm, nn.ModuleList)


class Step:
    """`Step(model)(tokens, cache)` is `model(tokens, cache, last_only=True)`: logits (B, 1, V).

    It is faster for one token of one sequence, in float32 on two or more threads of a CPU, without
    gradients; anything else is left to the model, and so is a model whose modules have been
    replaced or have hooks. It holds views of the weights, no copies: a change in place is seen, and
    weights that moved are looked up anew.
    """

    def __init__(self, model: GPT2):
        self.model = model
        self.plain = all(type(module) in PLAIN for module in model.modules())
        self.hooks = [
            hooks for m in model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)
        ]
        self.layers: list[tuple] = []

    def __call__(self, tokens: Tensor, cache) -> Tensor:
        if not self.fits(tokens, cache):
            return self.model(tokens, cache, last_only=True)
        if not self.layers or self.head[0].data_ptr() != self.model.wte.weight.data_ptr():
            self.prepare()
        config = self.model.config
        heads = (1, 1, 3, config.n_head, config.head_dim)
        x, mask, cache.padding = self.model.embed(tokens, cache)
        for layer, (norm_1, attn, proj, norm_2, up, down) in enumerate(self.layers):
            q, k, v = row(normal(x, norm_1), attn).view(heads).permute(2, 0, 3, 1, 4)
            k, v = cache.update(layer, k, v)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + row(y.reshape(1, 1, -1), proj)
            x = x + row(F.gelu(row(normal(x, norm_2), up), approximate="tanh"), down)
        cache.advance(1)
        return row(normal(x, self.last), self.head)

    def fits(self, tokens: Tensor, cache) -> bool:
        """Whether the prepared step may stand in for the model here."""
        weight = self.model.wte.weight
        return (
            self.plain
            and cache is not None
            and tokens.shape == (1, 1)
            and weight.is_cpu
            and weight.dtype == torch.float32
            and torch.get_num_threads() > 1
            and not torch.is_grad_enabled()
            and not any(self.hooks)
        )

    def prepare(self) -> None:
        """Look up the weights of every layer, each as the operators want it."""
        self.layers = []
        for block in self.model.h:
            assert isinstance(block, Block)
            attn, mlp = block.attn, block.mlp
            first = norm(block.ln_1), cut(attn.c_attn), cut(attn.c_proj)
            self.layers.append((*first, norm(block.ln_2), cut(mlp.c_fc), cut(mlp.c_proj)))
        self.last, self.head = norm(self.model.ln_f), cut(self.model.wte)


def norm(module: nn.LayerNorm) -> tuple:
    """The arguments of `torch.layer_norm` after the first."""
    return module.normalized_shape, module.weight, module.bias, module.eps


def normal(x: Tensor, how: tuple) -> Tensor:
    return torch.layer_norm(x, *how)


def cut(module: nn.Linear | nn.Embedding) -> tuple[Tensor, Tensor | None]:
    """Slices of a weight (parts, in, out / parts) and of its bias, as `product.linear` has them."""
    weight, bias = module.weight, getattr(module, "bias", None)
    parts = slices(len(weight), torch.get_num_threads())
    slabs = weight.view(parts, -1, weight.shape[1]).transpose(1, 2)
    return slabs, None if bias is None else bias.view(parts, 1, -1)


def row(x: Tensor, slabs: tuple[Tensor, Tensor | None]) -> Tensor:
    """A row (1, 1, in) times the slices of one weight, plus its bias: (1, 1, out)."""
    weight, bias = slabs
    x = x.expand(len(weight), 1, -1)
    y = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)
    return y.view(1, 1, -1)
