"""GPT-2 with its past as inputs and outputs, exported once to an ONNX file."""

from pathlib import Path

import torch
from torch import Tensor, nn

from kvlib import load
from kvlib.model import GPT2


class WithPast(nn.Module):
    """One pass of a GPT2, keys and values handed in and out: (tokens, k, v, ...) -> (logits, ...).

    `tokens` is (B, T); each of the 2 L others (B, H, S, D). The logits are the last position's,
    (B, V). The mask is written out as comparisons, which any runtime has.
    """

    def __init__(self, model: GPT2):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, *past: Tensor):
        model, stored = self.model, past[0].shape[2]
        place = torch.arange(stored, stored + tokens.shape[1])
        allowed = torch.arange(stored + tokens.shape[1]) <= place[:, None]  # (T, S)
        x, rows = model.wte(tokens) + model.wpe(place), []
        for layer, block in enumerate(model.h):
            attn = block.attn
            parts = nn.functional.linear(block.ln_1(x), attn.c_attn.weight, attn.c_attn.bias)
            q, k, v = (
                part.unflatten(-1, (attn.n_head, -1)).transpose(1, 2)
                for part in parts.chunk(3, dim=-1)
            )
            k = torch.cat([past[2 * layer], k], dim=2)
            v = torch.cat([past[2 * layer + 1], v], dim=2)
            rows += [k, v]
            scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
            y = scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v
            out = nn.functional.linear(
                y.transpose(1, 2).flatten(2), attn.c_proj.weight, attn.c_proj.bias
            )
            x = x + out
            mlp = block.mlp
            up = nn.functional.linear(block.ln_2(x), mlp.c_fc.weight, mlp.c_fc.bias)
            up = nn.functional.gelu(up, approximate="tanh")
            x = x + nn.functional.linear(up, mlp.c_proj.weight, mlp.c_proj.bias)
        return nn.functional.linear(model.ln_f(x[:, -1]), model.wte.weight), *rows


def export(folder, path: Path) -> tuple[int, int, int]:
    """Layers, heads and head dim of the model in `folder`, once it is in the file `path`."""
    model = load(folder)
    config = model.config
    shape = config.n_layer, config.n_head, config.head_dim
    if path.exists():
        return shape
    path.parent.mkdir(parents=True)
    past = tuple(torch.zeros(2, config.n_head, 3, config.head_dim) for _ in range(2 * shape[0]))
    batch, new, old = (torch.export.Dim(name) for name in ("batch", "new", "old"))
    torch.onnx.export(
        WithPast(model).eval(),
        (torch.zeros(2, 2, dtype=torch.int64), *past),
        str(path),
        input_names=["tokens", *(f"past_{i}" for i in range(len(past)))],
        output_names=["logits", *(f"present_{i}" for i in range(len(past)))],
        dynamic_shapes=({0: batch, 1: new}, tuple({0: batch, 2: old} for _ in past)),
        dynamo=True,
        external_data=True,
    )
    return shape
