"""Every recipe can be run, cites the source of its published scores, and shows exactly these scores."""

import random
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from headtohead import report
from headtohead.config import experiment as config_experiment
from headtohead.config import recipe_catalog, trial_settings
from headtohead.experiment import loading
from headtohead.experiment.schemas import Findings
from headtohead.replication.published_scores import compare_with_published
from headtohead.replication.tables import build_long_published_table, build_published_table
from headtohead.runner.run_experiment import run_experiment
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.hardware.precision import is_bfloat16_usable
from headtohead.trials.trial import build_training, run_trial

PUBLISHED = Path(__file__).parents[2] / "shared" / "published.md"
NAMES = recipe_catalog.list_recipes()
# Models of summaries are too large for a test; tests/experiment/test_summaries.py trains small ones in the same way.
SMALL = [name for name in NAMES if name != "distil-summaries"]
BUDGET = 880_146
WORDS = "the people of this nation will build a new and stronger economy for every american who works hard".split()


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_roberta) -> dict[str, Path]:
    """Return small texts in the layouts of the original data, and a small encoder for fine-tuning recipes."""
    draw = random.Random(0)

    def lines(count: int) -> list[str]:
        return [" ".join(draw.choices([*WORDS, f"name{i}"], k=14)) for i in range(count)]

    root = tmp_path_factory.mktemp("originals")
    speeches, news, plays, reviews = root / "speeches", root / "news", root / "plays", root / "reviews"
    for folder in (speeches, news, plays, reviews):
        folder.mkdir()
    for name, count in (("train_LM", 120), ("test_LM_obama", 20), ("test_LM_hbush", 20), ("test_LM_wbush", 20)):
        (speeches / f"{name}.txt").write_text("\n".join(lines(count)))
    for name, count in (("train_CLS", 60), ("test_CLS", 12)):
        rows = [f"{i % 3}\t{line}" for i, line in enumerate(lines(count))]
        (speeches / f"{name}.tsv").write_text("\n".join(rows))
    for name in ("test", "dev"):
        (news / f"1b_benchmark.{name}.tokens").write_text("\n".join(3 * lines(40)))
    for name in ("train", "dev", "test"):
        (plays / f"{name}.txt").write_text("\n\n".join(3 * lines(40)))
    for name, count in (("train", 60), ("dev", 12), ("test", 12)):
        rows = [f"{i % 2}\t{name} {i} {line[:30].strip()}" for i, line in enumerate(lines(count))]
        (reviews / f"{name}.tsv").write_text("\n".join(rows))
    tuned = {name: reviews for name in NAMES if is_finetuned(name)}
    return {
        **tuned,
        "merges": news,
        "positions-news": news,
        "projection-depth": plays,
        "encoder": tiny_roberta,
        "": speeches,
    }


def loaded(
    name: str, folders: dict[str, Path], *, full: bool = False, only: Sequence[str] = (), settings: Sequence[str] = ()
) -> config_experiment.Experiment:
    small = [*settings, "training.budget=2 steps", "training.eval_every=2", "training.checkpoint_every=2"]
    small.append(f"model.pretrained='{folders['encoder']}'" if is_finetuned(name) else "probe.costs=[8]")
    if name == "distil-decoder":
        small += ["teacher.training.budget=2 steps", "teacher.training.eval_every=2", "teacher.documents=20"]
    if name == "pretraining":
        encoders = [f"variants.pretrained-{rate}.model.init_from.training" for rate in (15, 40)]
        small += [text for table in encoders for text in (f"{table}.budget=2 steps", f"{table}.eval_every=2")]
    return loading.load_experiment(
        name, small, data_source=folders.get(name, folders[""]), use_full_setting=full, only=only
    )


def is_finetuned(name: str) -> bool:
    return bool(tomllib.loads(recipe_catalog.find_recipe(name).read_text(encoding="utf-8"))["task"] == "finetune")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("name", SMALL)
def test_every_variant_takes_a_step_on_the_original_layout(name, folders, tmp_path):
    experiment = loaded(name, folders)
    for variant in experiment.names:
        trial = trial_settings.build_trial(experiment, variant, 1)
        if trial.training.optimizer.kind == "muon" and not is_bfloat16_usable():
            continue  # it would end this process; a worker is given an environment in which it works
        prepared = prepare_dataset(trial.data, trial.task)
        model, training = build_training(trial, prepared, tmp_path / variant, torch.device("cpu"))
        model.train()
        training.train_step(0)
        training._accumulate_losses()
        assert sum(p.numel() for p in model.parameters()) <= BUDGET or not name.startswith("best")


@pytest.mark.parametrize("name", SMALL)
def test_every_recipe_runs_to_its_end(name, folders, tmp_path):
    trial = trial_settings.build_trial(loaded(name, folders), config_experiment.BASELINE, 1)
    result = run_trial(trial, tmp_path, device="cpu")
    assert all(scores.count > 0 for scores in result.scores.values())
    assert (tmp_path / "model.safetensors").is_file()


COURSE_REPORTS = {
    "positions-classifier": (["alibi"], r"Figure \d+: Attention maps: alibi, seed 0"),
    "speeches-classifier": (
        ["padding-seen"],
        r"Scores during training.* train loss .*train accuracy .*test accuracy seconds baseline 0 ",
    ),
    "optimizers": (
        ["sgd"],
        r"Figure \d+: Accuracy during training.*Figure \d+: Training and validation loss and accuracy",
    ),
    "projection-depth": (["depth-4", "depth-7"], r"Figure \d+: Scores by depth"),
    "positions": (
        ["alibi"],
        r"Scores during training.* (hbush|obama|wbush) perplexity .*baseline 0 .*baseline 2 .*alibi 0 .*alibi 2 ",
    ),
}
"""by recipe: variants, and what the PDF of the course report must contain"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", COURSE_REPORTS)
def test_the_pdf_of_a_course_report_has_its_main_figure_or_table(name, folders, tmp_path, in_process_pool):
    pdftotext = shutil.which("pdftotext")
    if pdftotext is None:
        pytest.skip("pdftotext is not installed")
    variants, content = COURSE_REPORTS[name]
    experiment = loaded(name, folders, only=variants, settings=["seeds=1"])
    run_experiment(experiment, tmp_path / "runs", backend=in_process_pool)
    (path,) = report.write(tmp_path / "runs", ["pdf"])
    text = subprocess.run([pdftotext, "-layout", str(path), "-"], capture_output=True, text=True, check=True).stdout
    assert re.search(content, " ".join(text.split()))


@pytest.mark.parametrize("name", NAMES)
def test_the_report_shows_the_published_figures_of_the_file_and_no_others(name):
    figures = tomllib.loads(recipe_catalog.find_recipe(name).read_text(encoding="utf-8")).get("published", [])
    experiment = loading.load_experiment(name)
    findings = Findings(
        metric=experiment.primary.metric,
        published=[compare_with_published(figure, {}, is_original_data=True) for figure in experiment.published],
    )
    long = build_long_published_table(findings)
    at = [column.name for column in long.columns].index("published")
    assert sorted(row[at].value for row in long.rows) == sorted(figure["value"] for figure in figures)
    output = " ".join(cell.text for row in build_published_table(findings).rows for cell in row)
    for figure in figures:
        text = f"{100 * figure['value']:.1f}" if figure["metric"] == "accuracy" else f"{figure['value']:,.1f}"
        assert text in output


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_are_those_of_the_reports(name):
    if not PUBLISHED.is_file():
        pytest.skip("the reports' figures are not at ../shared")
    known = set(re.findall(r"\d+(?:\.\d+)?", PUBLISHED.read_text(encoding="utf-8")))
    for figure in loading.load_experiment(name).published:
        value = figure.value * (100 if figure.metric == "accuracy" else 1)
        assert any(f"{value:.{places}f}" in known for places in (0, 1, 2)), figure


def test_the_digests_name_the_texts_that_the_reports_used(shared):
    folder = shared("speeches/speechesdataset")
    checked = 0
    for name in NAMES:
        experiment = (
            loading.load_experiment(name, data_source=folder) if "speeches" in name or "position" in name else None
        )
        if experiment is None or experiment.original is None or not experiment.original.corpus:
            continue
        trial = trial_settings.build_trial(experiment, config_experiment.BASELINE, 0)
        assert prepare_dataset(trial.data, trial.task).corpus.digest == experiment.original.corpus, name
        checked += 1
    assert checked >= 4


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_look_is_small_and_is_reported(name):
    experiment = loading.load_experiment(name, use_quick_setting=True)
    assert experiment.quick and experiment.name == f"{name}-quick" and experiment.seeds == 2
    assert experiment.left_out and not experiment.published and not experiment.claims
    assert experiment.data.test_rows is not None
    full = loading.load_experiment(name)
    amount, unit = experiment.training.budget.split()
    if unit == "steps":
        assert int(amount) <= 100
    else:
        assert float(amount) == pytest.approx(float(full.training.budget.split()[0]) / 10)
    omitted = [name for name in full.variants if name not in experiment.variants]
    assert all(any(name in reduction for reduction in experiment.left_out) for name in omitted)


FULL = [name for name in NAMES if "full" in tomllib.loads(recipe_catalog.find_recipe(name).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", FULL)
def test_the_full_setting_is_another_experiment_with_larger_models(name):
    usual, full = loading.load_experiment(name), loading.load_experiment(name, use_full_setting=True)
    assert full.name == f"{name}-full"
    assert usual.identity() != full.identity()
    assert str(full.model.pretrained).startswith("hub:") and not str(usual.model.pretrained).startswith("hub:")
    assert list(full.variants) == list(usual.variants)


@pytest.mark.parametrize("variant", ["baseline", "frozen", "lora"])
def test_robertas_setting_runs_with_a_small_roberta(variant, folders, tmp_path):
    experiment = loaded("sst2", folders, full=True)
    assert experiment.model.pool == "own" and experiment.training.batch_size == 64
    result = run_trial(trial_settings.build_trial(experiment, variant, 1), tmp_path, device="cpu")
    assert result.scores["test"].count == 12


def test_these_recipes_have_a_full_setting():
    assert {"sst2", "sst2-search", "optimizers", "distil-summaries"} <= set(FULL)


def test_what_is_set_on_the_command_line_wins_over_a_quick_look():
    experiment = loading.load_experiment("window", ["seeds=3", "training.budget=7 steps"], use_quick_setting=True)
    assert (experiment.seeds, experiment.training.budget) == (3, "7 steps")


@pytest.mark.parametrize("name", NAMES)
def test_a_custom_recipe_on_data_says_nothing_about_the_course(name, tmp_path):
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(f"review {i},{i % 2}\n" for i in range(50)))
    adapted = loading.load_experiment(name, data_source=tmp_path / "reviews.csv")
    recipe = loading.load_experiment(name)
    assert adapted.data.source == str(tmp_path / "reviews.csv")
    assert (adapted.data.vocabulary, adapted.data.monitor, adapted.data.columns.text) == ("train", (), "text")
    assert (adapted.published, adapted.claims, adapted.description, adapted.conclusions) == ((), (), "", "")
    assert not adapted.probe.prompts and not adapted.probe.sentences
    assert not re.search("speech|speaker|president|course", adapted.question)
    assert (adapted.model, adapted.training, adapted.variants) == (recipe.model, recipe.training, recipe.variants)


def test_a_custom_file_keeps_its_text_on_other_data(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'question = "Mine?"\ntask = "language-model"\ndescription = "my text"\nprobe.prompts = ["I"]\n'
        "[variants.a]\nmodel.layers = 2\n"
    )
    (tmp_path / "text.txt").write_text("a\nb\n")
    adapted = loading.load_experiment(tmp_path / "mine.toml", data_source=tmp_path / "text.txt")
    assert (adapted.description, adapted.probe.prompts) == ("my text", ("I",))


def test_original_data_change_what_the_file_says_and_nothing_else(folders):
    plain, original = (
        loading.load_experiment("merges"),
        loading.load_experiment("merges", data_source=folders["merges"]),
    )
    assert plain.data.files is None
    assert original.data.files is not None and original.data.files.train == "1b_benchmark.test.tokens"
    assert original.training == plain.training and original.model == plain.model
