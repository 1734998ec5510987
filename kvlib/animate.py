"""A run of a model as moving pictures: each token's query, the cache, and the attention it pays.

One frame a token. A GIF fits everywhere; an HTML page holds every frame without loss, with controls
and no need of a network; an MP4 needs ffmpeg.
"""

import base64
import html
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from PIL import Image
from tqdm.auto import tqdm

from . import look
from .model import GPT2
from .plots import STYLE
from .plots.look import cache_step, palette
from .tokenizer import tokenizer

PROMPT = "ROMEO.\nMy heart is heavy, and"
MAX_TOKENS = 64  # rows that can still be read in one picture
FRAME_MS, HOLD = 900, 3  # the last frame stays as long as three
DPI = 150  # sharp where a page shows it at 840 pixels


def animate(
    model: GPT2,
    prompt: str = PROMPT,
    *,
    layer: int = 3,
    head: int = 4,
    new: int = 13,
    out: str | Path = "cache.gif",
    name: str = "",
    progress: bool = True,
) -> Path:
    """The path of a moving picture of one head: a frame a token, of the prompt and `new` more.

    The new tokens are the model's likeliest. `out` ends in .gif, .html or .mp4 and decides the
    format; `name` is what the picture calls the model; `progress` shows a bar, in a terminal or a
    notebook. The same arguments give the same bytes.

    Raises ValueError or IndexError, before the model runs, for a format, layer, head or length that
    cannot be drawn, and OSError where an .mp4 is asked for without ffmpeg.
    """
    path = Path(out)
    save = writer(path)
    check_place(model, layer, head)
    ids = tokenizer().encode_ordinary(prompt)
    check_length(len(ids), new)
    tokens = torch.tensor([ids], dtype=torch.int64, device=model.wte.weight.device)
    run = look.run(model, tokens, new)
    title = ", ".join(part for part in (name, f"layer {layer}, head {head}") if part)
    captions = [caption(run, step) for step in range(len(run.words))]
    save(path, frames(run, layer, head, title, progress), captions)
    return path


def writer(path: Path):
    """The function that writes what the suffix of `path` asks for."""
    ways = {".gif": write_gif, ".html": write_html, ".mp4": write_mp4}
    if path.suffix.lower() not in ways:
        raise ValueError(f"cannot write {path.name!r}: the name must end in {', '.join(ways)}")
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise OSError("an .mp4 needs ffmpeg, which is not on PATH; install it, or write .html")
    if not path.parent.is_dir():
        raise OSError(f"there is no directory {str(path.parent)!r}; make it, or write elsewhere")
    return ways[path.suffix.lower()]


def check_place(model: GPT2, layer: int, head: int) -> None:
    """Raise IndexError where the model has no such layer or head."""
    for what, value, count in (
        ("layer", layer, model.config.n_layer),
        ("head", head, model.config.n_head),
    ):
        if type(value) is not int or not 0 <= value < count:
            raise IndexError(f"no {what} {value!r}; this model has {what}s 0 to {count - 1}")


def check_length(prompt: int, new: int) -> None:
    """Raise ValueError for a prompt without tokens, or more tokens than can be drawn."""
    if not prompt:
        raise ValueError("the prompt is empty; give at least one token of text")
    if type(new) is not int or new < 0:
        raise ValueError(f"new must be an integer from 0 on, not {new!r}")
    if prompt + new > MAX_TOKENS:
        raise ValueError(
            f"{prompt} prompt + {new} new tokens are {prompt + new} rows, and {MAX_TOKENS} is the "
            "most that can be read in one picture; shorten the prompt or ask for fewer"
        )


def frames(
    run: look.Run, layer: int, head: int, title: str, progress: bool
) -> Iterator[Image.Image]:
    """The picture of each token, in order, with a progress bar if asked for."""
    for step in tqdm(range(len(run.words)), unit="frame", disable=not progress):
        raw = io.BytesIO()
        with plt.style.context(STYLE):
            figure = cache_step(run, step, layer, head, title)
            figure.savefig(raw, format="png", dpi=DPI, pil_kwargs={"compress_level": 1})
        plt.close(figure)
        yield Image.open(raw).convert("RGB")


def caption(run: look.Run, step: int) -> str:
    """What the frame of one token shows, in a sentence."""
    phase = "prefill" if step < run.prompt else "decode"
    word, _ = run.chosen[step]
    return (
        f"{phase}, token {step + 1} of {len(run.words)}: {run.words[step]}, likeliest next {word}"
    )


def write_gif(path: Path, pictures: Iterator[Image.Image], _: list[str]) -> None:
    """Write a GIF that repeats for ever, all frames in one palette of at most 256 colours."""
    sheet = Image.new("P", (1, 1))
    sheet.putpalette([part for colour in palette() for part in colour])
    first, *rest = (one.quantize(palette=sheet, dither=Image.Dither.NONE) for one in pictures)
    times = [FRAME_MS] * len(rest) + [HOLD * FRAME_MS]
    first.save(path, save_all=True, append_images=rest, duration=times, loop=0, optimize=False)


def png(picture: Image.Image) -> bytes:
    """The picture as PNG, without loss."""
    raw = io.BytesIO()
    picture.save(raw, "PNG", optimize=True)
    return raw.getvalue()


def write_html(path: Path, pictures: Iterator[Image.Image], captions: list[str]) -> None:
    """Write a page that needs nothing else: every frame as PNG, a slider, a button to play."""
    addresses = ["data:image/png;base64," + base64.b64encode(png(p)).decode() for p in pictures]
    data = json.dumps(dict(frames=addresses, captions=captions)).replace("<", "\\u003c")
    page = (Path(__file__).parent / "data" / "animation.html").read_text(encoding="utf-8")
    filled = page.replace("{{first}}", addresses[0]).replace("{{alt}}", html.escape(captions[0]))
    filled = filled.replace("{{last}}", str(len(addresses) - 1))
    path.write_text(filled.replace("{{data}}", data), encoding="utf-8", newline="\n")


def write_mp4(path: Path, pictures: Iterator[Image.Image], _: list[str]) -> None:
    """Write an MP4 by ffmpeg, each frame as long as in the GIF."""
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "image2pipe", "-c:v", "png"]
    command += ["-framerate", f"1000/{FRAME_MS}", "-i", "-", "-c:v", "libx264", "-crf", "12"]
    # Halved colours need even sides; one thread and no date make the same bytes each time.
    command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2,format=yuv420p", "-threads", "1"]
    command += ["-fflags", "+bitexact", "-flags:v", "+bitexact", "-movflags", "+faststart"]
    shots = [png(picture) for picture in pictures]
    shots += (HOLD - 1) * shots[-1:]
    done = subprocess.run([*command, str(path)], input=b"".join(shots), capture_output=True)
    if done.returncode:
        raise OSError(f"ffmpeg could not write {path.name}: {done.stderr.decode().strip()}")


def add_arguments(parser) -> None:
    """The options of `python -m kvlib animate`."""
    parser.add_argument("--prompt", default=PROMPT, help="text to prefill with")
    parser.add_argument("--layer", type=int, default=3, help="from 0 (default: 3)")
    parser.add_argument("--head", type=int, default=4, help="from 0 (default: 4)")
    parser.add_argument("--new", type=int, default=13, help="tokens to decode (default: 13)")
    parser.add_argument(
        "--model", default="nano", help="nano, gpt2, or a directory of yours (default: nano)"
    )
    parser.add_argument("--weights", choices=["pretrained", "random"], default="pretrained")
    parser.add_argument(
        "--out", default="cache.gif", help="a .gif, .html or .mp4 (default: cache.gif)"
    )


def main(args) -> int:
    """Write the moving picture and print its path and size; 0."""
    from .weights import load

    writer(Path(args.out))  # refuse a bad name before a model is loaded
    model = load(args.model, weights=args.weights)
    how = dict(layer=args.layer, head=args.head, new=args.new, out=args.out)
    watched = sys.stderr.isatty()  # no bar in a log
    path = animate(model, args.prompt, **how, name=Path(args.model).name, progress=watched)
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0
