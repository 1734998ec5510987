"""Every wrong answer that an exercise names is given, and the reader is told what it comes from.

A check cell is run with the earlier cells it depends on, and with those alone: a name leads to the
cells before that bind it.
"""

import contextlib
import io
import symtable
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import torch

from kvlib import exercise

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
RETRY = (
    "def update(self, layer, k, v):\n    stored = self.rows[{1}][:, :, :, : self.length]\n"
    "    self.rows[{1}] = torch.cat([stored, torch.stack([{0}])], dim=3)\n"
    "    {2}return self.rows[{1}]"
)
# What a reader might write into a stub that asks for code, and how the check's answer begins.
MISTAKES = {
    ("01", "modify"): [
        ("def last_output(Q, K, V):\n    return (Q[-1:] @ K.T).softmax(-1)[0] @ V", "Divide"),
        ("def last_output(Q, K, V):\n    return (Q[-1:] @ K.T / 2**0.5)[0] @ V", "Scores are not"),
        ("def last_output(Q, K, V):\n    return attention(Q[-1:], K[:1], V[:1])[0]", "Your mask"),
        ("def last_output(Q, K, V):\n    return attention(Q, K, V)", "These are all rows"),
        ("def last_output(Q, K, V):\n    return attention(Q, K, V)[-1]", "The right row, but"),
        ("last_output = lambda Q, K, V: (Q[-1] @ K.T / 2**0.5).softmax(-1) @ V", "Right here"),
    ],
    ("02", "last"): [
        ("def last_logits(t, w, c):\n    return forward(t, w, c)[-1:]", "Right values, but"),
        ("def last_logits(t, w, c):\n    return forward(t[:1], w, c)", "One row, but"),
        ("def last_logits(t, w, c):\n    return forward(t, w, c)[-1]", "A table of one row"),
    ],
    ("03", "modify"): [
        ("update = OwnCache.update", "The rows of the failed pass"),
        (
            "def update(self, layer, k, v):\n    self.rows[layer] = torch.stack([k, v])\n"
            "    return self.rows[layer]",
            "The stored rows are gone",
        ),
        (RETRY.format("k, k", "layer", ""), "These keys are right"),
        (RETRY.format("v, k", "layer", ""), "Work the smallest"),
        (RETRY.format("k, v", "0", ""), "These keys are right"),
        (RETRY.format("k, v", "layer", "self.length += k.shape[2]; "), "`length` moves"),
    ],
    ("04", "exercise-2"): [
        ("sizes = [1] * 12", "Order needs"),
        ("sizes = [2, 1]", "Order needs"),
        ("sizes = [3]", "Order needs"),
        ("sizes = [4, 4]", "Exposed; fewer"),
        ("sizes = [1, 3]", "Exposed; fewer"),
    ],
    ("05", "exercise-2"): [
        ("def ttft_and_tpot(r):\n    return np.median([x[0] for x in r]), "
         "np.median([sum(x) / len(x) for x in r])", "The first token is"),
        ("def ttft_and_tpot(r):\n    return np.median([x[0] for x in r]), "
         "np.median([sum(x[1:]) / len(x) for x in r])", "After the first"),
        ("def ttft_and_tpot(r):\n    return np.median([x[-1] for x in r]), "
         "np.median([sum(x[1:]) / 3 for x in r])", "That is the last"),
        ("def ttft_and_tpot(r):\n    return np.mean([x[0] for x in r]), "
         "np.mean([sum(x[1:]) / 3 for x in r])", "A mean"),
        ("def ttft_and_tpot(r):\n    return np.median([x[0] for x in r]), "
         "np.median([x[1:] for x in r])", "Of single ITLs"),
        ("def ttft_and_tpot(r):\n    return 0.5", "Work the smallest"),
    ],
    ("06", "modify"): [
        ("def freed():\n    return [0, 2]", "No free block"),
        ("def freed():\n    return [0, 0]", "Give a list of two different"),
        ("def freed():\n    return [0, 8]", "Give a list of two different"),
        ("def freed():\n    return 5", "Give a list of two different"),
        ("def freed():\n    return [0, 1, 2]", "Give a list of two different"),
        ("def freed():\n    return range(8)", "Give a list of two different"),
    ],
    ("07", "modify"): [
        ("def first_batch(card):\n    return 1", "That step is its calls"),
        ("def first_batch(card):\n    b = 1\n    while b * card.parts(config, 1000)['weights'] + "
         "b * card.parts(config, 1000)['cache'] < 4e-3:\n        b += 1\n    return b",
         "The weights are read once"),
        ("def first_batch(card):\n    return max(b for b in range(1, 99) "
         "if card.step_s(config, 1000, b) <= 4e-3)", "One less"),
    ],
    ("10", "modify"): [
        ("def own(w):\n    return w.diagonal(-1).mean()", "That is the score of a previous"),
        ("def own(w):\n    return w[1:, 0].mean()", "That is the weight on the first token, in"),
        ("def own(w):\n    return w[:, 0].mean()", "That is the weight on the first token, query"),
        ("def own(w):\n    return w.diagonal().mean()", "Query 0 is still in it"),
        ("def own(w):\n    return w.diagonal()[1:].sum() / 4", "The sum is right"),
        ("def own(w):\n    return w.mean()", "That is the mean of the whole"),
        ("def own(w):\n    return w.diagonal()[1:]", "One number is asked"),
        ("def own(w):\n    return [0.25, 0.3]", "One number is asked"),
    ],
}  # fmt: skip


@cache
def code_cells(path: Path) -> list:
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def checks() -> list:
    """Each notebook with each of its check cells that a reader runs."""
    return [
        pytest.param(path, cell.id, id=f"{path.stem[:2]}-{cell.id}")
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
        for cell in code_cells(path)
        if "exercise.check(" in cell.source and "hide-cell" not in cell.metadata.get("tags", [])
    ]


def names(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell binds, and those it reads and does not bind itself."""
    top = symtable.symtable(source, "cell", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    read, scopes = {s.get_name() for s in top.get_symbols() if s.is_referenced()}, [top]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        if scope is not top:
            read |= {s.get_name() for s in scope.get_symbols() if s.is_global()}
    bound |= {child.get_name() for child in top.get_children()}
    return bound, read - bound


def needed(path: Path, cell_id: str) -> list[str]:
    """The sources, in order, of the cell and of those before it that it cannot do without."""
    sources = [(cell.id, cell.source) for cell in code_cells(path)]
    last = [name for name, _ in sources].index(cell_id)
    chosen, missing = [sources[last][1]], names(sources[last][1])[1]
    for _, source in reversed(sources[:last]):
        bound, read = names(source)
        if bound & missing:
            chosen.insert(0, source)
            missing = (missing - bound) | read
    return chosen


def asked(path: Path, cell_id: str, monkeypatch, answer: str | None = None) -> list:
    """The arguments of the cell's call of `exercise.check`; `answer` is run in the stub's place."""
    calls = []
    monkeypatch.setattr(exercise, "check", lambda *given, **_: calls.append(given))
    monkeypatch.chdir(path.parent)
    sources = needed(path, cell_id)
    if answer is not None:
        sources[-2] = answer
    namespace: dict = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for source in sources:
            exec(compile(source, cell_id, "exec"), namespace)
    monkeypatch.undo()
    plt.close("all")
    return calls[0]


OTHERWISE = {  # right answers that are not the solution's
    ("01", "modify"): "def last_output(Q, K, V):\n"
    "    return (K @ Q[-1] / K.shape[1] ** 0.5).softmax(0) @ V",
    ("03", "modify"): "def update(self, layer, k, v):\n"
    "    old = self.rows[layer][..., : self.length, :]\n"
    "    self.rows[layer] = torch.stack([torch.cat(x, 2) for x in zip(old, (k, v))])\n"
    "    return self.rows[layer]",
}


def told(answer, right, hints, capsys) -> str:
    capsys.readouterr()
    assert not exercise.check(answer, right, hints)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("path, cell_id", checks())
def test_each_wrong_answer_is_told_what_it_comes_from(path, cell_id, monkeypatch, capsys):
    answer, right, hints = asked(path, cell_id, monkeypatch)
    assert answer is None and right is not None and hints
    assert exercise.check(right, right)
    for wrong, why in hints.items():
        if wrong is not None:
            assert told(wrong, right, hints, capsys) == f"Not yet: {wrong!r}. {why}"
        assert why[0].isupper() or not why[0].isalpha(), why
        assert why.endswith((".", "?")), why


@pytest.mark.parametrize(
    "chapter, exercise_id, answer, start",
    [(*key, *mistake) for key, mistakes in MISTAKES.items() for mistake in mistakes],
)
def test_a_mistake_in_code_is_recognised(chapter, exercise_id, answer, start, monkeypatch, capsys):
    path = next(NOTEBOOKS.glob(f"{chapter}_*.ipynb"))
    given, right, hints = asked(path, f"{exercise_id}-check", monkeypatch, answer)
    assert told(given, right, hints, capsys).split(". ", 1)[1].startswith(start)


@pytest.mark.parametrize("chapter, exercise_id, answer", [(*k, v) for k, v in OTHERWISE.items()])
def test_a_right_answer_written_otherwise_is_right(chapter, exercise_id, answer, monkeypatch):
    path = next(NOTEBOOKS.glob(f"{chapter}_*.ipynb"))
    assert exercise.check(*asked(path, f"{exercise_id}-check", monkeypatch, answer))


@pytest.mark.parametrize(
    "answer, right",
    [(torch.tensor(60), 60), (np.int64(60), 60), (60.0, 60), ("(C)", "c"), ("c, b", "bc")]
    + [(["b", "c"], "bc"), ("Launch ", "launch")],
)
def test_an_answer_in_another_form_is_the_same(answer, right, capsys):
    assert exercise.check(answer, right)
    assert not exercise.check(answer, "other")
    assert not exercise.check(torch.tensor([60, 60]), right)
