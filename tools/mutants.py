"""Change the engine in hundreds of small ways, one at a time, and list what no test notices.

    python tools/mutants.py        exit status 1 where a survivor is not explained in mutants.txt

mutmut makes the changes and runs the tests of the model, caches, generation and step on each, in a
copy under .cache/mutants, so that a run can be interrupted and resumed. Changes of texts alone
are left out, and so is the command line, whose tests start another process. A change on which the
tests hang is no success and is listed like a survivor. mutmut makes no change inside a decorated
function (properties, class methods, `torch.no_grad`): what those do is not covered by this list.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPY = ROOT / ".cache" / "mutants"
EXPLAINED = Path(__file__).with_suffix(".txt")
UNSEEN = ("survived", "no tests", "timeout", "suspicious", "segfault")
COMMAND_LINE = ("x_main__", "x_add_arguments__")
TEXT = re.compile(r"""f?("[^"]*"|'[^']*')""")


def mutmut(*args: str, **options) -> subprocess.CompletedProcess:
    """One call of mutmut in the copy, with one thread: forked children hang with more."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(Path(sys.executable).with_name("mutmut")), *args]
    return subprocess.run(command, cwd=COPY, env=environment, text=True, **options)


def refresh() -> None:
    """Bring the copy up to date; what mutmut has worked out stays beside it."""
    for name in ("kvlib", "tests", "tools", "figures"):
        shutil.rmtree(COPY / name, ignore_errors=True)
        shutil.copytree(ROOT / name, COPY / name)
    shutil.copy(ROOT / "pyproject.toml", COPY)


def survivors() -> list[tuple[str, str]]:
    """(name, status) of each mutant that no test noticed, the command line's left out."""
    listed = mutmut("results", capture_output=True, check=True).stdout
    found = re.findall(r"^\s*(kvlib\.\S+): (.+)$", listed, re.M)
    return [
        (name, status)
        for name, status in found
        if status in UNSEEN and not any(part in name for part in COMMAND_LINE)
    ]


def change(name: str) -> tuple[str, str]:
    """The lines that a mutant takes away and puts in, each as one text."""
    diff = mutmut("show", name, capture_output=True, check=True).stdout
    old, new = ([], [])
    for sign, line in re.findall(r"^([-+])(?!--|\+\+)(.*)$", diff, re.M):
        (old if sign == "-" else new).append(line.strip())
    return " ".join(old), " ".join(new)


def explained() -> set[tuple[str, str]]:
    """(function, new line) of each survivor that mutants.txt explains."""
    found = re.findall(r"^(\S+): (.+)\n    \S", EXPLAINED.read_text(), re.M)
    return set(found)


def main() -> int:
    refresh()
    mutmut("run", check=True)
    known, count = explained(), 0
    for name, status in survivors():
        old, new = change(name)
        function = re.sub(r"^kvlib\.|__mutmut_\d+$", "", name)
        if TEXT.sub("''", old) == TEXT.sub("''", new) or (function, new) in known:
            continue
        count += 1
        print(f"{function}: {new}\n    {status}; it was: {old}")
    print(f"{count} survivors are not explained in {EXPLAINED.name}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
