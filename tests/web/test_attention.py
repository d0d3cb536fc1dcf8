"""The attention page: maps of a model on a text, two models side by side, before and after training, and the model
process.
"""

import os
import re
import signal
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headtohead.attention_analysis.analysis import analyze_attention
from headtohead.web.experiment_folders import ExperimentFolders, NameNotFoundError
from headtohead.web.models.catalog import ModelCatalog, list_packages_with_weights

from .conftest import HOSTILE, MARKUP, wait_until

BASELINE, ALIBI = "run/tiny/baseline/0", "run/tiny/alibi/0"
TEXT = "the people will build schools and jobs"


def request_attention(client: TestClient, **fields: object) -> object:
    return client.post("/api/attention", json={"model": BASELINE, "text": TEXT, **fields})


def test_the_page_offers_every_run_and_what_is_installed(model_client: TestClient) -> None:
    page = model_client.get("/attention").text
    assert '<optgroup label="tiny">' in page and f'value="{ALIBI}"' in page
    assert "before training" in page and "at step 6" in page
    listed = {item["key"]: item for item in model_client.get("/api/models").json()}
    assert listed[BASELINE]["checkpoints"] == ["before", "checkpoint-000006", "after"]
    assert listed[ALIBI]["checkpoints"] == ["before", "after"] and listed[ALIBI]["can_generate"]
    assert {f"pretrained/{name}" for name in list_packages_with_weights()} <= set(listed)


def test_the_maps_are_those_of_the_command(model_client: TestClient, trained: Path) -> None:
    response = request_attention(model_client)
    assert response.status_code == 200, response.text
    expected = analyze_attention(trained / "tiny" / "baseline" / "seed-0", TEXT).to_dict()
    analysis = response.json()["analysis"]
    assert analysis["tokens"] == expected["tokens"]
    for row, expected_row in zip(analysis["panels"][0]["measures"], expected["panels"][0]["measures"], strict=True):
        assert row["entropy"] == pytest.approx(expected_row["entropy"], abs=1e-6)
    assert response.json()["html"].count('class="thumb"') == 4  # two layers of two heads


def test_two_models_are_shown_next_to_each_other_with_their_difference(model_client: TestClient) -> None:
    html = request_attention(model_client, compare_to=ALIBI).json()["html"]
    assert html.count('class="thumb"') == 12 and "alibi, seed 0 − baseline, seed 0" in html
    same_model = request_attention(model_client, compare_to=BASELINE)
    assert same_model.status_code == 422 and "both models are the same" in same_model.json()["detail"]


def test_the_slider_goes_from_before_training_over_checkpoints_to_the_end(model_client: TestClient) -> None:
    metrics_by_checkpoint = {}
    for checkpoint in ("before", "checkpoint-000006", "after"):
        analysis = request_attention(model_client, checkpoint=checkpoint).json()["analysis"]
        metrics_by_checkpoint[checkpoint] = analysis["panels"][0]["measures"]
    # The checkpoint of the fixture holds the weights from before the training.
    assert metrics_by_checkpoint["checkpoint-000006"] == metrics_by_checkpoint["before"]
    assert metrics_by_checkpoint["before"] != metrics_by_checkpoint["after"]
    assert request_attention(model_client, checkpoint="checkpoint-000007").status_code == 404
    assert request_attention(model_client, checkpoint="../after").status_code == 404


def test_markup_in_texts_and_tokens_is_text(model_client: TestClient) -> None:
    html = request_attention(model_client, text=f"the {MARKUP} people").json()["html"]
    assert MARKUP not in html and "&lt;img/src=x/onerror=alert(1)&gt;" in html
    assert set(re.findall(r"<script[^>]*>", html)) == {'<script type="application/json" class="sheet">'}
    page = model_client.get("/attention", params={"text": HOSTILE, "model": HOSTILE}).text
    assert HOSTILE not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("fields", "status", "message_part"),
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
def test_what_cannot_be_is_rejected_with_a_reason(
    model_client: TestClient, fields: dict[str, object], status: int, message_part: str
) -> None:
    response = request_attention(model_client, **fields)
    assert response.status_code == status and message_part in response.json()["detail"], response.text


def test_nothing_is_computed_by_get(model_client: TestClient) -> None:
    assert model_client.get("/api/attention").status_code == 405


def test_the_process_is_started_again_when_it_has_died(model_client: TestClient) -> None:
    assert request_attention(model_client).status_code == 200
    models = model_client.app.state.context.model_process
    before = models.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: models.pid is None, 20)
    assert request_attention(model_client).status_code == 200
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
    assert "own" not in catalog.list_models_by_group()
    for key in ("run/own/variant/0", "run/own/linked/0", "run/own/files/0"):
        with pytest.raises(NameNotFoundError, match="no such model"):
            catalog.find_model(key)


def test_a_pretrained_folder_is_known_by_its_name_only(trained: Path) -> None:
    folder = trained / "tiny" / "alibi" / "seed-0"
    result = ModelCatalog(ExperimentFolders.open_root(trained), [str(folder)]).find_model("pretrained/seed-0")
    assert result.location == str(folder) and result.name == "seed-0"
    with pytest.raises(NameNotFoundError, match="no such model"):
        ModelCatalog(ExperimentFolders.open_root(trained)).find_model("pretrained/seed-0")
