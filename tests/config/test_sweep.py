"""The [sweep] table: its cells, their order, and invalid values."""

from __future__ import annotations

from typing import Any

import pytest

from headtohead.config.tables.sweep import SweepConfig
from headtohead.errors import ConfigError
from headtohead.experiment.sweep_cells import build_cell_experiments, order_cells_by_coverage

GRID = {"training": {"optimizer": {"lr": [1e-3, 1e-2]}, "budget": ["20 steps", "40 steps"]}}


def test_every_combination_of_values_is_a_cell_with_a_readable_name() -> None:
    cells = SweepConfig.model_validate(GRID).list_cells()
    assert [cell.name for cell in cells] == [
        "lr-0.001_budget-20-steps",
        "lr-0.001_budget-40-steps",
        "lr-0.01_budget-20-steps",
        "lr-0.01_budget-40-steps",
    ]
    assert cells[0].coordinates == {"training.optimizer.lr": "0.001", "training.budget": "20 steps"}


def test_a_sweep_survives_being_written_to_json() -> None:
    raw = {**GRID, "corpora": ["sotu", "texts/news.txt"], "sizes": {"small": {"model": {"width": 8}}}}
    sweep = SweepConfig.model_validate(raw)
    assert sweep.corpora == {"sotu": {"source": "sotu"}, "news": {"source": "texts/news.txt"}}
    assert SweepConfig.model_validate(sweep.model_dump(mode="json")) == sweep
    assert sweep.count_cells() == 8


def test_the_first_cells_cover_all_values() -> None:
    settings = {"model.layers": [1, 2, 3], "training.batch_size": [4, 8, 16]}
    cells = SweepConfig.model_validate({"settings": settings}).list_cells()
    first = order_cells_by_coverage(cells)[:3]
    assert first[0] == cells[0], "the first values come first"
    for axis in settings:
        assert len({cell.coordinates[axis] for cell in first}) == 3
    assert sorted(cell.name for cell in order_cells_by_coverage(cells)) == sorted(cell.name for cell in cells)


def test_a_cell_is_the_experiment_with_its_values(small: Any) -> None:
    sizes = {"sizes": {"small": {"model": {"width": 8}}, "large": {"model": {"width": 32, "heads": 4}}}}
    cells = {cell.name: cell.experiment for cell in build_cell_experiments(small(sweep={**GRID, **sizes}))}
    cell = cells["large_lr-0.01_budget-20-steps"]
    assert (cell.model.width, cell.model.heads, cell.training.budget) == (32, 4, "20 steps")
    assert cell.training.optimizer.options == {"lr": 0.01} and cell.training.optimizer.kind == "adamw"
    assert cell.sweep is None and not cell.probe.prompts and list(cell.variants) == ["alibi"]
    assert len({experiment.identity() for experiment in cells.values()}) == 8


def test_settings_that_describe_a_corpus_stay_with_it(small: Any, text_folder: Any, tmp_path: Any) -> None:
    other = tmp_path / "other.txt"
    other.write_text("one line of text\n" * 40)
    sweep = {"corpora": {"own": str(text_folder), "other": str(other)}}
    experiment = small(data={"monitor": ["test"], "allow_overlap": True}, sweep=sweep)
    own, new = (cell.experiment for cell in build_cell_experiments(experiment))
    assert (own.data.source, own.data.monitor) == (str(text_folder), ("test",))
    assert (new.data.source, new.data.monitor, new.data.allow_overlap) == (str(other), (), True)


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"training": {"optimizer": {"lr": 1e-3}}}, r"training.optimizer.lr requires a list of values"),
        ({"training": {"budget": ["20 steps"]}}, "needs at least two cells"),
        ({"model": {"width": [16, 16]}}, "lists the same value twice"),
        ({"model": {"width": [16, 17]}}, "17: .*17"),
        ({"model": {"position": ["rope", "none"]}}, "variants.alibi overrides model.position"),
        ({"model": {"widht": [16, 32]}}, "did you mean 'width'"),
        ({"data": {"source": ["a", "b"]}}, "corpora are listed in sweep.corpora"),
        ({"corpora": ["a/text", "b/text"]}, "two corpora have the name 'text'"),
        ({"corpora": {"a": {"rows": "stream"}, "b": "b"}}, "sweep.corpora.a.*needs a source"),
        ({"sizes": {"a": {"data": {"rows": "stream"}}, "b": {}}}, "not a setting of model or training"),
        ({"settings": {"training.batch_size": list(range(1, 1200))}}, "1,199 cells; at most 1,000 are allowed"),
        ({"speed": 3}, "unknown key"),
    ],
)
def test_an_invalid_sweep_is_rejected_before_training(small: Any, sweep: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(sweep=sweep)


def test_all_issues_of_all_cells_are_reported_together(small: Any, text_folder: Any) -> None:
    sweep = {"corpora": {"own": str(text_folder), "bad": {"source": str(text_folder), "rows": "pages"}}}
    experiment = small(sweep={**sweep, "training": {"batch_size": [4, 8]}})
    with pytest.raises(ConfigError, match=r"2 errors(.|\n)*cell bad_batch-size-4: data.rows: cannot be 'pages'"):
        build_cell_experiments(experiment)
