"""nano is what its card says: the recorded file, better than counting, and it uses its context."""

import hashlib
import json
from pathlib import Path

import torch

from kvlib import GPT2Config, corpus, costs, load, quality, weights
from model_card import card

RECORD = json.loads((weights.NANO / "training.json").read_text())
ROOT = Path(__file__).parents[1]


def test_the_record_is_of_this_file():
    data = (weights.NANO / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == RECORD["file_sha256"]
    assert RECORD["source_sha256"] == corpus.SHA256
    assert RECORD["parameters"] == costs.parameters(GPT2Config.preset("nano"))


def test_it_predicts_better_than_counting():
    found = RECORD["quality"]
    assert found["context_128"] < found["trigram"] < found["bigram"] < found["unigram"]
    assert found["trigram_gain"] >= 0.15
    assert found["context_gain"] >= 0.1


def test_the_recorded_use_of_context_is_seen_again_on_a_work_it_has_not_read():
    model, ids = load("nano"), corpus.tempest()
    targets = torch.linspace(128, len(ids) - 1, 400).long()
    short, long = (quality.losses(model, ids, targets, context).mean() for context in (8, 128))
    assert long < RECORD["quality"]["trigram"]
    assert short - long > 0.05


def test_ids_it_has_never_read_are_never_sampled():
    model = load("nano")
    with torch.inference_mode():
        p = model(corpus.tempest()[None, :256])[0].softmax(-1)
    rows, counts = torch.unique(model.wte.weight, dim=0, return_counts=True)
    shared = rows[counts.argmax()]
    unread = (model.wte.weight == shared).all(1)
    assert unread.sum() > 30_000
    assert p[:, unread].sum(-1).max() < 1e-9


def test_loading_takes_no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert load("nano").config.n_layer == 6


def test_the_card_is_the_one_written_from_the_record():
    config = json.loads((weights.NANO / "config.json").read_text())
    assert (ROOT / "book" / "nano.md").read_text() == card(RECORD, config)


def test_the_curve_comes_down():
    curve = RECORD["curve"]
    assert curve[-1]["held_out"] < curve[0]["held_out"]
    assert curve[-1]["step"] == RECORD["settings"]["steps"]
