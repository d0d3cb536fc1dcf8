"""The settings form: built from the schema with a recipe's values; only changes become settings, errors appear per
field.
"""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from headtohead.config import json_schema
from headtohead.config.recipe_catalog import list_recipes
from headtohead.errors import ConfigError, RequestError, ValidationIssue
from headtohead.experiment.settings.registry_json_schema import build_full_json_schema
from headtohead.web import settings_form
from headtohead.web.estimates import _complete_form_schema

from .conftest import HOSTILE, TEXT

FULL = _complete_form_schema(json_schema.build_json_schema(), build_full_json_schema())


def build_fields_by_name(
    name: str, files: Path, schema: dict[str, Any] | None = None
) -> dict[str, settings_form.FormField]:
    groups = settings_form.build_form_fields(name, files, schema or json_schema.build_json_schema())
    return {field.name: field for group in groups.values() for field in group}


def test_fields_have_the_files_values_and_the_schemas_kinds(files: Path) -> None:
    result = build_fields_by_name("mine.toml", files, FULL)
    assert (result["training.budget"].value, result["training.budget"].kind) == ("8 steps", "text")
    assert (result["seeds"].value, result["equivalence_margin"].value) == ("1", "0.01")
    assert (result["training.order"].value, result["training.order"].kind) == ("", "toml")
    assert '"shuffled"' in result["training.order"].options
    assert (result["model.tie_word_embeddings"].value, result["model.tie_word_embeddings"].options) == (
        "false",
        ("true", "false"),
    )
    assert result["training.optimizer"].value == '{ kind = "adamw", lr = 0.001 }'
    assert '"rope"' in result["model.position"].options
    assert "plugins" not in result and "model.module" not in result


def test_every_recipe_has_a_form_and_sent_back_as_it_is_it_changes_nothing(files: Path) -> None:
    for name in list_recipes():
        fields, full_fields = build_fields_by_name(name, files), build_fields_by_name(name, files, FULL)
        assert {n: (f.kind, f.value) for n, f in fields.items()} == {
            n: (f.kind, f.value) for n, f in full_fields.items()
        }
        value = {"recipe": name, "name": "x", **{field.name: field.value for field in fields.values()}}
        training_request = settings_form.parse_training_request(value, files, FULL)
        assert (training_request.settings, training_request.data) == ((), None), name
        settings_form.validate_training_request(training_request, files)
        if settings_form.list_recipes(files)[name]["full"]:
            full = settings_form.parse_training_request({**value, "shown": "file", "full": "true"}, files, FULL)
            assert (full.settings, full.data, full.full) == ((), None, True), name
            settings_form.validate_training_request(full, files)


def test_a_form_shows_only_what_the_task_uses(files: Path) -> None:
    classifier, decoder = (
        build_fields_by_name("speeches-classifier", files, FULL),
        build_fields_by_name("speeches-decoder", files, FULL),
    )
    student, encoder = build_fields_by_name("distil-decoder", files, FULL), build_fields_by_name("sst2", files, FULL)
    assert "model.pool" in classifier and "model.pool" not in decoder
    assert "data.rare_words" in decoder and "data.rare_words" not in classifier
    for fields in (classifier, decoder, encoder):
        assert "training.distillation" not in fields and "training.masking" not in fields
    assert "training.distillation" in student
    assert "model.lora" in encoder and "model.layer_subset" not in encoder and "data.tokenizer" not in encoder


def test_only_what_is_changed_becomes_a_setting(files: Path) -> None:
    value = {
        "recipe": "mine.toml",
        "name": " new ",
        "training.budget": "2 epochs",
        "model.position": "rope",
        "quick": "true",
    }
    value |= {"training.batch_size": "4", "data.source": "other", "model.heads": " 2 "}
    training_request = settings_form.parse_training_request(value, files, FULL)
    assert training_request == settings_form.TrainingRequest(
        "mine.toml", "new", ('training.budget="2 epochs"', "model.position=rope"), "other", True
    )
    complete = settings_form.validate_training_request(training_request, files)
    assert complete.data == str((files / "other").resolve())
    assert complete.build_cli_arguments(files) == [
        *(str(files / "mine.toml"), "--data", complete.data, "--quick"),
        *("--set", 'training.budget="2 epochs"', "--set", "model.position=rope"),
    ]


LARGE = f"{TEXT}\n[full]\nquestion = 'And on a larger machine?'\ntraining = {{ budget = '16 steps', batch_size = 2 }}\n"


def test_the_full_setting_replaces_what_was_not_changed(files: Path) -> None:
    (files / "large.toml").write_text(LARGE)
    assert [item["full"] for item in map(settings_form.list_recipes(files).get, ("mine.toml", "large.toml"))] == [
        False,
        True,
    ]

    def asked(**given: str) -> settings_form.TrainingRequest:
        names = {"steps": "training.budget", "batch": "training.batch_size"}
        return settings_form.parse_training_request(
            {"recipe": "large.toml", "name": "x", **{names.get(k, k): v for k, v in given.items()}}, files, FULL
        )

    ticked = asked(shown="file", full="true", steps="8 steps", batch="4")
    assert (ticked.full, ticked.settings) == (True, ())
    assert settings_form.validate_training_request(ticked, files).build_cli_arguments(files) == [
        str(files / "large.toml"),
        "--full",
    ]
    assert asked(shown="file", full="true", steps="9 steps", batch="4").settings == ('training.budget="9 steps"',)
    assert asked(shown="full", full="true", steps="16 steps", batch="4").settings == ("training.batch_size=4",)
    assert asked(shown="full", steps="16 steps", batch="3") == settings_form.TrainingRequest(
        "large.toml", "x", ("training.batch_size=3",)
    )
    with pytest.raises(RequestError, match=r"mine has no \[full\] table"):
        settings_form.validate_training_request(settings_form.TrainingRequest("mine.toml", "x", full=True), files)


def test_the_form_shows_the_values_of_the_setting_that_is_ticked(client: TestClient, files: Path, runs: Path) -> None:
    (files / "large.toml").write_text(LARGE)
    assert 'name="full"' not in client.get("/start/mine.toml").text
    assert 'name="full" value="true" id="full">' in client.get("/start/large.toml").text
    messages = {
        "do": "show",
        "shown": "file",
        "full": "true",
        "name": "new",
        "training.budget": "8 steps",
        "training.batch_size": "5",
    }
    text = client.post("/start/large.toml", data=messages).text
    assert 'id="full" checked' in text and 'name="shown" value="full"' in text
    assert 'name="training.budget" value="16 steps"' in text and 'name="training.batch_size" value="5"' in text
    assert not (runs / "new").exists()
    cost = client.post("/api/estimates", json={"recipe": "large.toml", "full": True, "settings": {"seeds": "3"}})
    assert {row["steps"] for row in cost.json()["plan"]} == {16} and cost.json()["trials"] == 6
    refused = client.post("/api/experiments", json={"recipe": "mine.toml", "name": "new", "full": True})
    assert refused.status_code == 422 and "has no [full] table" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("settings", "data", "words"),
    [
        (('plugins=["evil.py"]',), None, "plugins: names code to run"),
        (('model.module="evil.py:Net"',), None, "model.module: names code to run"),
        (("model.options.x=1",), None, "names code to run"),
        ((), "/etc", "data.source: is outside the folder"),
        ((), "../..", "data.source: is outside the folder"),
        ((), "~root/x", "data.source: is outside the folder"),
        (('data.tokenizer={kind="file",path="../../t.json"}',), None, "data.tokenizer: is outside the folder"),
        (('data.files={train="/etc/passwd"}',), None, "data.files: is outside the folder"),
        (('model.pretrained="/root/model"',), None, "is outside the folder"),
        (("nothing",), None, "must have the form name=value"),
        (("a=b\nc=d",), None, "on one line"),
        (("model.heads=0",), None, "must be >= 1"),
        (("training.stepz=5",), None, "unknown key"),
    ],
)
def test_code_and_paths_outside_cannot_be_named_from_a_page(
    files: Path, settings: tuple[str, ...], data: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        settings_form.validate_training_request(settings_form.TrainingRequest("mine.toml", "x", settings, data), files)


@pytest.mark.parametrize("name", ["", "nothing", "../mine.toml", "/etc/passwd", "mine", HOSTILE, "pyproject.toml"])
def test_only_recipes_and_files_of_the_folder_can_be_started(client: TestClient, files: Path, name: str) -> None:
    (files / "pyproject.toml").write_text("")
    with pytest.raises(RequestError, match="no recipe or experiment file of that name"):
        settings_form.resolve_recipe(name, files)
    assert client.post("/api/experiments", json={"recipe": name, "name": "x"}).status_code == 422


def test_errors_are_shown_at_their_field(client: TestClient) -> None:
    messages = {"name": "new", "training.batch_size": "none", "model.heads": "0", "do": "start"}
    response = client.post("/start/mine.toml", data=messages)
    assert "Nothing was started." in response.text
    assert 'id="field-training-batch-size-error-1"' in response.text and "must be a whole number" in response.text
    assert 'id="field-model-heads-error-1"' in response.text and "must be &gt;= 1" in response.text
    assert 'value="none"' in response.text, "what was filled in is still there"
    hostile = client.post("/start/mine.toml", data={**messages, "training.batch_size": HOSTILE, "name": HOSTILE})
    assert "<script>alert" not in hostile.text and "&lt;script&gt;" in hostile.text
    response = client.post("/start/mine.toml", data={"name": "done", "do": "start"})
    assert 'id="field-name-error-1"' in response.text


def test_faults_that_another_process_found_are_read_back_with_their_places() -> None:
    output = "h2h: error: mine.toml: 2 errors\n  --set model.position: no part 'alib'\n      did you mean 'alibi'?\n"
    output += "  training.optimizer (line 12): has no option 'ratte'\n"
    error_output = settings_form.parse_field_errors(output)
    assert error_output == [
        ValidationIssue("model.position", "no part 'alib'; did you mean 'alibi'?"),
        ValidationIssue("training.optimizer", "has no option 'ratte'"),
    ]
    messages_by_field, form_messages = settings_form.assign_issues_to_fields(
        [*error_output, ValidationIssue("variants.x", "bad")], ["model.position", "training.optimizer"]
    )
    assert set(messages_by_field) == {"model.position", "training.optimizer"}
    assert form_messages == ["variants.x: bad"]


def test_the_cost_is_reported_and_nothing_is_started(client: TestClient, runs: Path) -> None:
    response = client.post("/start/mine.toml", data={"name": "new", "seeds": "3", "do": "estimate"})
    assert response.status_code == 200
    assert "6 trials" in response.text and "Estimated cost" in response.text
    assert not (runs / "new").exists()


def test_a_part_that_does_not_exist_is_told_at_its_field(client: TestClient) -> None:
    response = client.post("/start/mine.toml", data={"name": "new", "model.position": "alibii", "do": "estimate"})
    assert 'id="field-model-position-error-1"' in response.text
    assert "alibi" in response.text
