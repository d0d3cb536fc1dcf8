"""Custom networks behind the model protocol: all supported output shapes, and errors for unsupported ones."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.config.tables import model as config_model
from headtohead.errors import ModelError
from headtohead.model_cost import compute_model_cost
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.kv_cache import KVCache

NETWORKS = """
import torch
from collections import namedtuple
from torch import nn
from torch.nn import functional as F


class Plain(nn.Module):
    '''A tensor.'''
    def __init__(self, vocab_size, width=8):
        super().__init__()
        self.embedding, self.out = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)

    def forward(self, idx):
        return self.out(self.embedding(idx))


class Pair(Plain):
    '''A tuple.'''
    def forward(self, idx):
        return super().forward(idx), "whatever"


class NanoGPT(nn.Module):
    '''As nanoGPT does it: without targets, the last position only.'''
    def __init__(self, vocab_size, block_size, n_embd=8):
        super().__init__()
        self.block_size = block_size
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Hub(Plain):
    '''As transformers does it: an object with .logits, a mask by name.'''
    def forward(self, input_ids=None, attention_mask=None, labels=None):
        assert attention_mask is not None
        logits = super().forward(input_ids) * attention_mask[..., None]
        return namedtuple("Output", "loss logits")(torch.zeros(()), logits)


class Lecture(Plain):
    calls = 0

    def forward(self, idx, targets=None):
        self.calls += 1
        logits = super().forward(idx)
        return (logits, None) if targets is None else (logits.flatten(0, 1), logits.mean())


class HubObject(Plain):
    def forward(self, input_ids):
        class Output:
            logits = Plain.forward(self, input_ids)
        return Output()


class Classifier(nn.Module):
    def __init__(self, n_vocab, num_labels):
        super().__init__()
        self.embedding = nn.EmbeddingBag(n_vocab, num_labels)

    def forward(self, idx):
        return self.embedding(idx)


class Narrow(Plain):
    def forward(self, idx):
        return super().forward(idx)[..., :-1]


class Wordy(Plain):
    def forward(self, idx):
        return "no logits today"


class Demanding(Plain):
    def __init__(self, vocab_size, temperature):
        super().__init__(vocab_size)


class Fussy(Plain):
    def __init__(self, vocab_size, heads=3):
        assert 8 % heads == 0, "heads must divide 8"
        super().__init__(vocab_size)


def not_a_class():
    pass
"""


@pytest.fixture
def build_network(tmp_path: Path) -> Callable[..., CustomModel]:
    (tmp_path / "nets.py").write_text(inspect.cleandoc(NETWORKS))

    def build(name: str, num_classes: int | None = None, *, seed: int = 0, **options: Any) -> CustomModel:
        model_config = config_model.CustomModelConfig(module=f"nets.py:{name}", context=12, options=options)
        model = build_model(model_config, 11, num_classes, seed=seed, base_folder=tmp_path)
        assert isinstance(model, CustomModel)
        return model

    return build


IDS = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))


def test_a_network_is_called_once_per_pass(build_network: Any) -> None:
    network = build_network("Lecture")
    network(IDS)
    assert network.inner.calls == 1


@pytest.mark.parametrize("name", ["Plain", "Pair", "NanoGPT", "HubObject", "Lecture"])
def test_any_supported_output_becomes_logits(build_network: Any, name: str) -> None:
    assert build_network(name)(IDS).logits.shape == (2, 6, 11)


def test_an_output_of_which_the_logits_are_second_is_read_by_name(build_network: Any) -> None:
    mask = torch.ones_like(IDS)
    mask[1, 3:] = 0
    logits = build_network("Hub")(IDS, mask).logits
    assert logits.shape == (2, 6, 11)
    assert (logits[1, 3:] == 0).all()  # the mask arrived


def test_a_decoder_that_returns_the_last_position_only_receives_targets(build_network: Any) -> None:
    model = build_network("NanoGPT").double()  # in float32, 2 and 12 vectors may use kernels that round differently
    last, _ = model.inner(IDS)
    assert last.shape == (2, 1, 11)
    assert torch.allclose(model(IDS).logits[:, -1:], last, rtol=0, atol=1e-12)


def test_the_constructor_receives_its_arguments_under_its_own_names(build_network: Any) -> None:
    model = build_network("NanoGPT", n_embd=5)
    assert (model.inner.block_size, model.inner.wte.num_embeddings, model.inner.wte.embedding_dim) == (12, 11, 5)


def test_a_custom_classifier(build_network: Any) -> None:
    assert build_network("Classifier", 3)(IDS).logits.shape == (2, 3)


def test_a_mask_is_passed_only_to_networks_that_accept_it(build_network: Any) -> None:
    model = build_network("Plain")
    assert torch.equal(model(IDS, torch.ones_like(IDS)).logits, model(IDS).logits)


def test_initial_weights_depend_on_the_seed_only(build_network: Any) -> None:
    first, different_seed = build_network("Plain", seed=1), build_network("Plain", seed=2)
    torch.rand(5)
    second = build_network("Plain", seed=1)
    assert torch.equal(first.inner.out.weight, second.inner.out.weight)
    assert not torch.equal(first.inner.out.weight, different_seed.inner.out.weight)


def test_its_cost_is_counted(build_network: Any, tmp_path: Path) -> None:
    build_network("Plain")
    counted = compute_model_cost(
        config_model.CustomModelConfig(module="nets.py:Plain", context=12), 11, base_folder=tmp_path
    )
    assert counted.parameters == 11 * 8 + 8 * 11 + 11
    assert counted.flops_per_token == 2 * 8 * 11


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Plian", r"nets\.py defines no nn\.Module 'Plian'; did you mean 'Plain'\? \(available: Plain, Pair, "),
        ("not_a_class", r"defines no nn\.Module 'not_a_class'"),
        ("Demanding", r"missing 1 required positional argument: 'temperature' .*put other arguments in model\.options"),
        ("Fussy", r"nets\.py:Fussy: AssertionError in the constructor: heads must divide 8"),
    ],
)
def test_a_class_that_cannot_be_built_is_an_error(build_network: Any, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_network(name)


def test_an_option_that_the_constructor_does_not_take_is_an_error(build_network: Any) -> None:
    with pytest.raises(ModelError, match=r"unexpected keyword argument 'depth' \(model.options = \{'depth': 3\}"):
        build_network("Plain", depth=3)


def test_logits_of_a_different_shape_are_an_error(build_network: Any) -> None:
    with pytest.raises(ModelError, match=r"nets\.py:Narrow: logits have shape \(2, 6, 10\), expected \(2, 6, 11\)"):
        build_network("Narrow")(IDS)
    with pytest.raises(ModelError, match=r"logits have shape \(2, 6, 11\), expected \(2, 3\)"):
        build_network("Plain", 3)(IDS)


def test_an_output_without_logits_is_an_error(build_network: Any) -> None:
    with pytest.raises(ModelError, match=r"must return logits as a tensor, a tuple or \.logits, got str"):
        build_network("Wordy")(IDS)


def test_attention_maps_and_a_cache_are_rejected(build_network: Any) -> None:
    with pytest.raises(ModelError, match=r"nets\.py:Plain: custom models do not return attention weights"):
        build_network("Plain")(IDS, output_attentions=True)
    with pytest.raises(ModelError, match=r"nets\.py:Plain: custom models have no cache"):
        build_network("Plain")(IDS, cache=KVCache(1))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, r"mine\.py:Net: file mine\.py not found in "),
        ("1 / 0", r"mine\.py:Net: ZeroDivisionError: division by zero"),
        ("class Net(:", r"mine\.py:Net: SyntaxError: invalid syntax"),
        ("x = 1", r"mine\.py defines no nn\.Module 'Net' \(available: none\)"),
    ],
    ids=["missing", "raises", "syntax", "empty"],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, source: str | None, message: str) -> None:
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    with pytest.raises(ModelError, match=message):
        build_model(config_model.CustomModelConfig(module="mine.py:Net"), 11, base_folder=tmp_path)
