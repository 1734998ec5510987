"""Write book/measured.md, and the README's table, from the recordings in figures/measured/.

    python tools/measured.py

`python -m kvlib bench --json figures/measured` and `python benchmarks/peers.py` make recordings;
`make measure` does both and calls this.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDINGS, PAGE = ROOT / "figures" / "measured", ROOT / "book" / "measured.md"
README, BEGIN, END = ROOT / "README.md", "<!-- measured -->", "<!-- /measured -->"
PUBLISHED = ["A40 GPU, published", "1,000", "29.69 ms", "4.95 ms", "6.0", ""]
HEAD = """# Measured machines

Every machine that was recorded, generated from `figures/measured/*.json`, which hold each single
sample. Times are medians of interleaved runs in float32, with quartiles in parentheses; chapter 05
defines TTFT, TPOT and throughput and says how they are measured. `make measure` adds your machine.

Published for GPT-2 on an A40 GPU, float32, batch 1, for comparison: 29.69 ms for an uncached step
at context 1000 and 4.95 ms for a cached one (6.0 times); 14.66 s and 5.03 s for 1,016 tokens.
"""


def ms(seconds: float) -> str:
    """Milliseconds with three digits that count."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


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
    return text + f", Python {facts['python']}, torch {facts['torch']}, {facts['dtype']}."


def bench(recording: dict) -> list[str]:
    """The lines for a recording of `python -m kvlib bench`."""
    shape = {(row["prompt_tokens"], row["new_tokens"]) for row in recording["profiles"]}
    lines = [f"{recording['model']}, {recording['weights']} weights, by batch and cache"]
    lines[0] += "".join(f"; prompts of {prompt}, {new} new tokens" for prompt, new in shape) + "."
    headings = ["cache", "batch", "TTFT, ms", "TPOT, ms", "ITL p99, ms", "tokens/s", "decode only"]
    lines += table(
        [*headings, "bytes kept"],
        [
            [
                row["cache"],
                f"{row['batch']}",
                spread(row["ttft_s"]),
                spread(row["tpot_s"]),
                ms(row["itl_s"]["p99"]),
                f"{row['tokens_per_s']['median']:.1f}",
                f"{row['decode_tokens_per_s']['median']:.1f}",
                f"{row['state_bytes']:,}",
            ]
            for row in recording["profiles"]
        ],
    )
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
    """The lines for a recording of `benchmarks/peers.py`: each engine's time over kvlib's."""
    lines = ["The same work by other programs, each in a process of its own, taking turns:"]
    lines[0] += f" time over kvlib's, median of {recording['rounds']} rounds (least to most)."
    lines += by_engine(recording, "{ratio:.2f} ({least:.2f} to {most:.2f})")
    missing = "; ".join(f"{name}: {why}" for name, why in recording["missing"].items())
    return lines + (["", f"Not measured: {missing}."] if missing else [])


def by_engine(recording: dict, cell: str) -> list[str]:
    """A table of engine by work, each row of the recording written as `cell` says."""
    cells = {(row["engine"], row["work"]): cell.format(**row) for row in recording["rows"]}
    works = list(dict.fromkeys(work for _, work in cells))
    engines = dict.fromkeys(engine for engine, _ in cells)
    rows = [[engine, *(cells.get((engine, work), "") for work in works)] for engine in engines]
    return table(["engine", *works], rows)


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
    """The README's table: on each machine, a step of GPT-2 at its longest context, two ways."""
    rows = [PUBLISHED]
    for recording in recordings:
        if "kind" in recording or recording["model"] != "gpt2":
            continue
        steps = {(row["context"], row["cache"]): row["median_s"] for row in recording["steps"]}
        both = [c for c, cache in steps if cache == "none" and (c, "static") in steps]
        if not both:
            continue
        context, facts = max(both), recording["machine"]
        none, static = steps[context, "none"], steps[context, "static"]
        best = max(
            (row["tokens_per_s"]["median"], row["batch"])
            for row in recording["profiles"]
            if row["cache"] == "static"
        )
        where = f"{facts.get('device_name', facts['processor'])}, {facts['threads']} threads"
        cells = [f"{context:,}", f"{ms(none)} ms", f"{ms(static)} ms", f"{none / static:.1f}"]
        rows.append([where, *cells, f"{best[0]:.0f} at batch {best[1]}"])
    headings = ["machine", "context", "uncached step", "cached step", "times faster", "tokens/s"]
    lines = table(headings, rows)
    for recording in recordings:
        if recording.get("kind") == "peers":
            lines += others(recording)
    return "\n".join(lines)


def others(recording: dict) -> list[str]:
    """The README's lines on other engines: their median time over kvlib's, for each work."""
    facts = recording["machine"]
    where = f"{facts['processor']}, {facts['threads']} threads"
    text = f"Other engines at the same work on {where}: time over kvlib's, below 1 where faster."
    return ["", text, *by_engine(recording, "{ratio:.2f}")]


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
