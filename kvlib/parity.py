"""Parity: is a cached decoder the same function as the model it decodes?

`check` runs every check of `kvlib.checks` on any Decoder and reports; `compare` is the measurement
under them. The judge is a float64 copy of the reference, see `kvlib.judge`.
"""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from . import checks as _checks  # noqa: F401  enters every check in CHECKS
from . import decoders
from .judge import Difference, Place, compare
from .lab import CHECKS, Check, Lab, Outcome

__all__ = ["CHECKS", "Difference", "ParityReport", "Place", "Row", "check", "compare"]

PASS, FAIL, SKIP = "pass", "fail", "not applicable"
COLUMNS = ("check", "verdict", "max_abs_diff", "where", "meaning")


@dataclass(frozen=True)
class Row:
    """One check's result. `meaning` says what a failure usually comes from, or why it was skipped.

    `max_abs_diff` is the largest absolute logit difference, None where the check measures none;
    `where` is the first row, position, chunk and layer beyond the tolerance.
    """

    check: str
    verdict: str
    max_abs_diff: float | None
    where: str
    meaning: str


@dataclass(frozen=True)
class ParityReport:
    """The rows of one examination, with the tolerance in logits and the reason why it is that.

    `length` is how many tokens were tested, at the most.
    """

    rows: list[Row]
    tolerance: float | None = None
    why: str = ""
    decoder: str = field(default="")
    length: int | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        """False as soon as one applicable check fails."""
        return all(row.verdict != FAIL for row in self.rows)

    def __getitem__(self, name: str) -> Row:
        """The row of the check called `name`."""
        return next(row for row in self.rows if row.check == name)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed, in order."""
        return [row.check for row in self.rows if row.verdict == FAIL]

    def summary(self) -> str:
        """One line: the counts of verdicts, the tolerance, and the tested length in tokens."""
        counts = {
            kind: sum(row.verdict == kind for row in self.rows) for kind in (PASS, FAIL, SKIP)
        }
        owed = "unknown" if self.tolerance is None else f"{self.tolerance:.1e} ({self.why})"
        text = ", ".join(f"{n} {kind}" for kind, n in counts.items()) + f"; tolerance {owed}"
        return text if self.length is None else f"{text}; tested to {self.length} tokens{self.note}"

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            lines.append(f"{row.check:<24}{row.verdict:<16}{shown(row):<10}{row.where}".rstrip())
            if row.meaning and row.verdict == FAIL:
                lines.append(f"{'':<24}{row.meaning}")
            elif row.meaning:
                lines[-1] += f" {row.meaning}"
        return "\n".join([*lines, "", self.summary()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in COLUMNS)
        body = ""
        for row in self.rows:
            cells = (row.check, row.verdict, shown(row), row.where, row.meaning)
            texts = [html.escape(cell) for cell in cells]
            if row.verdict == FAIL:
                texts[1] = f"<strong>{texts[1]}</strong>"
            body += "<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>"
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{table}<p>{html.escape(self.summary())}</p>"

    def as_dict(self) -> dict:
        """The report as plain values for JSON, which has no nan and no infinity: they are None."""
        plain = {"ok": self.ok, **asdict(self)}
        for part in (plain, *plain["rows"]):
            part |= {k: None for k, v in part.items() if type(v) is float and not math.isfinite(v)}
        return plain


def shown(row: Row) -> str:
    """A row's difference as text, empty where the check measures none."""
    return "" if row.max_abs_diff is None else f"{row.max_abs_diff:.1e}"


def check(
    decoder,
    reference=None,
    *,
    checks: Sequence[str] | None = None,
    dtype_tol: float | None = None,
) -> ParityReport:
    """A ParityReport of `decoder`: one row for each of `checks` (names from CHECKS; None: all).

    With a `reference`, another Decoder over the same weights, its logits are the right ones; with
    none the decoder's own uncached pass is. Either is asked for a float64 copy, which judges and
    from which the tolerance is measured; `dtype_tol`, an absolute logit difference, replaces it.
    A check that needs a power the decoder lacks is "not applicable". A decoder that raises gets a
    failing row; this function does not raise for it. Raises ValueError for an unknown check.
    """
    names = list(CHECKS) if checks is None else list(checks)
    for name in names:
        if name not in CHECKS:
            raise ValueError(f"no check {name!r}; choose from {', '.join(CHECKS)}")
    lab = Lab(decoder, reference, dtype_tol)
    rows = [examine(lab, CHECKS[name]) for name in names]
    judge = vars(lab).get("judge")  # only where some check could make one
    window = getattr(decoder, "window", None) or 0
    note = f", within its window of {window}" if window >= lab.limit else ""
    report = ParityReport(rows, None, "", type(decoder).__name__, lab.limit, note)
    return report if judge is None else replace(report, tolerance=judge.tolerance, why=judge.why)


def examine(lab: Lab, item: Check) -> Row:
    """The row of one check, whatever the decoder does."""
    try:
        outcome = item.function(lab)
    except NotImplementedError as lacking:
        return Row(item.name, SKIP, None, "", str(lacking))
    except Exception as error:  # a decoder may fail in any way, and that is a result
        outcome = Outcome(False, None, f"raised {type(error).__name__}: {error}")
    if outcome.ok:
        return Row(item.name, PASS, outcome.max_abs_diff, "", "")
    meaning = f"{outcome.note}. {item.meaning}" if outcome.note else item.meaning
    return Row(item.name, FAIL, outcome.max_abs_diff, outcome.where, meaning)


def add_arguments(parser) -> None:
    """The options of `python -m kvlib parity`."""
    parser.add_argument(
        "--model", default="nano", help="nano, gpt2, or a directory (default: nano)"
    )
    parser.add_argument("--weights", choices=["pretrained", "random"], default="pretrained")
    parser.add_argument(
        "--cache",
        choices=["static", "growing", "none", "hf-dynamic", "hf-static"],
        help="default: static for a GPT-2, hf-dynamic for any other model",
    )
    parser.add_argument("--json", metavar="FILE", help="write the report there too")


def main(args) -> int:
    """Print the report of one model and cache; 0 where every applicable check holds, else 1."""
    report = check(open_decoder(args.model, args.weights, args.cache))
    print(report)
    if args.json:
        Path(args.json).write_text(json.dumps(report.as_dict(), indent=1) + "\n")
    return 0 if report.ok else 1


def open_decoder(name: str, weights: str = "pretrained", cache: str | None = None):
    """The Decoder of a model by name or directory, with one of our caches or Hugging Face's.

    Weights stored in fewer bits are read as float32, whose rounding hides the least.
    """
    from .weights import load

    folder = Path(name)
    kind = "gpt2"
    if folder.is_dir() and (folder / "config.json").exists():
        kind = json.loads((folder / "config.json").read_text()).get("model_type", "gpt2")
    if kind == "gpt2" and cache in (None, "static", "growing", "none"):
        store = None if cache == "none" else cache or "static"
        return decoders.from_kvlib(load(name, weights=weights), store)
    if cache not in (None, "hf-dynamic", "hf-static"):
        raise ValueError(f"cache {cache!r} is for GPT-2; {name} is {kind}: choose hf-dynamic")
    if kind == "gpt2":
        theirs = decoders.to_hf(load(name, weights=weights))
    else:
        from transformers import AutoModelForCausalLM

        safe = dict(use_safetensors=True, trust_remote_code=False, local_files_only=True)
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **safe)
    return decoders.from_hf(theirs, "static" if cache == "hf-static" else "dynamic")
