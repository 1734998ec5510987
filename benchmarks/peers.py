"""The same work by kvlib and by other engines: one process each, taking turns, as a ratio table.

    pip install -e ".[peers]"
    python benchmarks/peers.py [--rounds 5] [--engines kvlib,...] [--json figures/measured]

Every engine reads the same weights (GPT-2 at full size, seeded random values), gets the same token
ids and must produce one token a sequence at each step, greedily. Engines that are not installed are
named and skipped. Each lives in a process of its own, so that no library's threads disturb another;
only one works at a time, and each round runs all of them once. Times are over the first engine's.

llama.cpp reads GGUF files only: make one of the weights that `--keep DIR` leaves, with its own
convert_hf_to_gguf.py, and name it with --gguf.
"""

import argparse
import contextlib
import importlib.metadata
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from engines import ENGINES, PACKAGES, missing

WORKS = {  # name -> batch, prompt, new tokens, and what is read off the seconds of each token
    "TTFT 512": (1, 512, 1, "first"),
    "step at 100": (1, 96, 9, "step"),
    "step at 500": (1, 496, 9, "step"),
    "step at 960": (1, 956, 9, "step"),
    "batch 4": (4, 19, 20, "all"),
    "batch 16": (16, 19, 20, "all"),
    "batch 32": (32, 19, 20, "all"),
}
MEANS = {  # what is read off, in words
    "first": "first token after a prompt of {prompt}",
    "step": "median of {steps} decode steps after a prompt of {prompt}",
    "all": "{new} tokens after each of {batch} prompts of {prompt}, prefill included",
}
READ = {
    "first": lambda seconds: seconds[0],
    "step": lambda seconds: statistics.median(seconds[1:]),
    "all": sum,
}


class Worker:
    """An engine in a process of its own, which works when asked and sleeps otherwise."""

    def __init__(self, engine: str, folder: Path, threads: int, gguf: str):
        command = [sys.executable, str(Path(__file__).with_name("engines.py"))]
        command += [engine, str(folder), str(threads), gguf]
        self.log = folder / f"{engine}.log"  # what it says is of interest if it fails
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        self.answer()  # it has loaded

    def answer(self):
        """The next line of the process that is an answer; RuntimeError where it ended instead."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        status = self.process.wait()
        said = self.log.read_text().strip().splitlines() or ["nothing"]
        raise RuntimeError(f"it ended with status {status}, saying: {said[-1]}")

    def run(self, batch: int, prompt: int, new: int) -> tuple[list[float], list[int]]:
        """Seconds of each of `new` tokens, for `batch` prompts of `prompt`; the first's tokens.

        Raises RuntimeError where the engine fails at it, or its process has ended.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `answer` says how
            print(json.dumps([batch, prompt, new]), file=self.process.stdin, flush=True)
        answer = self.answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"], answer["tokens"]

    def stop(self) -> None:
        """End the process and wait for it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def meaning(work: str) -> str:
    """What the seconds of `work` are, in words."""
    batch, prompt, new, how = WORKS[work]
    return MEANS[how].format(batch=batch, prompt=prompt, new=new, steps=new - 1)


def start(names: list[str], folder: Path, threads: int, gguf: str):
    """Workers by engine, and for each engine without one, why."""
    workers, absent = {}, {name: "not asked for" for name in ENGINES if name not in names}
    for name in names:
        why = missing(name, gguf)
        if why is None:
            try:
                workers[name] = Worker(name, folder, threads, gguf)
            except RuntimeError as error:
                why = str(error)
        if why is not None:
            absent[name] = why
            print(f"skipped {name}: {why}", flush=True)
    return workers, absent


def measure(workers: dict[str, Worker], works: list[str], rounds: int) -> tuple[dict, list[dict]]:
    """Seconds by work, engine and round; and what was left out: work, engine and why.

    An engine that fails is left out of that work. Where the first fails there is nothing to compare
    with, and all are. The warm-up's tokens are compared with the first engine's: where they part
    early, an engine does other work than it should. Rounding, and int8, may part them where two
    logits are close.
    """
    found: dict = {}
    failed: list[dict] = []
    first = next(iter(workers))
    for work in works:
        *asked, how = WORKS[work]
        made: dict[str, list[int]] = {}
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for turn in range(1 + rounds):  # the first is the warm-up
            for name in list(seconds):
                try:
                    each, tokens = workers[name].run(*asked)
                except RuntimeError as error:
                    del seconds[name]
                    failed.append(dict(work=work, engine=name, why=str(error)))
                    print(f"{name} cannot do {work}: {error}", flush=True)
                    continue
                made.setdefault(name, tokens)
                seconds[name] += [READ[how](each)] if turn else []
            if first not in seconds:
                break
        if first not in seconds:
            print(f"{work} is left out, for all are compared with {first}", flush=True)
            continue
        found[work] = seconds
        for name, taken in seconds.items():
            same = sum(a == b for a, b in zip(made[name], made[first], strict=True))
            middle = 1e3 * statistics.median(taken)
            print(
                f"{work:<12} {name:<28} {middle:9.1f} ms, {same} of {len(made[first])} tokens "
                "as the first's",
                flush=True,
            )
    return found, failed


def rows(found: dict) -> list[dict]:
    """A row for each work and engine: its seconds, and its time over the first engine's."""
    made = []
    for work, engines in found.items():
        first = next(iter(engines))
        for name, seconds in engines.items():
            ratios = [mine / ours for mine, ours in zip(seconds, engines[first], strict=True)]
            made.append(
                dict(
                    work=work,
                    engine=name,
                    runs_s=seconds,
                    median_s=statistics.median(seconds),
                    ratio=statistics.median(ratios),
                    least=min(ratios),
                    most=max(ratios),
                )
            )
    return made


def table(made: list[dict]) -> str:
    """Time over that of the first engine, median (least to most) of the rounds."""
    from kvlib.floor import by_engine

    return by_engine(made, "time over the first", "{ratio:.2f} ({least:.2f}-{most:.2f})")


def save_weights(folder: Path, model: str) -> None:
    """Write the seeded weights of `model` as Hugging Face does, with what converters ask for."""
    from kvlib import decoders, load
    from kvlib.tokenizer import FILES

    theirs = decoders.to_hf(load(model, weights="random"))
    theirs.config.bos_token_id = theirs.config.eos_token_id = theirs.config.vocab_size - 1
    theirs.generation_config.eos_token_id = None
    theirs.save_pretrained(folder)
    for ours, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        shutil.copy(FILES / ours, folder / name)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')


def main() -> int:
    """Measure, print the table, write the recording; 1 where nothing was there to compare."""
    from kvlib import bench, machine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=",".join(ENGINES), help="the first is the measure")
    parser.add_argument("--works", default=",".join(WORKS), help="which of the works to do")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="default: as torch chooses")
    parser.add_argument("--model", default="gpt2", help="a preset (default: gpt2)")
    parser.add_argument("--gguf", default="", help="the same weights as llama.cpp wants them")
    parser.add_argument("--keep", type=Path, help="leave the weights in this directory")
    parser.add_argument("--json", type=Path, help="write all samples there, or into a directory")
    args = parser.parse_args()
    works = args.works.split(",")
    if args.rounds < 1 or not set(works) <= set(WORKS):
        parser.error(f"at least 1 round is needed, and of works there are {', '.join(WORKS)}")
    facts = machine.facts()
    threads = args.threads or facts["threads"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        save_weights(folder, args.model)
        workers, absent = start(args.engines.split(","), folder, threads, args.gguf)
        try:
            if len(workers) < 2:
                print("fewer than two engines: nothing to compare", file=sys.stderr)
                return 1
            found, failed = measure(workers, works, args.rounds)
        finally:
            for worker in workers.values():
                worker.stop()
    made = rows(found)
    if not made:
        print(f"{next(iter(workers))} failed at all: nothing to compare", file=sys.stderr)
        return 1
    print(table(made))
    versions = {p: importlib.metadata.version(p) for n in workers for p in PACKAGES[n]}
    recording = dict(kind="peers", model=args.model)
    recording |= dict(machine=facts | dict(threads=threads, dtype="float32"), versions=versions)
    recording |= dict(works={work: meaning(work) for work in works}, missing=absent, failed=failed)
    recording |= dict(rounds=args.rounds, rows=made)
    if args.json:
        print(f"samples: {bench.save(recording, args.json)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
