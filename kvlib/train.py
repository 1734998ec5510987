"""Train a small GPT-2 from scratch on a laptop's processor, and say what it has learnt."""

import hashlib
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm.auto import tqdm

from .config import GPT2Config
from .model import GPT2

ADAM_LR, MUON_LR, WARMUP_STEPS = 2e-3, 3e-3, 100


def compact(ids: Tensor, seen: Tensor) -> Tensor:
    """Row of each id among the sorted `seen` ids; the row after the last for any other id."""
    row = torch.searchsorted(seen, ids).clamp(max=len(seen) - 1)
    return torch.where(seen[row] == ids, row, len(seen))


def loss(model: GPT2, rows: Tensor, unseen: int) -> Tensor:
    """Mean next-token loss of `rows` (B, T+1), in nats a token, over the *full* vocabulary.

    All `unseen` ids share the last row of the compact embedding. Adding log(unseen) to its logit
    counts it once for each of them, so the softmax equals the one over every id, at a third of
    the cost.
    """
    head = model.wte.weight
    share = head.new_zeros(len(head))
    share[-1] = math.log(unseen)
    logits = F.linear(model.hidden(rows[:, :-1]).flatten(0, 1), head, share)
    return F.cross_entropy(logits, rows[:, 1:].flatten())


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal: Muon (Jordan et al. 2024), in float32.

    torch's own Muon multiplies in bfloat16, which a processor without bfloat16 units does so slowly
    that the optimiser would take twice as long as the rest of the step. The update is scaled to the
    size of AdamW's (Liu et al. 2025), so that one learning rate means the same for both.
    """

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("momentum", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(average, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-0.2 * group["lr"] * math.sqrt(max(p.shape)))


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """The matrix with its singular values pushed towards 1, by Newton-Schulz iterations."""
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


def optimisers(model: GPT2) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings, norms and biases."""
    matrices = [p for p in model.h.parameters() if p.dim() == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    adamw = torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [Muon(matrices, lr=MUON_LR), adamw]


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate at `step`: linear warm-up, then half a cosine down to 5%."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def batch(ids: Tensor, size: int, length: int, step: int, seed: int) -> Tensor:
    """`size` random windows of length + 1 ids: (B, T+1); a function of step and seed alone."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(ids) - length, (size, 1), generator=random)
    return ids[starts + torch.arange(length + 1)]


@torch.no_grad()
def held_out_loss(model: GPT2, ids: Tensor, unseen: int, windows: int = 16) -> float:
    """Loss in nats a token on `windows` evenly spaced windows of the held-out ids."""
    T = model.config.block_size
    starts = torch.linspace(0, len(ids) - T - 1, windows).long()
    return float(loss(model, torch.stack([ids[s : s + T + 1] for s in starts]), unseen))


def train(
    ids: dict[str, Tensor],
    out: Path,
    *,
    config: GPT2Config | None = None,
    steps: int = 2400,
    batch_size: int = 8,
    seed: int = 0,
    save_every: int = 100,
) -> GPT2:
    """The model after `steps` steps on `ids["train"]`, its full vocabulary restored.

    `out` receives `checkpoint.pt` and `curve.jsonl`; a run that was stopped goes on from them, and
    gives the same weights as one that was not. `ids["held_out"]` is only ever evaluated.
    """
    config = config or GPT2Config.preset("nano")
    seen = torch.unique(torch.cat([ids["train"], ids["held_out"]]))
    unseen = config.vocab_size - len(seen)
    small = GPT2Config(**{**vars(config), "vocab_size": len(seen) + 1})
    train_ids, held_ids = compact(ids["train"], seen), compact(ids["held_out"], seen)
    model = GPT2(small)
    model.initialise(seed)
    opts = optimisers(model)
    out.mkdir(parents=True, exist_ok=True)
    first = resume(out, model, opts)
    began = time.perf_counter()
    for step in tqdm(range(first, steps), initial=first, total=steps, unit="step"):
        train_loss = one_step(
            model,
            opts,
            batch(train_ids, batch_size, config.block_size, step, seed),
            unseen,
            schedule(step, steps),
        )
        if (step + 1) % save_every == 0 or step + 1 == steps:
            row = dict(
                step=step + 1, train=train_loss, held_out=held_out_loss(model, held_ids, unseen)
            )
            row["seconds"] = round(time.perf_counter() - began, 1)
            save(out, model, opts, step + 1)
            with open(out / "curve.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
    full = restore_vocabulary(model, seen, config)
    silence(full, seen, ids["train"])
    return full


def one_step(model: GPT2, opts: list, rows: Tensor, unseen: int, share: float) -> float:
    """Loss in nats a token before the step that it takes; gradients clipped to norm 1."""
    value = loss(model, rows, unseen)
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for opt, peak in zip(opts, (MUON_LR, ADAM_LR), strict=True):
        for group in opt.param_groups:
            group["lr"] = peak * share
        opt.step()
        opt.zero_grad(set_to_none=True)
    return float(value.detach())


def save(out: Path, model: GPT2, opts: list, step: int) -> None:
    """Write the checkpoint beside the old one, then put it in its place."""
    state = dict(step=step, model=model.state_dict(), opts=[opt.state_dict() for opt in opts])
    torch.save(state, out / "checkpoint.tmp")
    (out / "checkpoint.tmp").replace(out / "checkpoint.pt")


def resume(out: Path, model: GPT2, opts: list) -> int:
    """The step to go on from: 0, or that of the checkpoint in `out`, whose state is loaded."""
    if not (out / "checkpoint.pt").exists():
        return 0
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    for opt, saved in zip(opts, state["opts"], strict=True):
        opt.load_state_dict(saved)
    return state["step"]


@torch.no_grad()
def restore_vocabulary(model: GPT2, seen: Tensor, config: GPT2Config) -> GPT2:
    """`model` with every id again: the rows of seen ids in place, one row for all others."""
    full = GPT2(config).eval()
    state = model.state_dict()
    rows = state.pop("wte.weight")
    full.load_state_dict(state, strict=False)
    full.wte.weight[:] = rows[-1]
    full.wte.weight[seen] = rows[:-1]
    return full


@torch.no_grad()
def silence(model: GPT2, seen: Tensor, ids: Tensor, windows: int = 64, logit: float = -90) -> None:
    """Give the ids that are not `seen` a row with which they are never sampled.

    By least squares over the states after `windows` windows of text, its logit is near `logit`
    whatever was read; a small ridge keeps the row finite where the states do not span the space.
    """
    T = model.config.block_size
    starts = torch.linspace(0, len(ids) - T, windows).long()
    states = torch.cat([model.hidden(ids[None, s : s + T])[0] for s in starts])
    states = states.double()
    gram = states.T @ states / len(states) + 1e-3 * torch.eye(states.shape[1])
    row = torch.linalg.solve(gram, logit * states.mean(0)).float()
    unseen = torch.ones(model.config.vocab_size, dtype=torch.bool)
    unseen[seen] = False
    model.wte.weight[unseen] = row


def export(model: GPT2, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` (float16) into `folder`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(vars(model.config), indent=2) + "\n")
    state = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")


def add_arguments(parser) -> None:
    """The options of `python -m kvlib train`."""
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint and model")
    parser.add_argument("--data", type=Path, help="folder for the text (default: the same)")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=8, help="windows of 256 tokens a step")
    parser.add_argument("--seed", type=int, default=0)


def record(model_file: Path, out: Path, ids: dict[str, Tensor], settings: dict) -> dict:
    """What the model card says: source, settings, curve, machine, and quality on held-out text."""
    from . import corpus, machine, weights
    from .quality import report

    model = weights.load_folder(model_file.parent)
    curve = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    return dict(
        source=corpus.PACKAGE,
        source_sha256=corpus.SHA256,
        held_out=corpus.HELD_OUT,
        tokens={split: len(split_ids) for split, split_ids in ids.items()},
        settings=settings,
        parameters=sum(p.numel() for p in model.parameters()),
        file_bytes=model_file.stat().st_size,
        file_sha256=hashlib.sha256(model_file.read_bytes()).hexdigest(),
        machine=machine.facts(),
        quality=report(model, ids["train"], ids["held_out"]),
        curve=curve,
    )


def main(args) -> int:
    """Fetch the text, train or resume, and write the model to `out`/model."""
    from . import corpus

    args.out.mkdir(parents=True, exist_ok=True)
    ids = corpus.tokens(corpus.fetch(args.data or args.out))
    for split, tokens in ids.items():
        print(f"{split}: {len(tokens):,} tokens")
    model = train(ids, args.out, steps=args.steps, batch_size=args.batch, seed=args.seed)
    export(model, args.out / "model")
    settings = dict(steps=args.steps, batch=args.batch, seed=args.seed)
    settings.update(adamw_lr=ADAM_LR, muon_lr=MUON_LR, warmup_steps=WARMUP_STEPS)
    found = record(args.out / "model" / "model.safetensors", args.out, ids, settings)
    (args.out / "model" / "training.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, value in found["quality"].items():
        print(f"{name}: {value:.3f}")
    print(f"wrote {args.out / 'model'}; python -m kvlib generate 'ROMEO.' --model {args.out}/model")
    return 0
