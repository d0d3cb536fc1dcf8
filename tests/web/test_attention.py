"""The page Attention: maps of a model on a text, two models beside each other, before and after training; and the
process that holds the models."""

import os
import re
import signal
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headtohead.attention_analysis.api import analyze_attention
from headtohead.web.experiment_folders import ExperimentFolders, NameNotFoundError
from headtohead.web.models.catalog import ModelCatalog, find_weight_packages

from .conftest import HOSTILE, MARKUP, wait_until

BASELINE, ALIBI = "run/tiny/baseline/0", "run/tiny/alibi/0"
TEXT = "the people will build schools and jobs"


def look(client: TestClient, **asked: object) -> object:
    return client.post("/api/attention", json={"model": BASELINE, "text": TEXT, **asked})


def test_the_page_offers_every_run_and_what_is_installed(looking: TestClient) -> None:
    page = looking.get("/attention").text
    assert '<optgroup label="tiny">' in page and f'value="{ALIBI}"' in page
    assert "before training" in page and "at step 6" in page
    listed = {one["key"]: one for one in looking.get("/api/models").json()}
    assert listed[BASELINE]["checkpoints"] == ["before", "checkpoint-000006", "after"]
    assert listed[ALIBI]["checkpoints"] == ["before", "after"] and listed[ALIBI]["can_generate"]
    assert {f"pretrained/{name}" for name in find_weight_packages()} <= set(listed)


def test_the_maps_are_those_of_the_verb(looking: TestClient, trained: Path) -> None:
    answer = look(looking)
    assert answer.status_code == 200, answer.text
    wanted = analyze_attention(trained / "tiny" / "baseline" / "seed-0", TEXT).to_dict()
    found = answer.json()["analysis"]
    assert found["tokens"] == wanted["tokens"]
    for row, other in zip(found["panels"][0]["measures"], wanted["panels"][0]["measures"], strict=True):
        assert row["entropy"] == pytest.approx(other["entropy"], abs=1e-6)
    assert answer.json()["html"].count('class="thumb"') == 4  # two layers of two heads


def test_two_models_stand_beside_each_other_with_their_difference(looking: TestClient) -> None:
    html = look(looking, compare_to=ALIBI).json()["html"]
    assert html.count('class="thumb"') == 12 and "alibi, seed 0 − baseline, seed 0" in html
    twice = look(looking, compare_to=BASELINE)
    assert twice.status_code == 422 and "both models are the same" in twice.json()["detail"]


def test_the_slider_goes_from_before_training_over_checkpoints_to_the_end(looking: TestClient) -> None:
    measured = {}
    for at in ("before", "checkpoint-000006", "after"):
        measured[at] = look(looking, checkpoint=at).json()["analysis"]["panels"][0]["measures"]
    # The checkpoint of the fixture holds the weights from before the training.
    assert measured["checkpoint-000006"] == measured["before"] != measured["after"]
    assert look(looking, checkpoint="checkpoint-000007").status_code == 404
    assert look(looking, checkpoint="../after").status_code == 404


def test_markup_in_texts_and_tokens_is_text(looking: TestClient) -> None:
    html = look(looking, text=f"the {MARKUP} people").json()["html"]
    assert MARKUP not in html and "&lt;img/src=x/onerror=alert(1)&gt;" in html
    assert set(re.findall(r"<script[^>]*>", html)) == {'<script type="application/json" class="sheet">'}
    page = looking.get("/attention", params={"text": HOSTILE, "model": HOSTILE}).text
    assert HOSTILE not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"text": ""}, 422, "at least 1 character"),
        ({"text": " "}, 422, "the text is empty"),
        ({"text": "x" * 4001}, 422, "at most 4000 characters"),
        ({"text": "zzz qqq"}, 422, "unknown to the model"),
        ({"model": "run/tiny/baseline/1"}, 404, "no such model"),
        ({"model": "run/tiny/baseline/00"}, 404, "no such model"),
        ({"model": "run/../runs/tiny/baseline/0"}, 404, "no such model"),
        ({"model": "run/../baseline/0"}, 404, "no such experiment"),
        ({"model": "/etc/passwd"}, 404, "no such model"),
        ({"model": "pretrained/../../etc"}, 404, "no such model"),
        ({"model": None}, 422, "body.model"),
        ({"path": "/etc"}, 422, "body.path"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    looking: TestClient, asked: dict[str, object], status: int, words: str
) -> None:
    answer = look(looking, **asked)
    assert answer.status_code == status and words in answer.json()["detail"], answer.text


def test_nothing_is_computed_by_get(looking: TestClient) -> None:
    assert looking.get("/api/attention").status_code == 405


def test_the_process_is_started_again_when_it_has_died(looking: TestClient) -> None:
    assert look(looking).status_code == 200
    models = looking.app.state.site.models
    before = models.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: models.pid is None, 20)
    assert look(looking).status_code == 200
    assert models.pid not in (None, before)


def test_the_server_itself_has_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, headtohead.web.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_links_that_lead_out_of_runs_are_no_models(trained: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "own" / "variant").mkdir(parents=True)
    (runs / "own" / "experiment.json").write_text("{}")
    (runs / "own" / "variant" / "seed-0").symlink_to(trained / "tiny" / "alibi" / "seed-0")
    (runs / "own" / "linked").symlink_to(trained / "tiny" / "alibi")
    run = runs / "own" / "files" / "seed-0"
    run.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (run / name).symlink_to(trained / "tiny" / "alibi" / "seed-0" / name)
    catalog = ModelCatalog(ExperimentFolders.open_root(runs))
    assert "own" not in catalog.list_by_group()
    for key in ("run/own/variant/0", "run/own/linked/0", "run/own/files/0"):
        with pytest.raises(NameNotFoundError, match="no such model"):
            catalog.find(key)


def test_a_pretrained_folder_is_known_by_its_name_only(trained: Path) -> None:
    folder = trained / "tiny" / "alibi" / "seed-0"
    found = ModelCatalog(ExperimentFolders.open_root(trained), [str(folder)]).find("pretrained/seed-0")
    assert found.location == str(folder) and found.name == "seed-0"
    with pytest.raises(NameNotFoundError, match="no such model"):
        ModelCatalog(ExperimentFolders.open_root(trained)).find("pretrained/seed-0")
