"""One decode step, with everything that does not depend on the tokens made beforehand.

A step's time is the reading of the weights plus the price of calling things: modules, their
attributes, views of weights. None of those depends on the tokens, so a `Step` makes them once. What
is left are the operators of the model, in its order, on its numbers: the same logits to the bit. It
may also read the weights in fewer bytes, and then the logits differ: `parity` says by how much.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import GPT2, MLP, Attention, Block, Linear
from .product import multiplier

PLAIN = (Attention, Block, GPT2, Linear, MLP, nn.Embedding, nn.LayerNorm, nn.ModuleList)
PACKED_ROWS = 4  # with fewer the product of the weight as it lies is as fast
Rows = Callable[[Tensor], Tensor]  # (B, 1, in) to (B, 1, out)


class Step:
    """`Step(model)(tokens, cache)` is `model(tokens, cache, last_only=True)`: logits (B, 1, V).

    It is faster for one token a sequence, in float32 on a CPU, without gradients; anything else is
    left to the model, and so is a model whose modules have been replaced or have hooks. `form` says
    how a step reads the matrices: "float32", the model's own; "packed", float32 copies in the
    layout that oneDNN likes, for batches of four and more; "float16" or "int8", copies in a half
    or a quarter of the bytes. Weights that were changed or moved are looked up, or packed, anew.

    Raises ValueError for an unknown form, and for one that this processor's PyTorch has not.
    """

    def __init__(self, model: GPT2, form: str = "float32"):
        check_form(form)
        self.model, self.form = model, FORMS[form]
        modules = list(model.modules())
        self.plain = all(type(module) in PLAIN for module in modules)
        self.hooks = [h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)]
        self.weights = [module._parameters for module in modules]
        self.seen: list = []  # the threads, where each weight was and how often written, back then

    def __call__(self, tokens: Tensor, cache) -> Tensor:
        if not self.fits(tokens, cache):
            return self.model(tokens, cache, last_only=True)
        now: list = [torch.get_num_threads()]  # the views depend on it too
        for own in self.weights:
            now += [(p.data_ptr(), p._version) for p in own.values() if p is not None]
        if now != self.seen:
            self.prepare()
            self.seen = now
        B, config = len(tokens), self.model.config
        x, mask, cache.padding = self.model.embed(tokens, cache)
        for layer, (norm_1, attn, proj, norm_2, up, down) in enumerate(self.layers):
            qkv = attn(norm_1(x)).view(B, 1, 3, config.n_head, config.head_dim)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            k, v = cache.update(layer, k, v)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + proj(y.reshape(B, 1, -1))
            x = x + down(F.gelu(up(norm_2(x)), approximate="tanh"))
        cache.advance(1)
        return self.head(self.last(x))

    def fits(self, tokens: Tensor, cache) -> bool:
        """Whether the prepared step may stand in for the model here."""
        weight = self.model.wte.weight
        return (
            self.plain
            and cache is not None
            and tokens.dim() == 2
            and tokens.shape[1] == 1
            and weight.is_cpu
            and weight.dtype == torch.float32
            and not weight.is_inference()
            and not torch.is_grad_enabled()
            and not any(self.hooks)
        )

    def prepare(self) -> None:
        """Look up every layer's weights, each as a function of the row that it multiplies."""
        self.layers: list[tuple[Rows, ...]] = []
        for block in self.model.h:
            assert isinstance(block, Block)
            attn, mlp = block.attn, block.mlp
            first = norm(block.ln_1), self.form(attn.c_attn), self.form(attn.c_proj)
            second = norm(block.ln_2), self.form(mlp.c_fc), self.form(mlp.c_proj)
            self.layers.append((*first, *second))
        self.last, self.head = norm(self.model.ln_f), self.form(self.model.wte)


def norm(module: nn.LayerNorm) -> Rows:
    """The layer norm without the module around it."""
    how = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, *how)


def float32(module: nn.Linear | nn.Embedding) -> Rows:
    """The product of `product.linear`; its views of the weight are made once a number of rows."""
    weight, bias = module.weight, getattr(module, "bias", None)
    by_rows, n_in = functools.cache(functools.partial(multiplier, weight, bias)), weight.shape[1]
    return lambda x: by_rows(x.numel() // n_in)(x)


def packed(module: nn.Linear | nn.Embedding) -> Rows:
    """The product with a copy of the weight in blocks, which oneDNN reads once for several rows.

    Fewer than PACKED_ROWS take the product of `float32`.
    """
    if not torch.backends.mkldnn.is_available():
        raise ValueError("packed weights need PyTorch with oneDNN; use 'float32' here")
    few, bias, n_in = float32(module), getattr(module, "bias", None), module.weight.shape[1]
    weight = torch.ops.mkldnn._reorder_linear_weight.default(module.weight.detach())
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def rows(x: Tensor) -> Tensor:
        if x.numel() < PACKED_ROWS * n_in:
            return few(x)
        return multiply(x, weight, bias, "none", [], "")

    return rows


def float16(module: nn.Linear | nn.Embedding) -> Rows:
    """The product with a float16 copy of the weight; rows, sums and result stay float32."""
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    weight = torch.ops.quantized.linear_prepack_fp16(module.weight, getattr(module, "bias", None))
    return lambda x: multiply(x, weight)


def int8(module: nn.Linear | nn.Embedding) -> Rows:
    """The product with an int8 copy of the weight, a scale an output; the rows are rounded too.

    Without AVX-512's integer products, pairs of 8-bit products are summed in 16 bits, which full
    range would overflow: hence `reduce_range`, 7 bits for the rows.
    """
    if torch.backends.quantized.engine not in ("x86", "fbgemm"):
        raise ValueError(
            f"int8 weights need PyTorch's x86 engine, not {torch.backends.quantized.engine!r}; "
            "use 'float16' or 'float32' on this processor"
        )
    weight, bias = module.weight.detach(), getattr(module, "bias", None)
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127  # (out, 1)
    rounded, zeros = (weight / scale).round().to(torch.int8), torch.zeros(len(weight)).long()
    made = torch._make_per_channel_quantized_tensor(rounded, scale[:, 0].double(), zeros, 0)
    ready = torch.ops.quantized.linear_prepack(made, bias)
    multiply = torch.ops.quantized.linear_dynamic.default
    return lambda x: multiply(x, ready, reduce_range=True)


def check_form(form: str) -> None:
    """Raise ValueError for a form of weights that there is not."""
    if form not in FORMS:
        raise ValueError(f"no form of weights {form!r}; choose one of {', '.join(FORMS)}")


FORMS = {"float32": float32, "packed": packed, "float16": float16, "int8": int8}
