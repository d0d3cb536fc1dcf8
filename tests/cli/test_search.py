"""A search started from the command line: one command searches, compares and reports."""

import json

import pytest

from .test_bad_input import h2h, write_experiment  # noqa: F401

pytestmark = pytest.mark.usefixtures("in_process_workers")

SEARCH = """
[search]
seeds = 2
[search.space]
training.batch_size = [2, 4, 8]
training.optimizer.lr = [0.1, 0.01]
"""


def test_a_plan_says_how_many_points_and_how_long(h2h, write_experiment):  # noqa: F811
    file = write_experiment()
    file.write_text(file.read_text() + SEARCH)
    code, out, err = h2h("plan", file)
    assert code == 0, err
    assert "grid search, 6 points x 2 seeds = 12 trials: about" in " ".join(out.split())
    assert "compared with the baseline on fresh seeds" in " ".join(out.split())
    code, out, _ = h2h("plan", file, "--json", "--set", "search.budget=8 trials")
    plan = json.loads(out)["search"]
    assert (plan["points"], plan["trials"], plan["grid_size"]) == (4, 8, 6)
    assert plan["seconds"] > 0


def test_a_quick_search_from_end_to_end(h2h, write_experiment, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "80")
    file = write_experiment()
    file.write_text(file.read_text() + SEARCH)
    code, out, err = h2h("run", file, "--quick", "--out", "here", "--set", "probe.prompts=[]")
    assert code == 0, err
    text = " ".join(out.split())
    assert "Grid search tried 4 points (of 6 in the grid) with 1 seed each, 4 trials in total." in text
    assert "The winner is point-00" in text and "selection bias" in text
    assert "Quick look, not judged: at most" in text
    assert max(map(len, out.splitlines())) <= 80 + len(str(tmp_path))
    page = (tmp_path / "here" / "report.html").read_text()
    assert 'id="search"' in page and "Quick look:" in page
    code, out, _ = h2h("run", file, "--quick", "--out", "here", "--resume", "--json")
    content = json.loads(out)
    assert [item["name"] for item in content["variants"]] == ["alibi", "winner"]
    assert content["search"]["selection_bias"]["seeds"] == [1, 1]
    code, out, _ = h2h("verify", "here")
    assert code == 0 and " 0 failed" in out


def test_an_impossible_value_ends_with_2_and_leaves_nothing(h2h, write_experiment, tmp_path):  # noqa: F811
    file = write_experiment()
    file.write_text(file.read_text() + SEARCH.replace("[2, 4, 8]", "[2, 0]"))
    code, _, err = h2h("run", file, "--out", "here")
    assert code == 2
    assert "search.space.training.batch_size (line" in err and "must be >= 1, not 0" in err
    assert not (tmp_path / "here").exists()
