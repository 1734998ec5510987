"""The set-up and the wheel: what a reader installs is what was tested, and needs no network."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
SET_UP = sorted(set(EXTRAS) - {"real", "peers", "mutants"})  # those only for who asks for them
NANO = ROOT / "kvlib" / "data" / "nano"
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


def pins() -> dict[str, str]:
    """Package name -> exact version, as constraints.txt has them."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_dependency_has_a_reason_on_its_line():
    wanted = [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    for requirement in wanted:
        line = next(line for line in lines if line.strip().startswith(f'"{requirement}"'))
        assert re.search(r'", # \w.{10,}$', line), f"no reason for {requirement}"


def test_every_dependency_is_pinned_within_its_range():
    for text in [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["book"]]:
        requirement = Requirement(text)
        pinned = {name.lower().replace("_", "-"): version for name, version in pins().items()}
        assert requirement.specifier.contains(pinned[requirement.name]), text


def test_constraints_name_torch_by_its_public_version_and_no_path():
    text = (ROOT / "constraints.txt").read_text()
    assert pins()["torch"] == "2.13.0"
    assert not re.search(r"[+@/]", text.split("\n", 1)[1]), "a local version or a path"


def test_these_tests_run_at_the_pinned_version_of_torch():
    import torch

    assert torch.__version__.split("+")[0] == pins()["torch"]


def test_conda_installs_what_pip_installs():
    """`-e ... -c ...` on one line would be accepted by pip and its constraints ignored."""
    packages = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python, pip, by_pip = packages
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))
    assert pip == "pip"
    assert by_pip == {"pip": ["-c constraints.txt", f"-e .[{','.join(SET_UP)}]"]}


def test_the_make_set_up_installs_the_same():
    script = (ROOT / "tools" / "setup.sh").read_text()
    assert f'install -e ".[{",".join(SET_UP)}]" -c constraints.txt' in script
    low, high = re.findall(r"\((3, \d+)\)", script)
    wanted = f">={low},<{high}".replace(", ", ".")
    assert PROJECT["requires-python"] == wanted


def run_python(code: str, python=sys.executable, **options) -> str:
    """What `code` prints in a fresh interpreter; its error is this test's error."""
    command = [str(python), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_costs_need_no_torch_and_the_package_no_heavy_import():
    loaded = "import sys, kvlib; kvlib.costs; print(*sorted(sys.modules))"
    assert not {"torch", "transformers", "matplotlib"} & set(run_python(loaded).split())
    everything = "import sys, kvlib; [getattr(kvlib, n) for n in ('GPT2', 'StaticCache', 'load')]"
    modules = run_python(everything + "; print(*sorted(sys.modules))").split()
    assert not {"transformers", "matplotlib", "ipywidgets"} & set(modules)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of the sources by the installed build backend, offline."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text", "LICENSES.md"):
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("kvlib", "figures"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next((source / "dist").glob("*.whl"))


def test_the_wheel_carries_the_data_and_the_version(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("tokenizer/vocab.bpe", "tokenizer/encoder.json", "kv.mplstyle"):
        assert f"kvlib/data/{name}" in names
    assert any(name.endswith("licenses/LICENSES.md") for name in names)
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "kvlib/__init__.py").read_text(), re.M)[1]
    assert wheel.name.startswith(f"kvlib-{version}-")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert not [name for name in names if not name.startswith(("kvlib/", "kvlib-"))]


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory) -> Path:
    """Python of a new environment with only the wheel in it, where every connection is refused.

    torch and the other dependencies are lent by the environment that runs the tests, on a path
    that comes last, so that kvlib can come from nowhere but the wheel.
    """
    home = tmp_path_factory.mktemp("empty") / "env"
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = Path(
        run_python("import sysconfig; print(sysconfig.get_path('purelib'))", python).strip()
    )
    zipfile.ZipFile(wheel).extractall(site)
    lent = home / "lent"
    lent.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(("kvlib", "_kvlib")):
            (lent / package.name).symlink_to(package)
    (site / "lent.pth").write_text(f"{lent}\n")
    (site / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*_):\n"
        "    raise OSError('this test has cut the network')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
    )
    return python


def test_the_wheel_encodes_text_without_network(elsewhere, tmp_path):
    code = "import kvlib; t = kvlib.tokenizer(); print(kvlib.__file__, t.encode_ordinary('a b'))"
    out = run_python(code, elsewhere, cwd=tmp_path)
    assert str(elsewhere.parent.parent) in out and "[64, 275]" in out


def test_the_wheel_draws_in_the_course_style(elsewhere, tmp_path):
    code = "import matplotlib; matplotlib.use('Agg'); from kvlib import plots; plots.use_style()"
    run_python(code + "; print(plots.STYLE)", elsewhere, cwd=tmp_path)


@pytest.mark.skipif(not NANO.exists(), reason="nano is not trained yet")
def test_the_wheel_loads_nano_without_network(elsewhere, tmp_path):
    code = (
        "import kvlib; model = kvlib.load('nano'); "
        "text = kvlib.tokenizer().encode_ordinary('To be'); import torch; "
        "print(kvlib.generate(model, torch.tensor([text]), 3).shape)"
    )
    assert "[1, 5]" in run_python(code, elsewhere, cwd=tmp_path)


# The set-up itself, with a stand-in for Python that installs nothing and notes what it was asked.
STAND_IN = """#!/bin/sh
echo "$@" >> "$LOG"
case "$1 $2" in
"-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
"-m pip") [ "$3" = --version ] || [ -z "${PIP_FAILS:-}" ] || exit 1 ;;
"-c "*) exec REAL -c "import sys; sys.version_info = ($VERSION, 0)
$2" ;;
esac
"""


class Clone:
    """A directory with only what the set-up reads, in which `make` runs with the stand-in."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder / "log"
        (folder / "tools").mkdir()
        for name in ("Makefile", "tools/setup.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "python").write_text(STAND_IN.replace("REAL", sys.executable))
        (folder / "python").chmod(0o755)

    def make(self, version="3, 11", target=".venv/.ready", **environment):
        """The finished `make`, and the arguments that Python was called with."""
        self.log.write_text("")
        environment = {**os.environ, "LOG": str(self.log), "VERSION": version, **environment}
        command = ["make", target, f"PYTHON={self.folder / 'python'}"]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True
        )
        return done, self.log.read_text()


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path)


@needs_make
def test_set_up_happens_once_and_again_when_the_versions_change(clone):
    done, asked = clone.make()
    assert done.returncode == 0 and "-m pip install" in asked, done.stderr
    assert clone.make()[1] == ""
    later = (clone.folder / ".venv/.ready").stat().st_mtime + 10
    os.utime(clone.folder / "constraints.txt", (later, later))
    _, asked = clone.make()
    assert "-m pip install" in asked and "-m venv" not in asked


@needs_make
@pytest.mark.parametrize("version", ["3, 9", "3, 15"])
def test_a_python_without_wheels_stops_with_one_line_that_says_what_to_do(clone, version):
    done, asked = clone.make(version)
    assert done.returncode
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1 and "Python 3.11 to 3.14 is needed" in said[0], done.stderr
    assert "make PYTHON=" in said[0] and "-m venv" not in asked


@needs_make
def test_a_failed_install_says_what_to_do_and_is_resumed(clone):
    done, _ = clone.make(PIP_FAILS="1")
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode and len(said) == 1 and "then run make again" in said[0]
    done, asked = clone.make()
    assert done.returncode == 0 and "-m pip install" in asked


@needs_make
def test_a_package_whose_unpacking_was_cut_short_is_not_trusted(clone):
    """pip takes a package as installed as soon as its .dist-info exists, complete or not."""
    clone.make(PIP_FAILS="1")
    site = clone.folder / ".venv/lib/python3.11/site-packages"
    for name in ("whole", "half"):
        (site / f"{name}-1.dist-info").mkdir(parents=True)
    (site / "whole-1.dist-info" / "INSTALLER").write_text("pip\n")
    clone.make()
    assert [path.name for path in site.iterdir()] == ["whole-1.dist-info"]


def test_what_came_from_elsewhere_is_listed_with_its_licence():
    text = (ROOT / "LICENSES.md").read_text()
    for home in ("kvlib/data", "book/_static/vendor", "tests/vendor"):
        for folder in (path for path in (ROOT / home).iterdir() if path.is_dir()):
            assert f"`{home}/{folder.name}/`" in text, f"{folder} is not in LICENSES.md"


def test_no_module_imports_what_pyproject_does_not_declare():
    declared = {Requirement(text).name for text in PROJECT["dependencies"]}
    brought = {"IPython", "matplotlib_inline", "PIL", "tiktoken_ext", "huggingface_hub"}
    known = declared | brought | {"kvlib"} | set(sys.stdlib_module_names)
    for path in (ROOT / "kvlib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in known, f"{path.name} imports {name}"
