"""The least time of a decode step, from four measured speeds, and what its time is spent on.

A step calls a few hundred operators, reads every weight and every stored row, and multiplies. What
each of these takes at the least is predicted from speeds that are measured apart from any step.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from . import costs
from .caches import StaticCache
from .config import GPT2Config
from .model import GPT2
from .stopwatch import interleave


@dataclass(frozen=True)
class Speeds:
    """Four speeds of a machine, from which `step_s` predicts any decode step in seconds.

    `read`: bytes per second of a plain read. `product`: FLOPs per second of a large product.
    `attention`: bytes per second at which single queries read keys and values. `dispatch_s`:
    seconds per layer in which a step's operators are called when they have next to nothing to do.
    `ahead`: calls are made while earlier work still runs, as for a GPU, so the longer of the two
    counts; on a CPU they take turns, and their times add.
    """

    read: float
    product: float
    attention: float
    dispatch_s: float
    ahead: bool = False

    def parts(
        self, config: GPT2Config, context: int, batch: int = 1, weight_bytes: float = 4
    ) -> dict[str, float]:
        """Seconds of each part of a step: "launch", "weights", "arithmetic" and "cache".

        A matrix is read and multiplied at once, so of "weights" and "arithmetic" the longer counts;
        attention's few FLOPs hide behind the reading of its rows. `weight_bytes` are a number's.
        """
        cache = costs.cache_bytes(config, context, batch)
        weights = costs.decode_bytes(config, context, batch) - cache
        return {
            "launch": self.dispatch_s * config.n_layer,
            "weights": weights / 4 * weight_bytes / self.read,
            "arithmetic": batch * costs.decode_flops(config, 1) / self.product,
            "cache": cache / self.attention,
        }

    def step_s(
        self, config: GPT2Config, context: int, batch: int = 1, weight_bytes: float = 4
    ) -> float:
        """Predicted seconds of a decode step of `batch` sequences that read `context` rows each."""
        part = self.parts(config, context, batch, weight_bytes)
        work = max(part["weights"], part["arithmetic"]) + part["cache"]
        return max(part["launch"], work) if self.ahead else part["launch"] + work

    def regime(self, config: GPT2Config, context: int, batch: int = 1) -> str:
        """What binds a step: "launch" where calling takes longer than the work, else the largest
        part of the work.
        """
        part = self.parts(config, context, batch)
        launch = part.pop("launch")
        work = max(part["weights"], part["arithmetic"]) + part["cache"]
        return "launch" if launch > work else max(part, key=lambda name: part[name])


def regimes(speeds: Speeds, config: GPT2Config, contexts: Sequence, batches: Sequence) -> str:
    """What binds a step of `config` where, as a sentence: each regime with its batch x context."""
    where: dict[str, list[str]] = {}
    for batch, context in product(batches, contexts):
        regime = speeds.regime(config, context, batch)
        where.setdefault(regime, []).append(f"{batch} x {context}")
    return "; ".join(f"{regime} binds at {', '.join(at)}" for regime, at in where.items())


def reader(model: GPT2, cache: StaticCache) -> Callable[[], list]:
    """A call that sums all that a step of `model` after `cache` must read, and does no more."""
    rows = [*cache.keys[..., : cache.length, :], *cache.values[..., : cache.length, :]]
    tensors = [p.detach() for name, p in model.named_parameters() if name != "wpe.weight"] + rows
    return lambda: [tensor.sum() for tensor in tensors]


def noop(layers: int = 12) -> GPT2:
    """A GPT2 of `layers` layers so narrow that its steps do nothing but call operators."""
    shape = dict(block_size=64, vocab_size=64, n_head=12, n_embd=24)
    return GPT2(GPT2Config(n_layer=layers, **shape)).eval()


def at_width(config: GPT2Config, width: int) -> GPT2:
    """A GPT2 of `config` but of another `width`, with seeded weights."""
    return GPT2(replace(config, n_embd=width)).eval()


def matrices(config: GPT2Config) -> list[int]:
    """How many numbers each matrix holds that a step of `config` reads, the head last."""
    square = config.n_embd**2
    layer = [3 * square, square, 4 * square, 4 * square]  # c_attn, c_proj, c_fc, c_proj
    return layer * config.n_layer + [config.vocab_size * config.n_embd]


def probes(device="cpu") -> dict[str, tuple[Callable, float]]:
    """What measures each field of Speeds: a call, and how many bytes, FLOPs or layers it does.

    Sums over 494 MB, on a CPU in pieces as large as GPT-2's matrices, as `reader` finds them; a
    product of two squares; single queries over 100 MB of keys and values; and a step of a model
    with no work.
    """
    cpu = torch.device(device).type == "cpu"
    sizes, size = matrices(GPT2Config.preset("gpt2")), 1536 if cpu else 8192
    pieces = [torch.ones(n, device=device) for n in (sizes if cpu else [sum(sizes)])]
    square = torch.randn(size, size, device=device)
    query = torch.randn(16, 12, 1, 64, device=device)
    rows = torch.randn(2, 16, 12, 1024, 64, device=device)
    model = noop().to(device)
    cache, token = StaticCache(model.config, device=device), torch.zeros(1, 1, device=device).long()

    def step():
        cache.truncate(0)
        with torch.inference_mode():  # as every decoder steps; its calls are the cheaper ones
            return model(token, cache, last_only=True)

    return {
        "read": (lambda: [piece.sum() for piece in pieces], 4 * sum(sizes)),
        "product": (lambda: square @ square, 2 * size**3),
        "attention": (lambda: F.scaled_dot_product_attention(query, *rows), rows.nbytes),
        "dispatch_s": (step, model.config.n_layer),
    }


def measure_speeds(device="cpu", *, repeats: int = 9) -> Speeds:
    """The Speeds of `device`, each the median of `repeats` interleaved runs of its probe."""
    calls = probes(device)
    samples = interleave({n: fn for n, (fn, _) in calls.items()}, repeats=repeats, device=device)
    seconds = {name: found.median_s for name, found in samples.items()}
    rates = {name: amount / seconds[name] for name, (_, amount) in calls.items()}
    rates["dispatch_s"] = 1 / rates["dispatch_s"]
    return Speeds(**rates, ahead=torch.device(device).type != "cpu")


def beside(predicted: Mapping[tuple, float], measured: Mapping[tuple, float]) -> str:
    """A line for each step by (width, batch, context): ms predicted, ms measured, their ratio."""
    lines = [f"{'width':>5}{'batch':>7}{'context':>9}{'predicted':>11}{'measured, ms':>14}   ratio"]
    for (width, batch, context), seconds in measured.items():
        foreseen = predicted[width, batch, context]
        lines.append(
            f"{width:>5}{batch:>7}{context:>9}{1e3 * foreseen:>11.1f}{1e3 * seconds:>14.1f}"
        )
        lines[-1] += f"{seconds / foreseen:>8.2f}"
    return "\n".join(lines)


def boundaries(times: Mapping[tuple[int, int, int], float]) -> dict[str, float]:
    """Where another part takes over, read off the seconds of steps by (width, batch, context).

    From launch to work: at the width where a step takes twice as long as the narrowest, which is
    nothing but calls. From weights or arithmetic to the cache: where a step has grown, since the
    shortest context, by as much as its work took there; by context in the largest batch, and by
    batch at the longest context. Straight lines join the steps; inf where they do not get there.
    """
    narrow = min(times)
    widths = sorted(w for w, *rest in times if rest == [*narrow[1:]])
    wide = {(b, c): seconds for (w, b, c), seconds in times.items() if w == widths[-1]}
    (_, first), (most, last) = min(wide), max(wide)

    def cache_over_work(batch: int, context: int) -> float:
        begun = wide[batch, first]
        return (wide[batch, context] - begun) / (begun - times[narrow])

    contexts = sorted(c for b, c in wide if b == most)
    batches = sorted(b for b, c in wide if c == last)
    grown = [times[w, *narrow[1:]] / times[narrow] for w in widths]
    return {
        "from launch to work, by width": crossing(widths, grown, 2),
        f"to the cache, by context at batch {most}": crossing(
            contexts, [cache_over_work(most, c) for c in contexts], 1
        ),
        f"to the cache, by batch at context {last}": crossing(
            batches, [cache_over_work(b, last) for b in batches], 1
        ),
    }


def crossing(xs: Sequence[float], values: Sequence[float], level: float) -> float:
    """The x at which `values`, joined by straight lines, first reach `level`; else inf."""
    if values[0] >= level:
        return xs[0]
    for (x, value), (next_x, next_value) in pairwise(zip(xs, values, strict=True)):
        if next_value >= level:
            return x + (next_x - x) * (level - value) / (next_value - value)
    return float("inf")


class Operator(NamedTuple):
    """An operator of one step: its name, calls, and the seconds spent in it and not further in."""

    name: str
    calls: float
    self_s: float


def profiled(fn: Callable, steps: int = 3):
    """torch's profile of `steps` calls of fn(), for `operators` and `export_chrome_trace`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports its own starts and stops
    with torch.no_grad():
        fn()
        with profile(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(steps):
                fn()
    return found


def operators(found, steps: int = 3) -> list[Operator]:
    """The operators of one step in a profile of `steps`, the longest first."""
    rows = [
        Operator(event.key, event.count / steps, 1e-6 * event.self_cpu_time_total / steps)
        for event in found.key_averages()
    ]
    return sorted(rows, key=lambda row: -row.self_s)


def called(found, steps: int = 3) -> float:
    """How many operators one step calls itself, not counting those that operators call."""
    return sum(event.cpu_parent is None for event in found.events()) / steps


def watched_s(found, steps: int = 3) -> float:
    """Seconds of one step as the profiler saw it: operators, and the gaps between them."""
    ranges = [event.time_range for event in found.events()]
    return 1e-6 * (max(r.end for r in ranges) - min(r.start for r in ranges)) / steps


def kinds(rows: Iterable[Operator]) -> dict[str, float]:
    """Seconds of one step in its "products", its "attention" and its "other operators"."""
    found = {"products": 0.0, "attention": 0.0, "other operators": 0.0}
    for name, _, self_s in rows:
        product = "linear" in name or name.endswith(("mm", "mm_", "mv"))
        kind = "attention" if "attention" in name else "other operators"
        found["products" if product else kind] += self_s
    return found


def timeline(found) -> list[dict]:
    """The events of a profile as `export_chrome_trace` writes them for a browser."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        found.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


def on_threads(threads: int, fn: Callable) -> Callable:
    """fn, called with torch set to `threads` threads; afterwards they are as many as before."""

    def call():
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return fn()
        finally:
            torch.set_num_threads(before)

    return call


def cores_used(speeds: Mapping[tuple[str, int], float], threads: int) -> str:
    """A sentence on the cores that one row's product uses.

    `speeds` has those of "F.linear" and of a "plain read", each with 1 and with `threads` threads.
    """
    if threads == 1:
        return "torch has one thread here, so no core can stand idle"
    product, read = (speeds[n, threads] / speeds[n, 1] for n in ("F.linear", "plain read"))
    told = f"{threads} threads make F.linear {product:.2f} times as fast, a plain read {read:.2f}: "
    if read < 1.15:
        return told + "one core draws all that this memory gives"
    if product < (1 + read) / 2:
        return told + "one row keeps one core busy, and the others stand idle"
    return told + "here one row keeps the other cores busy too"


def recordings(folder: str | Path, kind: str) -> list[dict]:
    """The recordings in `folder` of one kind: "peers" or "floor"."""
    found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    return [recording for recording in found if recording.get("kind") == kind]


def peers_table(recording: Mapping) -> str:
    """A recording of `benchmarks/peers.py` as its machine and a table: each time over kvlib's."""
    facts = recording["machine"]
    where = f"{facts['processor']}, {facts['threads']} threads of {facts['cores']} cores"
    return f"{where}\n" + by_engine(recording["rows"], "time over kvlib", "{ratio:.2f}")


def by_engine(rows: Iterable[Mapping], corner: str, cell: str) -> str:
    """A table of engine by work as text, each of `rows` written as the format `cell` says."""
    lines = grid(rows, corner, cell)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{name:<{widths[0] + 1}}"
        + "".join(f"{text:>{width + 2}}" for text, width in zip(told, widths[1:], strict=True))
        for name, *told in lines
    )


def grid(rows: Iterable[Mapping], corner: str, cell: str) -> list[list[str]]:
    """The works behind `corner`, then each engine and its cells; "-" where there is none."""
    cells = {(row["engine"], row["work"]): cell.format(**row) for row in rows}
    engines, works = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    lines = [[engine, *(cells.get((engine, work), "-") for work in works)] for engine in engines]
    return [[corner, *works], *lines]
