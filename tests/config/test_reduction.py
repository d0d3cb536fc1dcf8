"""`--only` and `--quick`: which parts of an experiment are kept, and what is recorded in `left_out`."""

from pathlib import Path

import pytest

from headtohead.config.experiment import Experiment
from headtohead.config.parse_experiment import parse_experiment
from headtohead.errors import ConfigError, RequestError

FILE = """
question = "Does it matter?"
task = "classify"
seeds = 8
published = [{ source = "paper", variant = "b", split = "test", metric = "accuracy", value = 0.5 }]

[training]
budget = "10 epochs"

[variants.a]
model.width = 32
[variants.b]
training.budget = "20 epochs"
[variants.c]
model.layers = 3

[[comparisons]]
title = "among"
baseline = "a"
variants = ["b", "c"]

[[claims]]
source = "paper"
statement = "b helps"
variant = "b"
expected_verdict = "helped"

[probe]
contexts = [16, 32, 64, 128]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def look(file: Path, text: str = "", **options: bool) -> Experiment:
    file.write_text(FILE + text, encoding="utf-8")
    return parse_experiment(file, quick=True, **options)


def test_only_keeps_the_named_variants_and_what_is_about_them(file: Path) -> None:
    experiment = parse_experiment(file, only=["c", "a"])
    assert list(experiment.variants) == ["a", "c"]
    assert not experiment.published and not experiment.claims
    assert [(row.baseline, row.variants) for row in experiment.comparisons] == [("a", ("c",))]
    assert not parse_experiment(file, only=["b"]).comparisons  # its baseline is gone
    assert parse_experiment(file, only=["b"]).published


def test_only_rejects_unknown_variants_with_a_hint() -> None:
    with pytest.raises(RequestError, match=r"window has no variant 'window8'; did you mean 'window-8'\? \(available: "):
        parse_experiment("window", only=["window8"])


def test_only_does_not_change_the_identity_of_the_runs(file: Path) -> None:
    assert parse_experiment(file, only=["a"]).identity() == parse_experiment(file).identity()


def test_a_quick_look_reduces_everything_that_takes_time_and_states_it(file: Path) -> None:
    experiment = look(file)
    assert experiment.quick and experiment.name == "mine-quick" and experiment.seeds == 2
    assert experiment.training.budget == "1 epoch" and experiment.training.eval_every == "0.2 epochs"
    assert experiment.variants["b"]["training"]["budget"] == "2 epochs"
    assert experiment.data.row_limits == {"train": 10_000, "validation": 100, "test": 100}
    assert experiment.probe.contexts == (16, 128)
    assert not experiment.claims and not experiment.published
    assert experiment.left_out == (
        "2 of 8 seeds",
        "1 epoch instead of 10 epochs",
        "at most 10,000 training, 100 validation and 100 test rows, sampled evenly",
        "fewer input lengths",
        "no comparison with published results",
    )


def test_a_smaller_limit_of_the_file_stays(file: Path) -> None:
    assert look(file, "[data]\ntest_rows = 7\ntrain_rows = 50\n").data.row_limits["test"] == 7


def test_the_quick_table_has_the_last_word(file: Path) -> None:
    experiment = look(file, '[quick]\nonly = ["c"]\ntraining.budget = "3 steps"\ndata.test_rows = 9\n')
    assert list(experiment.variants) == ["c"]
    assert (experiment.training.budget, experiment.data.test_rows) == ("3 steps", 9)
    assert "3 steps instead of 10 epochs" in experiment.left_out
    assert "1 of 3 variants (without a, b)" in experiment.left_out
    assert list(parse_experiment(file).variants) == ["a", "b", "c"]


def test_variants_of_the_command_line_replace_those_of_the_quick_table(file: Path) -> None:
    experiment = look(file, '[quick]\nonly = ["c"]\n', only=["b"])  # type: ignore[arg-type]
    assert list(experiment.variants) == ["b"]


def test_a_mistake_in_the_quick_table_is_reported(file: Path) -> None:
    with pytest.raises(RequestError, match="has no variant 'd'"):
        look(file, '[quick]\nonly = ["d"]\n')
    with pytest.raises(ConfigError, match=r"training\.stepz"):
        look(file, "[quick]\ntraining.stepz = 3\n")


@pytest.mark.parametrize("text", ["[data]\nsource = 3\n", "teacher = 3", "data = 3", "variants = 3"])
def test_values_of_the_wrong_type_are_left_to_validation(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'question = "?"\ntask = "classify"\n{text}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"must be|is a table|unknown key"):
        parse_experiment(path, quick=True)
