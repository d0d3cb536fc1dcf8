"""Comparison of two experiments: verdicts, settings and whether the scores are comparable."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from headtohead.experiment.schemas import ExperimentFile
from headtohead.experiment.schemas.base import read_record, write_record

from .conftest import HOSTILE, write_experiment


@pytest.fixture
def pair(runs: Path, finished: Path) -> Path:
    """RUNS with two copies of a trained experiment, and a third one with other settings."""
    for name in ("real-a", "real-b"):
        shutil.copytree(finished, runs / name)
    return runs


def change_experiment(folder: Path, **changes: Any) -> None:
    file = read_record(folder / "experiment.json", ExperimentFile)
    experiment = file.experiment.model_copy(update=changes)
    write_record(folder / "experiment.json", file.model_copy(update={"experiment": experiment}))


def strip_tags(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_equal_experiments_can_be_read_side_by_side_but_are_not_judged(client: TestClient, pair: Path) -> None:
    change_experiment(pair / "real-b", seeds=7)
    page = client.get("/compare?name=real-a&name=real-b")
    text = strip_tags(page.text)
    assert page.status_code == 200
    assert "same data, metric and baseline settings" in text
    assert "not judged against each other" in text
    assert "Not comparable" not in text
    assert page.text.count('class="sentence">alibi') == 2
    assert text.count("mean over seeds ± standard deviation") == 2
    settings = strip_tags(page.text[page.text.index("differences-title") :])
    assert "seeds 2 7" in settings
    assert "model." not in settings


def test_charts_of_both_have_distinct_ids(client: TestClient, pair: Path) -> None:
    page = client.get("/compare?name=real-a&name=real-b").text
    ids = re.findall(r'<clipPath id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) >= 4


def test_other_data_and_settings_are_named_as_not_comparable(client: TestClient, pair: Path) -> None:
    text = strip_tags(client.get("/compare?name=real-a&name=done").text)
    assert re.search(r"Not comparable: the experiments differ in the data, .*model\.width", text)
    assert "same data" not in text
    assert re.search(r"model\.width 16 \d+", text)


def test_a_quick_look_is_not_comparable_with_a_full_run(client: TestClient, pair: Path) -> None:
    change_experiment(pair / "real-b", quick=True)
    text = strip_tags(client.get("/compare?name=real-a&name=real-b").text)
    assert "the experiments differ in a quick look" in text
    assert "Quick look: not judged." in text
    assert "quick look" in strip_tags(client.get("/").text)
    page = strip_tags(client.get("/experiments/real-b").text)
    assert "Quick look: not judged." in page and "Differences" in page and "Verdicts" not in page
    assert "Quick look: not judged." in strip_tags(client.get("/experiments/real-b").text)


@pytest.mark.parametrize(("query", "count"), [("", 0), ("name=done", 1), ("name=done&name=done", 1)])
def test_two_experiments_must_be_selected(client: TestClient, query: str, count: int) -> None:
    page = client.get(f"/compare?{query}")
    assert page.status_code == 422
    assert f"select two experiments to compare, got {count}" in page.text


def test_an_unknown_experiment_is_not_found(client: TestClient) -> None:
    assert client.get("/compare?name=done&name=../secret").status_code == 404


def test_text_of_foreign_experiments_is_escaped(client: TestClient, runs: Path) -> None:
    write_experiment(runs / "hostile", question=HOSTILE)
    assert "<script>alert" not in client.get("/compare?name=done&name=hostile").text
