"""Write book/measured.md, and the README's table, from the recordings in figures/measured/.

    python tools/measured.py

`python -m kvlib bench --json figures/measured` and `python benchmarks/peers.py` make recordings;
`make measure` does both and calls this.
"""

import json
import sys
from pathlib import Path

from kvlib.floor import grid
from kvlib.samples import ms

ROOT = Path(__file__).parent.parent
RECORDINGS, PAGE = ROOT / "figures" / "measured", ROOT / "book" / "measured.md"
README, BEGIN, END = ROOT / "README.md", "<!-- measured -->", "<!-- /measured -->"
BRIEF = ("TTFT 512", "step at 500", "batch 4", "batch 32")  # works that the README shows
PUBLISHED = ["A40 GPU, published", "1,000", "29.69 ms", "4.95 ms", "6.0", ""]
HEAD = """# Measured machines

Every machine that was recorded, generated from `figures/measured/*.json`, which hold each single
sample. Times are medians of interleaved runs, with quartiles in parentheses; the arithmetic is that
of the line that names the machine, except where int8 is named. Chapter 05 defines TTFT, TPOT and
throughput and says how they are measured. `make measure` adds your machine.

Published for GPT-2 on an A40 GPU, float32, batch 1, for comparison: 29.69 ms for an uncached step
at context 1000 and 4.95 ms for a cached one (6.0 times); 14.66 s and 5.03 s for 1,016 tokens.
"""


def spread(found: dict) -> str:
    """Median and quartiles in milliseconds."""
    low, high = found["quartiles"]
    return f"{ms(found['median'])} ({ms(low)} to {ms(high)})"


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table, numbers to the right."""
    rule = [":--", *["--:"] * (len(headings) - 1)]
    return ["", *(f"| {' | '.join(row)} |" for row in [headings, rule, *rows])]


def facts_line(recording: dict) -> str:
    """The machine and the versions, in one sentence."""
    facts = recording["machine"]
    where = facts.get("device_name", facts["processor"])
    memory = facts.get("device_memory_bytes") or facts["memory_bytes"]
    text = f"{where}, {facts['threads']} threads of {facts['cores']} cores"
    text += f", {memory / 2**30:.0f} GiB of memory" if memory else ""
    text += f", SIMD {facts['simd']}" if facts["device"] == "cpu" else ""
    text += f", Python {facts['python']}, torch {facts['torch']}, {facts['dtype']}"
    return text + (", products in TF32." if facts.get("tf32") else ".")


def profile_row(row: dict) -> list[str]:
    """A row of the table by batch and cache; one new token has no decode steps to tell of."""
    decoded = "tpot_s" in row
    return [
        row["cache"],
        f"{row['batch']}",
        spread(row["ttft_s"]),
        spread(row["tpot_s"]) if decoded else "-",
        ms(row["itl_s"]["p99"]) if decoded else "-",
        f"{row['tokens_per_s']['median']:.1f}",
        f"{row['decode_tokens_per_s']['median']:.1f}" if decoded else "-",
        f"{row['state_bytes']:,}",
    ]


def not_measured(names: dict[str, list[str]]) -> list[str]:
    """The line that says what was not measured: reason -> names."""
    told = "; ".join(f"{', '.join(those)} ({why})" for why, those in names.items())
    return ["", f"Not measured: {told}."] if told else []


def bench(recording: dict) -> list[str]:
    """The lines for a recording of `python -m kvlib bench`."""
    shape = {(row["prompt_tokens"], row["new_tokens"]) for row in recording["profiles"]}
    lines = [f"{recording['model']}, {recording['weights']} weights, decode steps read "]
    lines[0] += f"{recording['form']}; by batch and cache"
    lines[0] += "".join(f"; prompts of {prompt}, {new} new tokens" for prompt, new in shape) + "."
    headings = ["cache", "batch", "TTFT, ms", "TPOT, ms", "ITL p99, ms", "tokens/s", "decode only"]
    lines += table([*headings, "bytes kept"], [profile_row(row) for row in recording["profiles"]])
    left_out: dict[str, list[str]] = {}
    for row in recording.get("left_out", []):
        name = f"cache {row['cache']} at batch {row['batch']}"
        left_out.setdefault(row["why"], []).append(name)
    lines += not_measured(left_out)
    steps = {(row["context"], row["cache"]): row for row in recording["steps"]}
    names = list(dict.fromkeys(row["cache"] for row in recording["steps"]))
    if not steps:
        return lines
    lines += ["", "One decode step, batch 1, in ms by context."]
    rows = []
    for context in sorted({context for context, _ in steps}):
        found = [steps[context, name] for name in names]
        cells = [spread(dict(median=s["median_s"], quartiles=s["quartiles_s"])) for s in found]
        if {"none", "static"} <= set(names):
            gain = steps[context, "none"]["median_s"] / steps[context, "static"]["median_s"]
            cells.append(f"{gain:.1f}")
        rows.append([f"{context}", *cells])
    gain_heading = ["none / static"] if {"none", "static"} <= set(names) else []
    return lines + table(["context", *(f"cache {name}" for name in names), *gain_heading], rows)


def peers(recording: dict) -> list[str]:
    """The lines for a recording of `benchmarks/peers.py`: each engine's time over the first's."""
    first, model = recording["rows"][0]["engine"], recording.get("model", "gpt2")
    lines = [f"The same work, {model}, by several engines, each in a process of its own, "]
    lines[0] += f"taking turns: time over that of {first}, below 1 where faster, median of "
    lines[0] += f"{recording['rounds']} rounds, and below it the least and the most."
    works = "; ".join(f"{work}: {means}" for work, means in recording.get("works", {}).items())
    lines += ["", f"{works}."] if works else []
    lines += engines(recording["rows"], "{ratio:.2f}<br>{least:.2f}–{most:.2f}")
    left_out: dict[str, list[str]] = {}
    for engine, why in recording["missing"].items():
        left_out.setdefault(why, []).append(engine)
    for row in recording.get("failed", []):
        left_out.setdefault(row["why"], []).append(f"{row['engine']} at {row['work']}")
    return lines + not_measured(left_out)


def brief(recording: dict) -> list[str]:
    """The README's lines for the same: the works in BRIEF, and where the others are."""
    first = recording["rows"][0]["engine"]
    told = [row for row in recording["rows"] if row["work"] in BRIEF and row["engine"] != first]
    line = f"Other engines at the same work on {place(recording)}: time over that of {first}, below"
    line += f" 1 where faster, median of {recording['rounds']} rounds (least-most). [Measured "
    line += "machines](book/measured.md) says what each work is, and has more of them."
    return [line, *engines(told, "{ratio:.2f} ({least:.2f}-{most:.2f})")]


def engines(rows: list[dict], cell: str) -> list[str]:
    """A Markdown table of engine by work, each of `rows` written as `cell` says."""
    works, *told = grid(rows, "engine", cell)
    return table(works, told)


def floor(recording: dict) -> list[str]:
    """The lines for a recording of chapter 07's step on a GPU."""
    lines = [f"One decode step at context {recording['context']}, batch 1, by CUDA events (chapter"]
    lines[0] += " 07): a plain read of its bytes, and the step in several ways."
    rows = [
        [
            row["way"],
            spread(dict(median=row["median_s"], quartiles=row["quartiles_s"])),
            "" if row["gap"] is None else f"{row['gap']:.1e}",
        ]
        for row in recording["rows"]
    ]
    return lines + table(["way", "ms", "logits off by"], rows)


def page(recordings: list[dict]) -> str:
    """The page, in Markdown."""
    lines = [HEAD]
    if not recordings:
        lines.append("Nothing is recorded yet.\n")
    machines: dict[str, list[dict]] = {}
    for recording in recordings:
        machines.setdefault(facts_line(recording), []).append(recording)
    for line, group in machines.items():
        lines += [f"## {line.split(',')[0]}, {group[0]['machine']['threads']} threads", "", line]
        for recording in sorted(group, key=lambda recording: recording.get("kind", "")):
            part = {"peers": peers, "floor": floor}.get(recording.get("kind"), bench)
            lines += ["", *part(recording)]
        lines.append("")
    return "\n".join(lines)


def front(recordings: list[dict]) -> str:
    """The README's table: on each machine, a float32 step of GPT-2 at its longest context, two
    ways; then the tables of other engines.
    """
    rows, lines = [PUBLISHED], []
    for recording in recordings:
        plain = recording.get("model", "gpt2") == "gpt2"
        plain = plain and recording.get("form", "float32") == "float32"
        if "kind" not in recording and plain:
            rows += step_row(recording)
        elif recording.get("kind") == "peers" and plain:
            lines += ["", *brief(recording)]
    headings = ["machine", "context", "uncached step", "cached step", "times faster", "tokens/s"]
    return "\n".join(table(headings, rows) + lines)


def step_row(recording: dict) -> list[list[str]]:
    """The row of the README's table for one machine; none where the two ways were not timed."""
    steps = {(row["context"], row["cache"]): row["median_s"] for row in recording["steps"]}
    both = [c for c, cache in steps if cache == "none" and (c, "static") in steps]
    if not both:
        return []
    none, static = steps[max(both), "none"], steps[max(both), "static"]
    rates = [
        (row["tokens_per_s"]["median"], row["batch"])
        for row in recording["profiles"]
        if row["cache"] == "static"
    ]
    best = "{:.0f} at batch {}".format(*max(rates)) if rates else ""
    times = [f"{ms(none)} ms", f"{ms(static)} ms", f"{none / static:.1f}"]
    return [[place(recording), f"{max(both):,}", *times, best]]


def place(recording: dict) -> str:
    """The machine's name and threads."""
    facts = recording["machine"]
    return f"{facts.get('device_name', facts['processor'])}, {facts['threads']} threads"


def renewed(readme: str, recordings: list[dict]) -> str:
    """The README with the table between its two marks written anew."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{front(recordings)}\n\n{END}{after}"


def read() -> list[dict]:
    """All recordings, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(RECORDINGS.glob("*.json"))]


def main() -> int:
    """Write the page and the README's table; 0."""
    recordings = read()
    PAGE.write_text(page(recordings))
    README.write_text(renewed(README.read_text(encoding="utf-8"), recordings), encoding="utf-8")
    print(PAGE.relative_to(ROOT), README.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
