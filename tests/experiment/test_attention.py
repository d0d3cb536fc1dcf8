"""Head metrics: computed by a trial, aggregated over seeds, and shown in the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headtohead.attention_analysis import head_chart, head_tables, trial_metrics
from headtohead.config import experiment
from headtohead.config.trial_settings import build_trial
from headtohead.data import evaluation_examples as data_examples
from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import Findings, SeedEstimate
from headtohead.json_files import read_json, write_json
from headtohead.model_factory import build_model
from headtohead.presentation.renderers.csv_tables import render_csv
from headtohead.report import sections
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective
from headtohead.trials.trial import run_trial


def test_a_trial_leaves_what_each_head_does(small: Any, tmp_path: Path) -> None:
    run_trial(build_trial(small(), "baseline", 1), tmp_path / "run", device="cpu")
    content = read_json(tmp_path / "run" / trial_metrics.ATTENTION_FILE)
    assert (content["split"], content["schema_version"]) == ("validation", 2)
    assert 8 <= content["rows"] <= trial_metrics.MAX_ROWS + trial_metrics.MAX_BATCH_SIZE
    assert [(row["layer"], row["head"]) for row in content["heads"]] == [(1, 1), (1, 2)]
    for row in content["heads"]:
        assert set(trial_metrics.HEAD_METRIC_NAMES) <= set(row)
        low, high = row["rise_interval"]
        assert low <= row["rise"] <= high
    result = read_json(tmp_path / "run" / "result.json")
    assert trial_metrics.ATTENTION_FILE in result["sha256"], "it is sealed with the rest"


def test_a_custom_network_is_left_alone(small: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, vocab_size, context):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(vocab_size, vocab_size)\n"
        "    def forward(self, input_ids):\n"
        "        return self.table(input_ids)\n"
    )
    own = {"own": {"model": {"module": f"{tmp_path / 'mine.py'}:Net", "context": 8}}}
    experiment = small(variants=own, probe={"prompts": []})
    run_trial(build_trial(experiment, "own", 1), tmp_path / "run", device="cpu")
    assert (tmp_path / "run" / "result.json").is_file()
    assert not (tmp_path / "run" / trial_metrics.ATTENTION_FILE).exists()


def test_an_attention_without_maps_costs_no_trial(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headtohead.nn.parts.attention import MultiHeadAttention

    original_attend = MultiHeadAttention.attend
    monkeypatch.setattr(MultiHeadAttention, "attend", lambda *arguments: (original_attend(*arguments)[0], None))
    trial = build_trial(small(), "baseline", 1)
    prepared = prepare_dataset(trial.data, trial.task)
    model = build_model(trial.model, prepared.tokenizer.vocab_size, seed=1)
    examples = data_examples.build_evaluation_examples(
        prepared.encoded["validation"], trial.spec.target, 8, prepared.tokenizer
    )
    trial_metrics.write_trial_head_metrics(
        tmp_path, model, examples, LanguageModelObjective(), prepared.tokenizer, "validation"
    )
    assert not (tmp_path / trial_metrics.ATTENTION_FILE).exists()


def test_large_models_are_measured_on_fewer_rows(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = build_trial(small(), "baseline", 1)
    prepared = prepare_dataset(trial.data, trial.task)
    model = build_model(trial.model, prepared.tokenizer.vocab_size, seed=1)
    examples = data_examples.build_evaluation_examples(
        prepared.encoded["validation"], trial.spec.target, 8, prepared.tokenizer
    )
    usual_rows, _ = trial_metrics.compute_trial_head_metrics(
        model, examples, LanguageModelObjective(), prepared.tokenizer
    )
    monkeypatch.setattr(trial_metrics, "TARGET_ABLATION_COST", 1.0)
    fewer_rows, heads = trial_metrics.compute_trial_head_metrics(
        model, examples, LanguageModelObjective(), prepared.tokenizer
    )
    assert fewer_rows < usual_rows
    assert heads[0].rise is not None
    monkeypatch.setattr(trial_metrics, "MAX_ABLATION_COST", 1.0)
    _, heads = trial_metrics.compute_trial_head_metrics(model, examples, LanguageModelObjective(), prepared.tokenizer)
    assert heads[0].rise is None


def test_the_rise_is_per_token_and_its_rows_spread_like_a_ratio() -> None:
    totals, counts = np.array([1.0, 4.0, 1.0]), np.array([1.0, 2.0, 3.0])
    item = trial_metrics.linearize_loss_increase(totals, counts)
    assert item.mean() == pytest.approx(6 / 6)
    assert item.tolist() == pytest.approx([1.0, 2.0, 0.0])


def row(layer: int, head: int, **figures: Any) -> dict[str, Any]:
    complete = dict.fromkeys(trial_metrics.HEAD_METRIC_NAMES, 0.25) | {
        "rise_interval": [0.0, 0.02],
        "copies": False,
        "idle": True,
    }
    return {"layer": layer, "head": head, **complete, **figures}


def runs(folder: Path, *heads: list[dict[str, Any]]) -> dict[int, Run]:
    result = {}
    for seed, rows in enumerate(heads):
        place = folder / f"seed-{seed}"
        place.mkdir(parents=True)
        write_json(place / trial_metrics.ATTENTION_FILE, {"split": "validation", "rows": 48, "heads": rows})
        result[seed] = Run(place)
    return result


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    finished = {
        "baseline": runs(
            tmp_path / "b",
            [row(1, 1, entropy=1.0, induction=None), row(1, 2, idle=False, copies=True)],
            [row(1, 1, entropy=2.0, induction=None), row(1, 2, rise=-0.0004)],
            [row(1, 1, entropy=3.0, induction=None), row(1, 2)],
        ),
        "alibi": runs(tmp_path / "a", [row(1, 1), row(1, 2)]),
        "own": {0: Run(tmp_path)},
    }
    return Findings(
        attention=trial_metrics.average_trial_head_metrics(finished), audits={name: [] for name in finished}
    )


def test_seeds_become_a_mean_with_a_t_interval(findings: Findings) -> None:
    attention = findings.attention
    assert attention is not None
    assert set(attention.variants) == {"baseline", "alibi"}
    first, second = attention.variants["baseline"]
    entropy = first.measures["entropy"]
    assert entropy is not None
    assert entropy.mean == 2.0
    # The 97.5 % point of t with 2 degrees of freedom is 4.302653; the standard error is 1 / sqrt(3).
    assert entropy.interval == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-6)
    assert first.measures["induction"] is None
    assert (second.copies, second.idle, second.seeds) == (1, 2, 3)
    single_seed = attention.variants["alibi"][0].measures["entropy"]
    assert single_seed is not None
    assert single_seed.interval is None, "one seed has no interval"
    assert trial_metrics.average_trial_head_metrics({"baseline": {}}) is None


def test_the_report_has_a_table_and_a_picture_of_it(findings: Findings) -> None:
    item = next(table for table in sections.build_tables(findings) if table.name == "heads")
    assert len(item.rows) == 4
    assert item.caption == "Means over seeds ± half the 95 % t interval, on 48 rows of validation."
    cells = {column.name: cell.text for column, cell in zip(item.columns, item.rows[1], strict=True)}
    assert cells["copies"] == "1 of 3 seeds"
    assert cells["idle"] == "2 of 3 seeds"
    assert cells["first"].replace("\u00a0", " ") == "25.0 ± 0.0"
    chart = next(chart for chart in sections.build_charts(findings) if chart.name == "heads")
    assert "layer" not in chart.title
    assert chart.alt_text.startswith("Head metrics")
    samples = chart.to_svg("narrow")
    assert "baseline, head 1.2: on first token, % 25.0" in samples.replace("\u00a0", " ")


def test_a_figure_that_rounds_to_nothing_has_no_sign(findings: Findings) -> None:
    assert head_tables.build_seed_mean_cell("rise", SeedEstimate(mean=-0.0004, interval=None)).text == "0.000"
    assert head_tables.build_seed_mean_cell("rise", SeedEstimate(mean=-0.004, interval=None)).text == "−0.004"


def test_programs_get_a_row_for_each_figure(findings: Findings) -> None:
    lines = render_csv(head_tables.build_seed_averaged_table(findings)).splitlines()
    assert lines[0] == "variant,layer,head,measure,seeds,mean,interval_low,interval_high"
    assert lines[1].startswith("baseline,1,1,entropy,3,2.0,-0.48")
    assert any(line.startswith("alibi,1,2,control,1,0.25,,") for line in lines)


def test_without_measures_there_is_neither(findings: Findings) -> None:
    assert head_tables.build_seed_averaged_table(Findings()).rows == ()
    assert head_chart.build_heads_chart(Findings()) is None


def test_very_many_heads_are_in_the_table_only(findings: Findings) -> None:
    assert findings.attention is not None
    own = findings.attention.variants
    own["baseline"] = [own["baseline"][0].model_copy(update={"head": head}) for head in range(1, 40)]
    assert head_chart.build_heads_chart(findings) is None
    assert len(head_tables.build_seed_averaged_table(findings).rows) == 41


def test_spec_knows_nothing_of_it() -> None:
    """Measuring head metrics is not a setting and does not affect the identity of a run."""
    assert "attention" not in experiment.Experiment.model_fields
