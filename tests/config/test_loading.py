"""Experiment files are validated strictly. All errors are reported at once, with location, allowed values and
suggestion.
"""

import json
import tomllib
from pathlib import Path

import pytest

from headtohead.config import recipe_catalog, trial_settings
from headtohead.config.tables import model
from headtohead.config.validation.error_messages import SYNONYMS
from headtohead.errors import ConfigError, RequestError
from headtohead.experiment import loading
from headtohead.experiment.settings.registry_json_schema import build_full_json_schema

TABLES = {"data": "DataConfig", "model": "TransformerConfig", "training": "TrainingConfig"}
GOOD = """
question = "Does ALiBi beat learned positions?"
task = "language-model"
seeds = 8
[data]
source = "sotu"
[model]
width = 64
heads = 2
position = "learned"
[training]
budget = "500 steps"
optimizer = { kind = "adamw", lr = 1e-3 }
[variants.alibi]
model.position = "alibi"
[variants.both]
model.position = ["alibi", "rope"]
"""


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def find_issues(path: Path, *settings: str) -> dict[str, object]:
    with pytest.raises(ConfigError, match="error") as caught:
        loading.load_experiment(path, settings)
    return {issue.location: issue for issue in caught.value.issues}


def test_a_good_file_becomes_frozen_data(file):
    experiment = loading.load_experiment(file(GOOD))
    assert experiment.name == "mine"
    assert experiment.names == ("baseline", "alibi", "both")
    assert experiment.primary.metric == "perplexity"
    assert [c.kind for c in trial_settings.build_trial(experiment, "both", 3).model.position] == ["alibi", "rope"]
    with pytest.raises(ValueError, match="frozen"):
        experiment.seeds = 3


def test_every_error_is_reported_together_with_place_and_nearest_match(file):
    text = (
        GOOD.replace("width = 64", 'width = "64"')
        .replace('source = "sotu"', 'sorce = "sotu"')
        .replace('kind = "adamw", lr', 'kind = "adamww", lr')
        .replace('model.position = "alibi"\n', 'model.position = "alibbi"\n')
        .replace('budget = "500 steps"', 'budget = "500 steps"\nmax_grad_norm = -1')
    )
    issues = find_issues(file(text))
    assert set(issues) == {
        "data.sorce (line 6)",
        "model.width (line 8)",
        "training.max_grad_norm (line 13)",
        "training.optimizer (line 14)",
        "variants.alibi.model.position (line 16)",
    }
    assert issues["data.sorce (line 6)"].suggestion == "source"
    assert issues["training.optimizer (line 14)"].suggestion == "adamw"
    assert issues["variants.alibi.model.position (line 16)"].suggestion == "alibi"
    assert "sinusoidal" in issues["variants.alibi.model.position (line 16)"].allowed


def test_mistakes_between_settings_are_reported_beside_mistakes_in_single_ones(file):
    text = GOOD.replace("heads = 2", "heads = 3\nlayrs = 2").replace(
        'budget = "500 steps"', 'budget = "500 steps"\nload_best_model_at_end = 1'
    )
    issues = find_issues(file(text), "data.validation_fraction=0", "primary.split=validation")
    assert "must be divisible by heads (3)" in issues["model (line 7)"].message
    assert "unknown key" in issues["model.layrs (line 10)"].message
    assert "true or false" in issues["training.load_best_model_at_end (line 14)"].message
    # An invalid width is removed before the rest is checked; the default must not be reported as indivisible.
    issues = find_issues(file(GOOD.replace("width = 64", 'width = "60"').replace("heads = 2", "heads = 3")))
    assert list(issues) == ["model.width (line 8)"]
    # Checks across tables run as well if only single settings are invalid.
    issues = find_issues(file(GOOD), "model.layrs=2", "data.validation_fraction=0", "primary.split=validation")
    assert "needs validation data" in issues["--set primary.split"].message
    assert len(issues) == 2


@pytest.mark.parametrize(
    ("table", "key", "meant"),
    [
        ("training", "lr", "training.optimizer.lr"),
        ("training", "learning_rate", "training.optimizer.lr"),
        ("training", "epochs", "budget"),
        ("training", "steps", "budget"),
        ("training", "warmup_steps", "training.schedule.warmup"),
        ("training", "grad_clip", "max_grad_norm"),
        ("model", "n_head", "heads"),
        ("model", "num_hidden_layers", "layers"),
        ("model", "d_model", "width"),
        ("model", "block_size", "context"),
        ("model", "batch_size", "training.batch_size"),
        ("model", "vocab_size", "data.tokenizer.vocab_size"),
        ("data", "dataset", "source"),
    ],
)
def test_names_of_other_libraries_and_keys_of_other_tables_get_a_hint(file, table, key, meant):
    (fault,) = find_issues(file(GOOD), f"{table}.{key}=1").values()
    assert fault.suggestion == meant


def test_every_synonym_leads_to_an_existing_key():
    schema = build_full_json_schema()
    tables = {name: schema["$defs"][class_name]["properties"] for name, class_name in TABLES.items()}
    for key in SYNONYMS:
        table, _, name = key.partition(".")
        assert name.partition(".")[0] in tables[table] if name else table in schema["properties"], key


def test_options_of_a_part_are_held_against_its_signature(file):
    issues = find_issues(file(GOOD.replace('model.position = "alibi"\n', 'model.position = {kind="alibi", slop=1}\n')))
    (fault,) = issues.values()
    assert fault.suggestion == "slope"
    assert "alibi has no option 'slop'" in fault.message
    issues = find_issues(file(GOOD.replace("heads = 2", 'heads = 2\npattern = {kind="window", size="8"}')))
    assert "must be a whole number" in issues["model.pattern.size (line 10)"].message
    issues = find_issues(file(GOOD.replace("heads = 2", 'heads = 2\npattern = "window"')))
    assert "requires the option 'size'" in issues["model.pattern (line 10)"].message


def test_heads_that_do_not_divide_width_are_an_error_only_without_head_dim(file):
    issues = find_issues(file(GOOD), "model.heads=3")
    assert "must be divisible by heads (3)" in issues["model (line 7)"].message
    assert loading.load_experiment(file(GOOD), ["model.heads=3", "model.head_dim=16"]).model.heads == 3


def test_two_absolute_positions_are_an_error(file):
    issues = find_issues(file(GOOD), 'model.position=["learned", "sinusoidal"]')
    assert "only one absolute position part" in issues["--set model.position"].message


def test_set_follows_the_same_rules(file):
    assert loading.load_experiment(file(GOOD), ["model.layers=2"]).model.layers == 2
    assert loading.load_experiment(file(GOOD), ["data.source=sotu"]).data.source == "sotu"
    issues = find_issues(file(GOOD), "model.layrs=2", "model.width=x")
    assert issues["--set model.layrs"].suggestion == "layers"
    assert "whole number" in issues["--set model.width"].message
    with pytest.raises(ConfigError, match="name=value"):
        loading.load_experiment(file(GOOD), ["model.layers"])


def test_a_variant_replaces_what_it_names_and_never_merges(file):
    text = GOOD.replace('position = "learned"', 'feedforward = { kind = "mlp", hidden = 100 }', 1).replace(
        'model.position = "alibi"\n', 'model.feedforward = { kind = "mlp", activation = "gelu" }\n'
    )
    experiment = loading.load_experiment(file(text))
    assert trial_settings.build_trial(experiment, "alibi", 0).model.feedforward.options == {"activation": "gelu"}
    assert trial_settings.diff_settings_from_baseline(experiment, "alibi") == {
        "model.feedforward": {"kind": "mlp", "activation": "gelu"}
    }


def test_what_a_variant_repeats_is_no_change(file):
    layers = loading.load_experiment(file(GOOD)).model.layers
    same = f'model.position = "alibi"\nmodel.layers = {layers}\n'
    experiment = loading.load_experiment(file(GOOD.replace('model.position = "alibi"\n', same)))
    assert experiment.variants["alibi"]["model"]["layers"] == layers
    assert trial_settings.diff_settings_from_baseline(experiment, "alibi") == {"model.position": "alibi"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("[variants.baseline]\nmodel.width = 3", "is reserved for the unchanged settings"),
        ("[variants.empty]", "has no settings"),
        ("[variants.odd]\nmodle.width = 3", "a variant changes settings of data, model or training"),
        ('[variants."a/b"]\nmodel.width = 3', "is used as a folder name"),
    ],
)
def test_a_variant_that_cannot_be_one_is_an_error(file, change, words):
    with pytest.raises(ConfigError, match=words):
        loading.load_experiment(file(GOOD + change))


def test_choices_need_validation_data(file):
    issues = find_issues(file(GOOD), "data.validation_fraction=0.0", "training.load_best_model_at_end=true")
    assert "needs validation data" in issues["--set training.load_best_model_at_end"].message


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"question = ", "TOML"), (b"question = '\xff'", "is not UTF-8")],
)
def test_a_file_that_is_no_toml_is_reported(tmp_path, content, words):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        loading.load_experiment(path)


def test_a_recipe_that_does_not_exist_gives_the_nearest(tmp_path):
    with pytest.raises(RequestError, match="did you mean 'speeches-decoder'"):
        loading.load_experiment("speeches-decoders")
    with pytest.raises(RequestError, match="no such file"):
        loading.load_experiment(tmp_path / "none.toml")


@pytest.mark.parametrize("name", recipe_catalog.list_recipes())
def test_every_recipe_loads_and_its_published_figures_belong_to_it(name):
    experiment = loading.load_experiment(name)
    for figure in experiment.published:
        assert figure.variant in (*experiment.names, *(["winner"] if experiment.search else []))
        assert figure.metric == experiment.primary.metric


def test_the_schema_accepts_recipes_and_rejects_what_loading_refuses():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with altair")
    schema = json.loads(json.dumps(build_full_json_schema()))
    validator = jsonschema.Draft202012Validator(schema)
    for name in recipe_catalog.list_recipes():
        raw = tomllib.loads(recipe_catalog.find_recipe(name).read_text())
        assert [e.message for e in validator.iter_errors(raw)] == []
    raw = tomllib.loads(GOOD)
    assert validator.is_valid(raw)
    raw["model"]["position"] = "alibbi"
    assert not validator.is_valid(raw)
    raw["model"] = {"widht": 3}
    assert not validator.is_valid(raw)


def test_identity_depends_on_what_numbers_depend_on(file):
    experiment = loading.load_experiment(file(GOOD))
    assert experiment.identity() == loading.load_experiment(file(GOOD), ["seeds=3", "question=Other?"]).identity()
    assert experiment.identity() != loading.load_experiment(file(GOOD), ["model.layers=3"]).identity()


def test_a_user_network_takes_the_place_of_the_parts(file, tmp_path):
    (tmp_path / "my_gpt.py").write_text("")
    text = GOOD + '\n[variants.mine]\nmodel.module = "my_gpt.py:GPT"\n'
    trial = trial_settings.build_trial(loading.load_experiment(file(text), ["model.context=16"]), "mine", 0)
    assert isinstance(trial.model, model.CustomModelConfig)
    assert trial.model.context == 16
    assert Path(trial.model.module.rpartition(":")[0]) == tmp_path / "my_gpt.py"


FULL = """
[full]
seeds = 20
model.layers = 12
[full.variants.alibi]
model.position = { kind = "alibi", slope = 1.0 }
"""


def test_the_full_setting_replaces_what_it_names_and_is_left_out_otherwise(file):
    path = file(GOOD + FULL)
    usual, full = loading.load_experiment(path), loading.load_experiment(path, use_full_setting=True)
    assert usual == loading.load_experiment(file(GOOD))
    assert (full.name, full.seeds, full.model.layers, full.model.width) == ("mine-full", 20, 12, 64)
    assert full.variants["alibi"] == {"model": {"position": {"kind": "alibi", "slope": 1.0}}}
    assert full.variants["both"] == usual.variants["both"]


def test_a_full_setting_is_held_against_the_same_rules_and_set_wins_over_it(file):
    with pytest.raises(ConfigError, match="layerz"):
        loading.load_experiment(file(GOOD + "[full]\nmodel.layerz = 3\n"), use_full_setting=True)
    assert loading.load_experiment(file(GOOD + FULL), ["seeds=2"], use_full_setting=True).seeds == 2


def test_a_file_without_a_full_setting_is_reported(file):
    with pytest.raises(RequestError, match=r"mine has no \[full\] table"):
        loading.load_experiment(file(GOOD), use_full_setting=True)


@pytest.mark.parametrize(
    ("old_text", "place", "new_key"),
    [
        ("training.batch = 4", "training.batch", "training.batch_size"),
        ("matters = 0.1", "matters", "equivalence_margin"),
        ('variants.x.training.distillation = { by = "texts" }', "variants.x.training.distillation.by", "targets"),
        ('claims = [{ source = "X", says = "so" }]', "claims.0.says", "claims.statement"),
        ('teacher = { model = "x", begin = 3 }', "teacher.begin", "teacher.prompt_tokens"),
        ('teacher = { model = "x", training = { clip = 1 } }', "teacher.training.clip", "training.max_grad_norm"),
        ('teacher = { model = "x", claims = [{ who = "x" }] }', "teacher.claims.0.who", "teacher.claims.model"),
    ],
)
def test_a_key_of_version_0_1_is_rejected_with_the_new_name(file, old_text, place, new_key):
    issues = find_issues(file(f'{old_text}\nquestion = "x"\ntask = "distil"\n'))
    message = next(issue.message for name, issue in issues.items() if name.partition(" ")[0] == place)
    assert message.startswith("was written for version 0.1; the key is now '") and message.endswith(f"{new_key}'")
