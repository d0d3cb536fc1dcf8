"""The [search] table: strict validation, all errors at once, and the settings changed by a point."""

from typing import Any

import pytest

from headtohead.config import experiment, trial_settings
from headtohead.config.tables.search import SearchConfig
from headtohead.config.variant_changes import build_variant_changes
from headtohead.errors import ConfigError
from headtohead.experiment import loading
from headtohead.experiment.settings.registry_json_schema import build_full_json_schema

FILE = """
question = "Which is best?"
task = "language-model"
[model]
width = 24
[training]
optimizer = { kind = "sgd", lr = 0.1, momentum = 0.9 }
[search]
prune = true
[search.space]
training.optimizer.lr = [0.1, 0.01]
training.batch_size = { low = 8, high = 24, step = 8 }
"model.position" = ["alibi", ["alibi", "rope"]]
"""


def loaded(tmp_path, text: str = FILE, *settings: str, quick: bool = False) -> experiment.Experiment:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return loading.load_experiment(file, settings, use_quick_setting=quick)


def test_a_space_is_written_as_settings_are(tmp_path):
    search = loaded(tmp_path).search
    assert search is not None
    assert list(search.space) == ["training.optimizer.lr", "training.batch_size", "model.position"]
    assert search.list_values("training.batch_size") == (8, 16, 24)
    assert (search.count_points(), search.compute_planned_counts(), search.seeds) == (12, (12, 24), 2)
    assert search.prune is not None and search.prune.risk == 0.05
    assert SearchConfig.model_validate(search.model_dump(mode="json")) == search


def test_a_search_does_not_change_who_an_experiment_is(tmp_path):
    with_search = loaded(tmp_path)
    without = loaded(tmp_path, FILE.partition("[search]")[0])
    assert with_search.identity() == without.identity()
    trial = trial_settings.build_trial(without, experiment.BASELINE, 0)
    assert "is_search" not in trial.dump_variant_settings()


def test_an_option_inside_a_part_keeps_the_others():
    raw = {"training": {"optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}}
    assert build_variant_changes(raw, {"training.optimizer.lr": 1.0, "training.batch_size": 4}) == {
        "training": {"optimizer": {"kind": "sgd", "lr": 1.0, "momentum": 0.9}, "batch_size": 4}
    }
    by_name = build_variant_changes({"model": {"position": ["rope"]}}, {"model.position.base": 500})
    assert by_name == {"model": {"position": {"kind": "rope", "base": 500}}}
    unset = build_variant_changes({}, {"training.optimizer.lr": 1.0})
    assert unset == {"training": {"optimizer": {"kind": "adamw", "lr": 1.0}}}
    both = build_variant_changes(raw, {"training.optimizer.lr": 1.0, "training.optimizer": "adagrad"})
    assert both == {"training": {"optimizer": {"kind": "adagrad", "lr": 1.0}}}


def test_every_error_of_a_space_is_reported_together_with_its_line(tmp_path):
    text = FILE.replace("[0.1, 0.01]", '[0.1, "fast"]').replace("low = 8", "low = 0")
    text += "training.batchsize = [1]\nmodel.heads = [2, 0]\n"
    with pytest.raises(ConfigError, match="4 errors") as caught:
        loaded(tmp_path, text)
    output = str(caught.value)
    assert "search.space.training.optimizer.lr (line 11): must be a number, not 'fast'" in output
    assert "search.space.training.batch_size (line 12): must be >= 1, not 0" in output
    assert "did you mean 'batch_size'?" in output
    assert "search.space.model.heads (line 15): must be >= 1, not 0" in output


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (
            {"space": {"model.width": [16, 24], "model.heads": [2, 3]}},
            "model.width = 16, model.heads = 3 is impossible",
        ),
        ({"space": {"training.batch_size": [4, 4]}}, "lists the same value twice"),
        (
            {"space": {"training.batch_size": {"low": 4, "high": 8}}},
            "a grid needs a list of values, or a range with a step",
        ),
        ({"space": {"training.batch_size": {"low": 8, "high": 4}}}, "low must be below high"),
        ({"space": {"training.max_grad_norm": {"low": 0, "high": 4, "log": True}}}, "log requires low > 0"),
        ({"space": {"data.tokenizer": ["words", "bytes"]}}, "cannot be compared"),
        ({"space": {"seeds": [1, 2]}}, "a search changes settings of data, model or training"),
        ({"space": {"training.batch_size": 4}}, "must be a list, not the number 4"),
        ({"space": {"training.batch_size": [4, 8]}, "method": "random"}, "random search needs a budget"),
        ({"space": {"training.batch_size": [4, 8]}, "budget": "40"}, "looks like"),
        ({"space": {"training.batch_size": [4, 8]}, "budget": "40 epochs"}, "allowed: trials"),
        ({"space": {"training.batch_size": [4, 8]}, "budget": "1 trial"}, "are fewer than one point of 2 seeds"),
        ({"space": {"training.batch_size": [4, 8]}, "method": "bayes"}, "allowed: grid, random, tpe"),
        ({"space": {"training.batch_size": [4, 8]}, "seeds": 0}, "search.seeds: must be >= 1"),
        ({"space": {"training.batch_size": [4, 8]}, "prune": {"risk": 0.9}}, "search.prune.risk: must be <= 0.5"),
    ],
)
def test_what_cannot_be_searched_is_reported(search: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match="error") as caught:
        loading.build_experiment({"question": "?", "task": "language-model", "search": search})
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["winner", "search"])
def test_names_that_the_search_needs_are_kept_free(name):
    raw = {
        "question": "?",
        "task": "language-model",
        "variants": {name: {"model": {"position": "alibi"}}},
        "search": {"space": {"training.batch_size": [4, 8]}},
    }
    with pytest.raises(ConfigError, match="is reserved for the search"):
        loading.build_experiment(raw)


def test_figures_can_be_published_about_the_winner():
    row = {"source": "C", "variant": "winner", "split": "test", "metric": "perplexity", "value": 1.0}
    raw: dict[str, Any] = {"question": "?", "task": "language-model", "published": [row]}
    raw["search"] = {"space": {"training.batch_size": [4, 8]}}
    assert loading.build_experiment(raw).published[0].variant == "winner"


def test_a_quick_look_tries_four_cells_and_no_long_ones(tmp_path):
    text = FILE + 'training.budget = ["200 steps", "1000 steps", "5000 steps"]\n'
    search = loaded(tmp_path, text, quick=True).search
    assert search is not None
    assert search.compute_planned_counts() == (4, 4)
    assert search.list_values("training.budget") == ("20 steps", "100 steps")


def test_the_schema_knows_the_table():
    table = build_full_json_schema()["$defs"]["SearchConfig"]["properties"]
    assert set(table) == {"method", "space", "seeds", "budget", "prune", "seed"}
