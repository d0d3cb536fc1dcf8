"""`make bench`: measurements, their presentation, and that all contestants compute the same."""

import itertools
import json
import sys
import tomllib
from xml.etree import ElementTree as ET

import pytest
import torch
from tools.bench import (
    chart,
    child_processes,
    formatting,
    page,
    peer_models,
    peer_training,
    timing,
    tokenization,
    trial_rate,
    workload,
)
from tools.bench.benchmarks import BENCHMARKS
from tools.bench.isolated import STAGES
from tools.bench.measurements import BenchmarkResults, BenchmarkSettings, Measurement, Table, Target
from tools.bench.startup import imports_torch
from tools.bench.step import CATEGORIES, categorize_operation
from tools.bench.workload import Workload, build_classifier_experiment, build_decoder_experiment, build_trainer

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
    """A small corpus in the layout of the course files."""
    folder = tmp_path_factory.mktemp("speeches")
    rows = [
        " ".join(itertools.islice(itertools.cycle(WORDS), start, start + 5 + start % 9)) + " ." for start in range(60)
    ]
    for name in ("train_LM", "test_LM_obama", "test_LM_hbush", "test_LM_wbush"):
        (folder / f"{name}.txt").write_text("\n".join(rows if name == "train_LM" else rows[:12]) + "\n")
    for name, texts in (("train_CLS", rows), ("test_CLS", rows[5:20])):
        lines = [f"{index % 3}\t{text}" for index, text in enumerate(texts)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def decoder(speeches, tmp_path_factory):
    """The workload of a decoder: one seed of four steps."""
    folder = tmp_path_factory.mktemp("decoder")
    raw = build_decoder_experiment(speeches, seeds=1, steps=4, eval_every=2)
    workload.write_workload(raw, folder)
    return raw, Workload.read(folder)


def train_ours(raw, folder, steps):
    """Return our losses of the first steps."""
    _, trainer = build_trainer(raw, 0, folder)
    trainer.model.train()
    for step in range(steps):
        trainer._train_step(step)
    return [loss.item() for loss in trainer._pending_losses]


def train_peer(model, peer_workload, steps):
    optimizer, losses = peer_training.create_adam(model, peer_workload.shape.lr), []
    for batch in peer_workload.read_batches(0)[:steps]:
        loss = peer_training.compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_gpt2_has_our_losses_at_every_step(decoder, tmp_path):
    raw, given = decoder
    theirs = train_peer(peer_models.build_gpt2(given.shape, given.read_weights(0)).train(), given, 4)
    assert theirs == pytest.approx(train_ours(raw, tmp_path, 4), abs=1e-4)
    assert theirs[0] - theirs[-1] > 1e-3  # the loss decreases, so later losses test the updates too


def test_gpt2_trains_as_many_parameters_as_ours(decoder, tmp_path):
    raw, given = decoder
    model, _ = build_trainer(raw, 0, tmp_path)
    trained = sum(
        p.numel() for p in peer_models.build_gpt2(given.shape, given.read_weights(0)).parameters() if p.requires_grad
    )
    assert trained == sum(p.numel() for p in model.parameters())


@pytest.mark.filterwarnings("ignore")  # of libraries, about themselves
def test_x_transformers_has_our_loss_without_the_bias_that_it_lacks(decoder, tmp_path):
    raw, given = decoder
    model, trainer = build_trainer(raw, 0, tmp_path)
    for layer in model.layers:
        torch.nn.init.zeros_(layer.attention.output.bias)
    ours = trainer.objective.loss(model, trainer.schedule.batch(0)).item()
    peer = peer_models.build_x_transformers(given.shape, given.read_weights(0))
    assert peer_training.compute_loss(peer, given.read_batches(0)[0]).item() == pytest.approx(ours, abs=1e-4)
    fewer = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in peer.parameters())
    assert fewer == 832  # stated in the table of differences


def test_torch_encoder_has_our_losses_at_every_step(speeches, tmp_path):
    raw = build_classifier_experiment(speeches, seeds=1, epochs=1)
    workload.write_workload(raw, tmp_path / "workload")
    given = Workload.read(tmp_path / "workload")
    assert any(not mask.all() for _, _, mask in given.read_batches(0))  # there is padding
    theirs = train_peer(peer_models.build_encoder(given.shape, given.read_weights(0)).train(), given, 4)
    assert theirs == pytest.approx(train_ours(raw, tmp_path / "ours", 4), abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # of libraries, about themselves
def test_trainer_takes_the_steps_of_the_plain_loop(decoder):
    _, given = decoder
    plain, trainer = (peer_training.train(name, given, [0]).losses[0] for name in ("gpt2", "trainer"))
    assert plain.keys() == trainer.keys() == {0, 2, 4}
    # Trainer averages batch means, which equals the mean over tokens for texts of a single batch.
    for step, name in itertools.product(plain, ("obama", "hbush", "wbush")):
        assert trainer[step][name] == pytest.approx(plain[step][name], abs=1e-4)
    assert all(trainer[step]["train"] == pytest.approx(plain[step]["train"], abs=0.02) for step in plain)
    assert plain[0]["obama"] - plain[4]["obama"] > 0.1


def test_peers_get_the_batches_of_our_schedule(decoder, tmp_path):
    raw, given = decoder
    _, trainer = build_trainer(raw, 0, tmp_path)
    for step, (inputs, labels, _) in enumerate(given.read_batches(0)):
        assert torch.equal(inputs, trainer.schedule.batch(step).input_ids)
        assert torch.equal(labels, trainer.schedule.batch(step).labels)


def test_the_experiment_file_has_the_settings_of_the_workload(speeches):
    decoder = build_decoder_experiment(speeches, seeds=2, steps=4, eval_every=2)
    for raw in (decoder, build_classifier_experiment("sotu", seeds=1, epochs=3)):
        assert tomllib.loads(workload.render_toml(raw)) == raw


def test_every_stage_of_a_trial_is_a_function_that_exists():
    assert [name for owner, name, _ in STAGES if not callable(getattr(owner, name, None))] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trial_rates_are_compared_in_child_processes(speeches, tmp_path):
    from tools.bench.training import PEERS

    settings = BenchmarkSettings(tmp_path, speeches, cores=1, is_short=True)
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

    best = timing.run_alternating({"a": run_with_delay, "b": lambda: order.append("b")}, rounds=3, warm_up=False)
    assert order == ["a", "b"] * 3
    assert best["a"].wall_seconds < 0.4
    assert best["a"].value == 3  # of the fastest round


def test_contestants_without_a_target_run_in_one_round():
    order = []
    contestants = {name: lambda name=name: order.append(name) for name in "ab"}
    timing.run_alternating(contestants, 3, warm_up=False, single_round={"b"})
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
def test_a_target_is_met_or_missed(result, target, is_met):
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
    assert [row["is_met"] for row in results.to_dict()["measurements"]] == [True, False]


def test_the_page_shows_every_benchmark_and_missed_targets():
    assert page.SECTIONS.keys() == BENCHMARKS.keys()
    text = page.render_page(dict.fromkeys(BENCHMARKS, build_results()))
    for title, _ in page.SECTIONS.values():
        assert f"\n## {title}\n" in text
    assert f"{len(BENCHMARKS)} of {2 * len(BENCHMARKS)} targets are met." in text
    assert "| memory | 500 MB | plain: 1,000 | 50.0 % | at most 33 % | **NO** |" in text
    assert "| norms | 1.0 |" in text
    assert "a processor, 2 cores" in text


def test_the_documentation_shows_the_recorded_results():
    results = json.loads((child_processes.ROOT / "docs" / "figures" / "performance.json").read_text())
    text = page.render_page({name: BenchmarkResults.from_dict(row) for name, row in results.items()})
    assert (child_processes.ROOT / "docs" / "performance.md").read_text() == text


def test_the_chart_shows_results_and_targets_in_svg_and_alt_text(tmp_path):
    results = {"memory": build_results()}
    chart.write_chart(results, tmp_path / "folder" / "chart.svg")
    svg = ET.parse(tmp_path / "folder" / "chart.svg").getroot()
    assert svg.tag.endswith("svg") and "2.00 x, target at least 1.6 x" in "".join(svg.itertext())
    assert "memory: speed: 2.00 x, target at least 1.6 x." in chart.build_chart(results).alt_text


SHAPE = workload.WorkloadShape(5755, None, 256, 4, 2, 1024, 64, 1e-3, 500, 100)


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
    assert categorize_operation(name, input_shapes, SHAPE, tokens=1024) == category


def test_peak_memory_is_what_the_work_adds():
    """Measured in a child process, because a running process may reuse memory that it has freed."""
    size = 60_000_000
    code = (
        "import json, torch; from tools.bench import isolated; "
        f"print(json.dumps(isolated.measure_peak(lambda: torch.ones({size // 4}))))"
    )
    result = child_processes.parse_result(child_processes.run([sys.executable, "-c", code]))
    assert result["bytes"] == pytest.approx(size, rel=0.15)


def test_loss_differences_are_the_largest_over_seeds_and_texts():
    ours = {"0": {"0": {"a": 1.0, "b": 2.0, "only ours": 9.0}}, "1": {"0": {"a": 1.0}, "5": {"a": 0.5}}}
    theirs = {"0": {"0": {"a": 1.25, "b": 2.0}}, "1": {"0": {"a": 0.5}, "5": {"a": 0.5}}}
    assert trial_rate.compute_max_differences(ours, theirs) == {0: 0.5, 5: 0.0}


def test_all_lines_of_the_large_text_differ_and_are_reproducible():
    first, second = (
        list(itertools.islice(tokenization.iter_distinct_rows(["we will", "our duty"]), 200)) for _ in range(2)
    )
    assert len(set(first)) == 200
    assert first == second


def test_help_does_not_import_torch():
    assert not imports_torch(["--help"])
