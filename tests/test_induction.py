"""The recording of a real model's heads that chapter 10 reads: whole, consistent, reproducible."""

import numpy as np
import pytest
import torch

import induction
import real_model
from kvlib import look
from test_real_model import NEEDS, READY


def test_the_recording_is_whole_and_says_how_it_was_made():
    found = look.recording()
    assert "tools/induction.py" in found["how"] and "SmolLM2" in found["how"]
    assert set(found["scores"]) == {"previous", "first", "near", "entropy", "induction"}
    for scores in found["scores"].values():
        assert np.shape(scores) == (30, 9)
    for name in ("induction", "first"):  # the heads recorded in full are those that score most
        head = found["heads"][name]
        scores = torch.tensor(found["scores"][name])
        assert (head["layer"], head["head"]) == induction.head_of(scores)


@pytest.mark.parametrize("name", ["induction", "first"])
def test_the_recorded_weights_follow_from_the_recorded_rows(name):
    run = look.recorded(name)
    assert run.k.shape == (1, 1, len(run.words), 64) and len(run.words) == 2 * run.prompt
    assert run.words[: run.prompt] == run.words[run.prompt :]
    assert (look.attention(run.q, run.k) - run.weights).abs().max() < 0.05  # two decimals kept
    assert run.weights.sum(-1).sub(1).abs().max() < 1e-2


@pytest.mark.skipif(not READY, reason=NEEDS)
def test_the_recording_can_be_made_again():
    model, tokenizer = real_model.load()
    model.set_attn_implementation("eager")
    again, found = induction.record(model, tokenizer), look.recording()
    for name, scores in found["scores"].items():
        assert np.abs(np.subtract(again["scores"][name], scores)).max() < 0.01, name
    assert again["repeated_gain"] == pytest.approx(found["repeated_gain"], abs=0.01)
    for name, head in found["heads"].items():
        assert np.abs(np.subtract(again["heads"][name]["weights"], head["weights"])).max() < 0.02
