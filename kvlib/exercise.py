"""Exercises that check themselves and say what is likely wrong."""

import contextlib
import math


def check(answer, right, hints: dict | None = None, explain: str = "") -> bool:
    """True where `answer` equals `right`; prints one line either way.

    An untouched stub (None) is no mistake and prints so. `hints` maps a wrong answer to the
    mistake it usually comes from. Floats count as equal within one part in a million, a tensor or
    array of one number as that number, and letters in any case and order as the same letters.
    """
    if answer is None:
        print("Not answered yet: replace None in the cell above, run it, then run this one.")
        return False
    if equal(answer, right):
        print("Right." + (f" {explain}" if explain else ""))
        return True
    hint = next((why for wrong, why in (hints or {}).items() if equal(answer, wrong)), None)
    print(f"Not yet: {answer!r}. {hint or 'Work the smallest case by hand and compare.'}")
    return False


def equal(a, b) -> bool:
    """True where two answers are the same: numbers by value, letters in any order, else by ==."""
    a, b = plain(a), plain(b)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6)
    return type(a) is type(b) and a == b


def plain(answer):
    """The number in a tensor or array of one, the letters of "(B, c)" in order; else `answer`."""
    if hasattr(answer, "item"):
        with contextlib.suppress(RuntimeError, ValueError):  # more numbers than one
            return answer.item()
    if isinstance(answer, list) and all(isinstance(part, str) for part in answer):
        answer = "".join(answer)
    if isinstance(answer, str):
        letters = "".join(filter(str.isalnum, answer)).lower()
        return "".join(sorted(letters)) if set(letters) <= set("abcde") else letters
    return answer
