"""What was measured: raw samples, and the medians, quartiles and rates read off them."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Samples:
    """Seconds of each run, how many runs of warm-up came before, and the machine."""

    runs_s: tuple[float, ...]
    warmup: int
    machine: dict

    @property
    def median_s(self) -> float:
        """Median seconds per run."""
        return float(np.median(self.runs_s))

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """First and third quartile, in seconds per run."""
        return quartiles(self.runs_s)

    def as_json(self) -> dict:
        """Samples, their summary and the machine as plain values."""
        return dict(
            median_s=self.median_s,
            quartiles_s=self.quartiles_s,
            runs_s=self.runs_s,
            warmup=self.warmup,
            machine=self.machine,
        )

    def __str__(self) -> str:
        median, (low, high) = ms(self.median_s), map(ms, self.quartiles_s)
        return f"{median} ms ({low} to {high}), {len(self.runs_s)} runs"


@dataclass(frozen=True)
class Trace:
    """Seconds of every token of several generations, all of `batch` prompts of `prompt_tokens`.

    `runs_s` has a row a generation; its first entry is the prefill's token. `state_bytes` is what
    the decoder keeps at the end: keys and values, or, without a cache, the token ids. `warmup` is
    how many short generations came before.
    """

    batch: int
    prompt_tokens: int
    runs_s: tuple[tuple[float, ...], ...]
    state_bytes: int
    machine: dict
    warmup: int = 0

    @property
    def new_tokens(self) -> int:
        """Tokens generated per prompt."""
        return len(self.runs_s[0])

    @property
    def per_token_s(self) -> tuple[float, ...]:
        """Median over the runs, in seconds, of each token."""
        return tuple(np.median(self.runs_s, axis=0).tolist())

    def of_runs(self, what: str) -> list[float]:
        """One number a run: "ttft_s", "tpot_s", "end_to_end_s", "tokens_per_s" (of the batch, the
        prefill included) or "decode_tokens_per_s" (the prefill and its token left out).
        """
        first = np.array([run[0] for run in self.runs_s])
        total = np.array([sum(run) for run in self.runs_s])
        steps = self.new_tokens - 1
        if what in ("tpot_s", "decode_tokens_per_s") and not steps:
            raise ValueError(f"{what} needs at least 2 new tokens, not {self.new_tokens}")
        found = {
            "ttft_s": lambda: first,
            "tpot_s": lambda: (total - first) / steps,
            "end_to_end_s": lambda: total,
            "tokens_per_s": lambda: self.batch * self.new_tokens / total,
            "decode_tokens_per_s": lambda: self.batch * steps / (total - first),
        }
        return found[what]().tolist()

    def median(self, what: str) -> float:
        """Median over the runs of what `of_runs` gives."""
        return float(np.median(self.of_runs(what)))

    @property
    def ttft_s(self) -> float:
        """Median time to first token, in seconds."""
        return self.median("ttft_s")

    @property
    def tpot_s(self) -> float:
        """Median time per output token, in seconds: (end to end - TTFT) / (tokens - 1)."""
        return self.median("tpot_s")

    @property
    def end_to_end_s(self) -> float:
        """Median seconds of a whole generation."""
        return self.median("end_to_end_s")

    @property
    def tokens_per_s(self) -> float:
        """Median tokens per second of the whole batch, the prefill's time included."""
        return self.median("tokens_per_s")

    @property
    def decode_tokens_per_s(self) -> float:
        """Median tokens per second of the whole batch, the prefill and its token left out."""
        return self.median("decode_tokens_per_s")

    def itl_s(self, *quantiles: float) -> tuple[float, ...]:
        """Quantiles (0 to 1) over every gap between two tokens of every run, in seconds."""
        gaps = [gap for run in self.runs_s for gap in run[1:]]
        if not gaps:
            raise ValueError("ITL needs at least 2 new tokens, not 1")
        return tuple(np.quantile(gaps, quantiles).tolist())

    def as_json(self) -> dict:
        """Everything as plain values, the machine too."""
        found = asdict(self)
        names = ["ttft_s", "end_to_end_s", "tokens_per_s"]
        if self.new_tokens > 1:
            names += ["tpot_s", "decode_tokens_per_s"]
            found["itl_s"] = dict(
                zip(("p50", "p90", "p99"), self.itl_s(0.5, 0.9, 0.99), strict=True)
            )
        for name in names:
            values = self.of_runs(name)
            found[name] = dict(median=float(np.median(values)), quartiles=quartiles(values))
        return found | {"new_tokens": self.new_tokens}


def quartiles(values: Iterable[float]) -> tuple[float, float]:
    """First and third quartile of `values`."""
    low, high = np.quantile(list(values), (0.25, 0.75)).tolist()
    return low, high


def ms(seconds: float) -> str:
    """A time in milliseconds: whole ones from 100 on, else three digits, two below 1."""
    value = 1e3 * seconds
    places = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{places}f}" if value >= 0.1 else f"{value:.2g}"


HEADINGS = {"batch": 7, "prompt": 7, "new": 6, "TTFT ms": 10, "TPOT ms": 9, "ITL p50": 9}
HEADINGS |= {"p90": 9, "p99": 9, "tokens/s": 10, "decode only": 12, "kept bytes": 14}


def table(rows: Iterable[tuple[str, Trace]] | Iterable[Trace]) -> str:
    """Traces, or (name, Trace) pairs, as a table: medians of the runs."""
    named = [row if isinstance(row, tuple) else ("", row) for row in rows]
    width = max([len("cache"), *(len(name) for name, _ in named)])
    title = "cache" if any(name for name, _ in named) else ""
    lines = [
        f"{title:<{width}}" + "".join(f"{heading:>{size}}" for heading, size in HEADINGS.items())
    ]
    for name, row in named:
        cells = [f"{row.batch}", f"{row.prompt_tokens}", f"{row.new_tokens}"]
        cells.append(f"{1e3 * row.ttft_s:.1f}")
        if row.new_tokens > 1:
            cells += [f"{1e3 * value:.1f}" for value in (row.tpot_s, *row.itl_s(0.5, 0.9, 0.99))]
            rates = [f"{row.tokens_per_s:.1f}", f"{row.decode_tokens_per_s:.1f}"]
        else:
            cells, rates = [*cells, *"----"], [f"{row.tokens_per_s:.1f}", "-"]
        cells += [*rates, f"{row.state_bytes:,}"]
        aligned = zip(cells, HEADINGS.values(), strict=True)
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>{size}}" for cell, size in aligned))
    return "\n".join(lines)
