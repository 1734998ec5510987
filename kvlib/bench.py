"""`python -m kvlib bench`: the latency of a model by batch, context and cache, on this machine."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from . import __version__, costs, decoders, timing
from .config import PRESETS, GPT2Config
from .samples import Samples, Trace, table
from .step import FORMS
from .weights import load

CACHES = ("none", "growing", "static")


def add_arguments(parser) -> None:
    """The options of `python -m kvlib bench`."""
    add = parser.add_argument
    add("--model", default="gpt2", help="a preset, or a directory (default: gpt2)")
    add("--weights", choices=["random", "pretrained"], help="default: random for a preset")
    add("--batch", type=integers, default=[1, 2, 4, 8, 16, 32], metavar="1,2,...")
    add("--prompt", type=positive, default=19, metavar="N", help="tokens of each (default: 19)")
    add("--new", type=positive, default=50, metavar="N", help="new tokens of each (default: 50)")
    add("--contexts", type=integers, default=[], metavar="100,...", help="time a step at each too")
    add("--cache", type=caches, default=list(CACHES), metavar="none,growing,static")
    form = "in which a step reads the weights, on a CPU (default: float32)"
    add("--form", choices=list(FORMS), default="float32", help=form)
    add("--repeats", type=positive, default=5, help="runs of each, taking turns (default: 5)")
    longest = "leave out batches of which one run with no cache would take longer; 0: none"
    add("--longest", type=float, default=40, metavar="S", help=f"{longest} (default: 40 s)")
    add("--device", default="cpu")
    add("--tf32", action="store_true", help="let CUDA round products to TF32")
    add("--json", type=Path, help="write all samples there; in a directory, under this machine")
    add("--plot", type=Path, help="a directory for the two figures")


def integers(text: str) -> list[int]:
    """The positive integers in "1,2,4"."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive integers, as 1,2,4 is")
    return [int(part) for part in parts]


def positive(text: str) -> int:
    """The positive integer in "5"."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive integer")
    return int(text)


def caches(text: str) -> list[str]:
    """The caches in "none,static"."""
    names = text.split(",")
    for name in names:
        if name not in CACHES:
            raise argparse.ArgumentTypeError(f"no cache {name!r}; there are {', '.join(CACHES)}")
    return names


class Bench:
    """One measurement of a model: what was asked, and what has been measured of it so far."""

    def __init__(self, args):
        self.args = args
        weights = args.weights or ("random" if args.model in PRESETS else "pretrained")
        self.model = load(args.model, weights=weights, device=args.device)
        self.weights = weights
        directory = f"directory {Path(args.model).resolve().name}"  # a recording holds no paths
        self.name = args.model if args.model in PRESETS else directory
        self.decoders = {
            name: decoders.from_kvlib(self.model, None if name == "none" else name, form=args.form)
            for name in args.cache
        }
        self.traces: dict[tuple[int, str], Trace] = {}
        self.steps: dict[str, dict[int, Samples]] = {}
        self.left_out: list[dict] = []  # what was asked for and not measured, and why

    def refuse(self) -> list[str]:
        """Drop every batch that cannot fit in memory; one line for each, with the bytes.

        Raises ValueError where a prompt or context has more tokens than the model has positions.
        """
        args, free = self.args, available_bytes(self.args.device)
        tokens, lines, kept = args.prompt + args.new - 1, [], []
        for decoder in self.decoders.values():
            timing.check_room(decoder, max([tokens, *args.contexts]))
        for batch in args.batch:
            needs = {
                needed_bytes(self.model.config, name, batch, tokens): name for name in args.cache
            }
            most = max(needs)
            if free is None or most <= free:
                kept.append(batch)
                continue
            why = f"cache {needs[most]} needs at least {most:,} bytes and {free:,} are free"
            lines.append(
                f"batch {batch} is refused: {why}; give a smaller --batch, --prompt or --new"
            )
            self.left_out += [dict(cache=name, batch=batch, why=why) for name in args.cache]
        args.batch = kept
        return lines

    def run(self) -> bool:
        """Measure everything; False where Ctrl-C ended it early, with what there is kept."""
        args = self.args
        how = dict(repeats=args.repeats, tf32=args.tf32)
        some = next(iter(self.decoders.values()))
        runs = len(args.batch) * args.repeats * len(self.decoders) + len(args.contexts)
        try:
            with tqdm(total=runs, unit="run", disable=None) as bar:
                for batch in args.batch:
                    bar.set_description(f"batch {batch}")
                    prompt = timing.prompts(some, batch, args.prompt)
                    chosen = self.affordable(batch)
                    bar.update(args.repeats * (len(self.decoders) - len(chosen)))
                    if not chosen:
                        continue
                    try:
                        for found in timing.traces(chosen, prompt, args.new, **how):
                            self.traces |= {(batch, name): trace for name, trace in found.items()}
                            bar.update()
                    except RuntimeError as error:  # out of memory: what there is, is kept
                        why = str(error).partition("\n")[0]
                        self.left_out += [dict(cache=n, batch=batch, why=why) for n in chosen]
                bar.set_description("contexts")
                if args.contexts:
                    more = dict(batch=1, warmup=1, seed=0, **how)
                    for steps in timing.sweeps(self.decoders, args.contexts, **more):
                        self.steps = steps
                        bar.update()
        except KeyboardInterrupt:
            return False
        return True

    def affordable(self, batch: int) -> dict[str, Any]:
        """The decoders, without that of no cache where one run of `batch` would take too long.

        The last batch that it ran tells how long: its work is proportional to the batch.
        """
        done = [size for size, name in self.traces if name == "none"]
        if not done or not self.args.longest:
            return self.decoders
        would_take_s = self.traces[done[-1], "none"].end_to_end_s * batch / done[-1]
        if would_take_s <= self.args.longest:
            return self.decoders
        why = f"a run would take about {would_take_s:.0f} s"
        self.left_out.append(dict(cache="none", batch=batch, why=why))
        return {name: decoder for name, decoder in self.decoders.items() if name != "none"}

    def recording(self) -> dict[str, Any]:
        """Everything measured, as plain values: the format of figures/measured/*.json."""
        first: Any = next(iter(self.traces.values()), None)
        first = first or next(iter(next(iter(self.steps.values())).values()))
        return dict(
            kvlib=__version__,
            model=self.name,
            weights=self.weights,
            form=self.args.form,
            parameters=costs.parameters(self.model.config),
            machine=first.machine,
            profiles=[dict(cache=name) | values(row) for (_, name), row in self.traces.items()],
            steps=[
                dict(cache=name, batch=1, context=context) | values(samples)
                for name, found in self.steps.items()
                for context, samples in sorted(found.items())
            ],
            left_out=self.left_out,
        )

    def report(self) -> str:
        """The table of all that was measured."""
        text = [table([(name, row) for (_, name), row in self.traces.items()])]
        for name, found in self.steps.items():
            for context, samples in sorted(found.items()):
                text.append(f"one step, batch 1, context {context}, cache {name}: {samples}")
        for row in self.left_out:
            text.append("cache {cache}, batch {batch}: not measured: {why}".format(**row))
        return "\n".join(text)

    def plot(self, folder: Path) -> list[Path]:
        """Draw the per-token trace and the sweep of batches into `folder`; the files written."""
        from . import plots

        plots.use_style()
        folder.mkdir(parents=True, exist_ok=True)
        batch = min(batch for batch, _ in self.traces)
        made = {
            "trace.png": plots.per_token(
                {name: row for (size, name), row in self.traces.items() if size == batch}
            ),
            "batches.png": plots.by_batch(self.traces),
        }
        for name, figure in made.items():
            figure.savefig(folder / name)
        return [folder / name for name in made]


def check(args) -> None:
    """Raise ValueError or OSError for what would come to nothing after all was measured."""
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"no device {args.device!r} here ({why}); give 'cpu', say") from error
    if args.plot and args.new < 2:
        raise ValueError("--plot draws time per token after the first: give a --new of 2 or more")
    if args.plot:
        args.plot.mkdir(parents=True, exist_ok=True)
    if args.json:
        folder = args.json.parent if args.json.suffix else args.json
        folder.mkdir(parents=True, exist_ok=True)


def values(found: Samples | Trace) -> dict[str, Any]:
    """All of a measurement but the machine, which stands once in a recording."""
    return {key: value for key, value in found.as_json().items() if key != "machine"}


def needed_bytes(config: GPT2Config, cache: str, batch: int, tokens: int) -> int:
    """Bytes that a batch must have besides the weights, at the least, in float32.

    The logits of a step; the cache, and the second copy of one layer's keys that a growing one
    makes; or, where nothing is cached, the widest activation of one pass over all tokens.
    """
    logits = batch * config.vocab_size * 4
    if cache == "none":
        return logits + batch * tokens * 4 * config.n_embd * 4
    stored = costs.cache_bytes(config, tokens, batch)
    copy = stored // (2 * config.n_layer) if cache == "growing" else 0
    return logits + stored + copy


def available_bytes(device: str) -> int | None:
    """Bytes of memory free on `device` now; None where the system does not say."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return int(kib) * 1024


def machine_name(facts: dict) -> str:
    """A file name for a machine: its processor or card, and its threads."""
    return slug(facts.get("device_name") or f"{facts['processor']} {facts['threads']} threads")


def slug(text: str) -> str:
    """`text` in small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", text.lower())).strip("-")


def file_name(recording: dict) -> str:
    """A file name for a recording: its machine and kind, and what is not GPT-2 in plain float32."""
    told = [recording.get("kind"), recording.get("model", "gpt2"), recording.get("form", "float32")]
    told += ["tf32" if recording["machine"].get("tf32") else None]
    parts = [slug(part) for part in told if part not in (None, "gpt2", "float32")]
    return "-".join([machine_name(recording["machine"]), *parts]) + ".json"


def save(recording: dict, path: Path) -> Path:
    """The file that `recording` was written to: `path`, or in that directory its `file_name`."""
    if path.is_dir() or not path.suffix:
        path = path / file_name(recording)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(recording, indent=1) + "\n")
    return path


def main(args) -> int:
    """Measure, print the table, write what was asked; 130 where Ctrl-C cut it short."""
    check(args)
    bench = Bench(args)
    for line in bench.refuse():
        print(line, file=sys.stderr)
    if not args.batch and not args.contexts:
        return 2
    complete = bench.run()
    if not bench.traces and not bench.steps:
        print("stopped before anything was measured", file=sys.stderr)
        return 130
    recording = bench.recording()
    facts = recording["machine"]
    where = facts.get("device_name", facts["processor"])
    print(f"{args.model} ({bench.weights} weights, decode steps read {args.form}), ", end="")
    print(f"{facts['dtype']} on {where}, ", end="")
    print(
        f"{facts['threads']} threads, TF32 {'on' if args.tf32 else 'off'}, torch {facts['torch']}"
    )
    print(bench.report())
    if args.json:
        print(f"samples: {save(recording, args.json)}")
    if args.plot and bench.traces:
        print("figures: " + ", ".join(str(path) for path in bench.plot(args.plot)))
    if not complete:
        print("interrupted: the rows above are what was measured", file=sys.stderr)
    return 0 if complete else 130
