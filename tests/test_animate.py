"""The moving picture: real numbers, one frame a token, the same bytes twice, plain refusals."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from browser import chromium
from kvlib import GPT2Config, GrowingCache, animate, generate, load, look, plots, tokenizer
from kvlib.__main__ import main
from kvlib.model import GPT2
from kvlib.plots.look import drawable, dwarfed, inset_scale, number_scale

TEXT = "Once more,\n 🙂 dear friends"


@pytest.fixture(scope="module")
def nano():
    return load("nano")


def encode(text: str) -> torch.Tensor:
    return torch.tensor([tokenizer().encode_ordinary(text)])


@pytest.fixture(scope="module")
def run(nano):
    return look.run(nano, encode(TEXT), 4)


@pytest.fixture(scope="module")
def sink(run):
    """The same run with nearly all attention on the first token."""
    weights = 0.04 * run.weights
    weights[..., 0] += 0.96
    return replace(run, weights=weights)


def test_the_run_is_what_generation_with_a_cache_does(nano, run):
    tokens = generate(nano, encode(TEXT), 4)
    assert run.words == [look.readable(token) for token in tokens[0].tolist()]
    assert run.prompt == encode(TEXT).shape[1] and run.q.shape == (6, 6, run.prompt + 4, 32)
    cache = GrowingCache(nano.config)
    with torch.no_grad():
        logits = nano(tokens, cache)[0]
    assert (torch.stack(cache.keys)[:, 0] - run.k).abs().max() < 1e-4
    assert (torch.stack(cache.values)[:, 0] - run.v).abs().max() < 1e-4
    likely = logits.softmax(-1).max(-1)
    assert [p for _, p in run.chosen] == pytest.approx(likely.values.tolist(), abs=1e-4)
    assert [word for word, _ in run.chosen[run.prompt - 1 : -1]] == run.words[run.prompt :]


def test_the_weights_are_those_the_model_used(nano, run):
    """Weights times values must be what each layer's attention hands to its output projection."""
    tokens = generate(nano, encode(TEXT), 4)
    mixed, hooks = [], []
    for block in nano.h:
        hook = lambda _, inputs: mixed.append(inputs[0])  # noqa: E731
        hooks.append(block.attn.c_proj.register_forward_pre_hook(hook))
    with torch.no_grad():
        nano(tokens)
    for hook in hooks:
        hook.remove()
    expected = (run.weights @ run.v).transpose(1, 2).flatten(2)  # (L, N, C)
    assert (torch.cat(mixed) - expected).abs().max() < 1e-4
    assert (run.weights.triu(1) == 0).all()


def test_a_batch_has_the_weights_of_its_rows(nano, run):
    tokens = generate(nano, encode(TEXT), 4)
    both = look.weights(nano, torch.cat([tokens, tokens.flip(1)]))
    assert (both[:, 0] - run.weights).abs().max() < 1e-4


def test_scores_of_heads_that_do_one_thing():
    T = 12
    for name, back in (("previous", 1), ("near", 3)):
        rows = [max(0, i - back) for i in range(T)]
        found = look.scores(torch.eye(T)[rows][None, None, None])
        assert found[name] == 1, name
        assert found["first"] == sum(row == 0 for row in rows[2:]) / (T - 2)
    nothing = look.scores(torch.eye(T)[[max(0, i - 4) for i in range(T)]][None, None, None])
    assert nothing["near"] == 0 and nothing["previous"] == 0
    copying = torch.eye(T)[[max(0, i - 4) for i in range(T)]][None, None, None]
    assert look.induction(copying, period=5) == 1 and look.induction(copying, period=6) == 0
    assert look.entropy(torch.full((1, 1, 1, 1, 8), 1 / 8)).item() == pytest.approx(np.log(8))


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (" a", ["␣a"]),
        ("\n\t", ["↵", "⇥"]),
        ("🙂", ["<F0 9F>", "<99 82>"]),
        ("\u200b", ["U+200B"]),
        ("\u00ad", ["U+00AD"]),
        ("$x$", ["$", "x", "$"]),
    ],
)
def test_every_token_is_readable(text, labels):
    assert [look.readable(token) for token in tokenizer().encode_ordinary(text)] == labels


def test_labels_fit_and_use_only_letters_the_font_has():
    assert look.readable(60000) == "<60000>"
    assert drawable("你") == "U+4F60"
    assert drawable("a" * 40) == "a" * 11 + "…"


def test_scales_hold_for_every_frame(run, sink):
    numbers = torch.stack([run.q, run.k, run.v])[:, 2, 1].abs()
    limit = number_scale(run, 2, 1)
    assert 0.98 < (numbers <= limit).float().mean() < 1
    assert inset_scale(run, 2, 1) is None
    assert inset_scale(sink, 2, 1) == sink.weights[2, 1, 2:, 1:].max()


def test_a_first_token_dwarfs_only_others():
    assert not dwarfed(np.array([1.0]))
    assert not dwarfed(np.array([0.9, 0.1]))
    assert not dwarfed(np.array([0.6, 0.2, 0.2]))
    assert not dwarfed(np.array([0.5, 0.125, 0.125]))  # four times is not more
    assert dwarfed(np.array([0.9, 0.05, 0.05]))


@pytest.mark.parametrize("step", [0, 3, -1])
def test_a_frame_shows_one_scale_and_the_sink_at_its_true_height(run, sink, step):
    step %= len(run.words)
    for shown, bars in ((run, 1), (sink, 2 if step else 1)):
        figure = plots.cache_step(shown, step, 2, 1, "nano")
        maps = [ax.images[0].get_clim() for ax in figure.axes if ax.images]
        assert len(maps) == 5 and len({round(high, 4) for _, high in maps}) == 1
        assert all(low == -high for low, high in maps)
        axes = [ax for ax in figure.axes if ax.patches and not ax.images]
        assert len(axes) == bars
        heights = [bar.get_width() for bar in axes[0].patches[: step + 1]]
        assert heights == pytest.approx(shown.weights[2, 1, step, : step + 1].tolist())
        assert axes[0].get_xlim() == (0, 1)


def texts(figure) -> str:
    return " ".join(text.get_text() for text in figure.texts)


def test_prefill_and_decode_are_told_apart(run):
    assert "PREFILL" in texts(plots.cache_step(run, run.prompt - 1, 0, 0))
    assert "DECODE" in texts(plots.cache_step(run, run.prompt, 0, 0))


@pytest.mark.parametrize(("step", "letters"), [(0, "WW"), (1, "WW"), (2, "RRW")])
def test_rows_read_and_written_are_told_apart_by_letters_too(nano, step, letters):
    """They were coloured marks alone, which the docstring called letters."""
    figure = plots.cache_step(look.run(nano, encode("O Romeo"), 2), step, 0, 0)
    marked = ["".join(text.get_text() for text in ax.texts) for ax in figure.axes]
    assert [found for found in marked if set(found) <= set("RW") and found] == [letters] * 2
    assert "W  written by this pass" in texts(figure) and "R  read from" in texts(figure)


def test_a_gif_has_one_frame_a_token_and_the_same_bytes_twice(nano, tmp_path):
    first, again = (
        animate.animate(nano, "O Romeo", layer=0, head=5, new=2, out=tmp_path / name)
        for name in ("a.gif", "b.gif")
    )
    assert first.read_bytes() == again.read_bytes()
    with Image.open(first) as gif:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(gif)]
        assert gif.info["loop"] == 0
        assert gif.info["duration"] == animate.HOLD * animate.FRAME_MS  # the last one's
    assert len(frames) == 2 + encode("O Romeo").shape[1]
    assert len({frame.tobytes() for frame in frames}) == len(frames)


def test_the_committed_gif_fits_a_readme():
    path = animate.Path(__file__).parent.parent / "figures" / "cache.gif"
    assert path.stat().st_size < 4_000_000
    with Image.open(path) as gif:
        assert gif.n_frames == 13 + encode(animate.PROMPT).shape[1]


def test_the_page_plays_every_frame_without_loss(nano, tmp_path):
    path = animate.animate(nano, "O </script>", new=1, out=tmp_path / "a.html")
    assert path.read_bytes() == animate.animate(nano, "O </script>", new=1, out=path).read_bytes()
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        errors = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(path.as_uri())
        first = tab.locator("img").get_attribute("src")
        tab.locator("input").press("End")
        assert tab.locator("img").get_attribute("src") != first
        assert "decode, token" in tab.locator("img").get_attribute("alt")
        tab.get_by_role("button", name="Play").click()
        assert tab.locator("input").input_value() == "0"
        tab.get_by_role("button", name="Pause").click()
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert errors == []


def test_an_mp4_without_ffmpeg_names_the_fix(nano, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(OSError, match="needs ffmpeg.*install it, or write .html"):
        animate.animate(nano, out=tmp_path / "a.mp4")


def test_an_mp4_holds_its_last_frame_as_long_as_a_gif(tmp_path, monkeypatch):
    """It was shown for 0.9 s, and in the GIF for 3 s."""
    given = []
    monkeypatch.setattr(subprocess, "run", lambda command, **how: given.append(how) or Done())
    colours = ("red", "green", "blue")
    animate.write_mp4(tmp_path / "a.mp4", (Image.new("RGB", (2, 2), c) for c in colours), [])
    shots = given[0]["input"].split(b"\x89PNG")[1:]
    assert len(shots) == 2 + animate.HOLD and len(set(shots)) == 3
    assert set(shots[2:]) == {shots[-1]}


class Done:
    """What `subprocess.run` returns where all went well."""

    returncode = 0


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="there is no ffmpeg on PATH")
def test_an_mp4_is_the_same_twice(nano, tmp_path):
    made = [animate.animate(nano, "O", new=1, out=tmp_path / name) for name in ("a.mp4", "b.mp4")]
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (dict(layer=6), IndexError, "no layer 6; this model has layers 0 to 5"),
        (dict(head=-1), IndexError, "no head -1; this model has heads 0 to 5"),
        (dict(layer=True), IndexError, "no layer True"),
        (dict(out="a.webp"), ValueError, "cannot write 'a.webp': the name must end in .gif"),
        (dict(out="nowhere/a.gif"), OSError, "no directory 'nowhere'; make it"),
        (dict(prompt=""), ValueError, "the prompt is empty"),
        (dict(new=-1), ValueError, "new must be an integer from 0 on, not -1"),
        (dict(prompt="a" * 500), ValueError, "64 is the most that can be read"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_model_runs(nano, wrong, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        animate.animate(nano, **wrong)


def test_a_run_is_one_sequence_within_the_model(nano):
    with pytest.raises(ValueError, match="one sequence, not 2"):
        look.run(nano, torch.ones(2, 3, dtype=torch.int64), 1)
    with pytest.raises(IndexError, match="200 prompt . 60 new .* at most 56 new"):
        look.run(nano, torch.ones(1, 200, dtype=torch.int64), 60)


def test_any_model_can_be_drawn(tmp_path):
    model = GPT2(GPT2Config(block_size=8, n_layer=1, n_head=1, n_embd=16)).eval()
    path = animate.animate(model, "one token", layer=0, head=0, new=0, out=tmp_path / "a.gif")
    assert path.stat().st_size > 0


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_counts_the_frames_where_it_is_wanted(nano, tmp_path, capsys, progress):
    """In a notebook, whose output is no terminal, none was shown."""
    animate.animate(nano, "O", new=1, out=tmp_path / "a.gif", progress=progress)
    told = capsys.readouterr().err
    assert ("| 2/2 [" in told and "frame/s" in told) if progress else told == ""


def test_the_command_shows_no_bar_in_a_log(tmp_path, capsys, monkeypatch):
    command = ["animate", "--prompt", "O", "--new", "0", "--out", str(tmp_path / "a.gif")]
    for seen in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda seen=seen: seen)
        assert main(command) == 0
        assert ("| 1/1 [" in capsys.readouterr().err) == seen


def test_the_command_says_what_it_wrote_and_what_is_wrong(tmp_path, capsys):
    out = tmp_path / "a.gif"
    assert main(["animate", "--prompt", "O", "--new", "1", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size:,} bytes\n"
    assert main(["animate", "--layer", "7"]) == 2
    assert "no layer 7; this model has layers 0 to 5" in capsys.readouterr().err
