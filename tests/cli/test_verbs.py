"""End-to-end tests of the commands."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headtohead.cli import app, recipes
from headtohead.cli.app import COMMANDS_BY_MODULE
from headtohead.cli.recipes import print_recipes
from headtohead.config.recipe_catalog import TOPICS, list_recipe_summaries, list_recipes
from headtohead.nn.parts import registry

from .test_bad_input import h2h, write_experiment  # noqa: F401


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_help_and_recipes_do_not_import_torch():
    code = """
import sys
sys.argv = {argv}
from headtohead import cli
try:
    cli.main()
except SystemExit:
    pass
print("torch" in sys.modules)
"""
    for argv in (["h2h", "--help"], ["h2h", "recipes"], ["h2h", "run", "--help"]):
        assert run_python(code.format(argv=argv)).endswith("False"), argv


def test_each_module_defines_the_commands_listed_for_it():
    modules = {path.stem for path in Path(recipes.__file__).parent.glob("*.py")}
    assert modules - {"__init__", "__main__", "app"} == set(COMMANDS_BY_MODULE)
    code = """
import json
from headtohead.cli.app import COMMANDS_BY_MODULE, LazyCommands
commands, registered = LazyCommands(), {}
for module, names in COMMANDS_BY_MODULE.items():
    known_names = set(commands.commands)
    commands[names[0]]  # in this order, no earlier module may have imported the module
    registered[module] = sorted(set(commands.commands) - known_names)
print(json.dumps(registered))
"""
    registered = json.loads(run_python(code))
    assert registered == {module: sorted(names) for module, names in COMMANDS_BY_MODULE.items()}


def test_an_unknown_command_gets_a_suggestion():
    result = CliRunner().invoke(app, ["recipe"])
    assert result.exit_code == 2
    assert "'recipes'" in result.output


def test_help_shows_every_command_in_full_at_80_columns():
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    names = list(get_command(app).commands)
    assert "run" in names
    assert "..." not in text.partition("Commands:")[2]
    assert all(f"\n  {name} " in text for name in names)
    for name in names:
        text = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "..." not in text.partition("Commands:")[2], name
        assert re.findall(r"^ +--\S+ <.*", text, flags=re.MULTILINE) == [], "options need a metavar"


def test_recipes_are_grouped_by_question_with_duration_and_corpus(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    summaries = list_recipe_summaries()
    assert sorted(summary.name for summary in summaries) == list_recipes()
    print_recipes(summaries)
    text = capsys.readouterr().out
    assert [text.index(topic) for topic in TOPICS] == sorted(text.index(topic) for topic in TOPICS)
    assert max(map(len, text.splitlines())) <= 80
    (window,) = (summary for summary in summaries if summary.name == "window")
    position = text.index("\n window ")
    assert text.index(window.topic) < position < text.index(TOPICS[2])
    assert "min, State of the Union" in text[position : position + 200]
    assert "the last 4, 8 or 16 tokens" in " ".join(text[position : position + 400].split())


def test_the_version_is_that_of_the_package():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"h2h {metadata.version('headtohead')}\n")


def test_help_answers_at_once():
    """Measured in CPU time, so that load from other processes has no effect."""
    code = "import sys; sys.argv = ['h2h', '--help']; from headtohead.cli import main; main()"
    assert min(_processor_seconds(code) for _ in range(3)) < 0.3


def _processor_seconds(code: str) -> float:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_a_run_from_end_to_end(h2h, write_experiment):  # noqa: F811
    file = write_experiment()
    code, out, err = h2h("run", file, "--seeds", "2", "--json", "--out", "here")
    assert code == 0, err
    content = json.loads(out)
    assert content["experiment"] == "mine"
    (variant,) = content["variants"]
    assert variant["name"] == "alibi"
    assert variant["seeds"] == 2
    assert variant["verdict"] == "too few seeds"
    assert len(variant["interval"]) == 2
    assert variant["metric"] == "perplexity"
    assert variant["audits"]
    assert content["report"].endswith(".html")
    code, out, _ = h2h("score", "here/alibi/seed-1", "word1 is test line 3 .", "--json")
    assert code == 0
    assert json.loads(out)[0]["perplexity"] > 1
    code, out, _ = h2h("score", "here/baseline/seed-0", "word1 is test line 3 .")
    assert "perplexity" in out
    code, _, err = h2h("predict", "here/baseline/seed-0", "word1")
    assert code == 2
    assert "does not predict classes" in err
    code, out, err = h2h("run", file, "--seeds", "3", "--out", "here", "--resume", "--json")
    assert json.loads(out)["variants"][0]["seeds"] == 3


def test_a_classifier_from_end_to_end(h2h, write_experiment):  # noqa: F811
    code, out, err = h2h("run", write_experiment("classify", "rows"), "--out", "here")
    assert code == 0, err
    assert "Accuracy with the final weights" in out
    code, out, _ = h2h("predict", "here/alibi/seed-0", "word3 is test line", "--json")
    (answer,) = json.loads(out)
    assert answer["label"] in ("a", "b")
    assert 0.5 <= answer["confidence"] <= 1


def test_a_plan_gives_sizes_and_time_and_writes_nothing(h2h, write_experiment, tmp_path):  # noqa: F811
    code, out, _ = h2h("plan", write_experiment(), "--json")
    assert code == 0
    baseline, alibi = json.loads(out)["plan"]
    assert baseline["parameters"] - alibi["parameters"] == 8 * 16  # the learned positions
    assert alibi["settings"] == {"model.position": "alibi"}
    assert baseline["seconds"] > 0
    assert not (tmp_path / "runs").exists()
    (detectable,) = json.loads(out)["detectable"]
    assert detectable["variant"] == "any variant"
    assert detectable["effects"]["3"] > detectable["effects"]["5"] > 0
    code, out, _ = h2h("plan", write_experiment())
    assert "estimated from a few" in out
    assert "Effects that are detected with a probability of 80 %" in out
    assert "The effects hold on this test set, not for new text." in " ".join(out.split())
    assert "run 3 seeds, then plan again" in " ".join(out.split())


def test_schema_and_parts_and_doctor_print_json(h2h):  # noqa: F811
    assert json.loads(h2h("schema")[1])["title"] == "Head to Head experiment"
    parts = json.loads(h2h("parts", "--json")[1])
    assert {"position", "pattern", "pool"} <= {row["slot"] for row in parts}
    assert json.loads(h2h("doctor", "--json")[1])["checks"]
    assert "bfloat16" in h2h("doctor")[1]


def test_parts_of_given_slots_are_listed(h2h, tmp_path):  # noqa: F811
    def list_slots(*arguments):
        return {row["slot"] for row in json.loads(h2h("parts", *arguments)[1])}

    assert list_slots("block", "--json") == list_slots("--json", "block") == {"block"}
    assert list_slots("norm", "block", "--json") == {"norm", "block"}
    out = h2h("parts", "norm")[1]
    assert " rms " in out and " alibi " not in out
    code, _, err = h2h("parts", "blok")
    assert code == 2 and "there is no slot 'blok'; did you mean 'block'? (slots: embedding, position" in err
    assert "did you mean 'check'?" in h2h("parts", "chek", tmp_path / "my_parts.py")[2]
    file = tmp_path / "my_parts.py"
    file.write_text(
        "from headtohead.parts import Pool, register_part\n"
        "@register_part('pool', 'of-a-plugin')\n"
        "class OfAPlugin(Pool):\n"
        "    pass\n"
    )
    for arguments in (("--plugin", file, "pool"), ("pool", "--plugin", file)):
        assert "of-a-plugin" in h2h("parts", *arguments)[1]


@pytest.mark.parametrize(
    "verb", [[], ["run"], ["plan"], ["parts"], ["recipes"], ["score"], ["predict"], ["doctor"], ["schema"]]
)
def test_every_command_has_help(h2h, verb):  # noqa: F811
    code, out, _ = h2h(*verb, "--help")
    assert code == 0
    assert "Usage" in out


def test_parts_check_examines_a_users_file(h2h, tmp_path):  # noqa: F811
    file = tmp_path / "my_parts.py"
    file.write_text(
        "from headtohead.parts import Position, register_part\n"
        "@register_part('position', 'sqrt-alibi-cli')\n"
        "class SqrtAlibi(Position):\n"
        "    '''Penalises distance by its square root.'''\n"
        "    def __init__(self, sizes, *, strength: float = 1.0):\n"
        "        super().__init__(sizes)\n"
        "        self.strength = strength\n"
        "    def compute_bias(self, query_at, key_at, context):\n"
        "        far = (query_at[..., :, None] - key_at[..., None, :]).abs()\n"
        "        shape = (*far.shape[:-2], self.sizes.heads, *far.shape[-2:])\n"
        "        return -self.strength * far.double().sqrt().float()[..., None, :, :].expand(shape)\n"
    )
    code, out, err = h2h("parts", "check", file)
    assert code == 0, out + err
    assert "passed" in out


def test_parts_check_states_a_failure_once_with_the_constructor_of_the_slot(h2h, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_plugin_files", dict(registry._plugin_files))
    file = tmp_path / "my_block.py"
    file.write_text(
        "from headtohead.parts import Block, register_part\n"
        "@register_part('block', 'short-constructor')\n"
        "class ShortConstructor(Block):\n"
        "    '''A constructor without the arguments of its slot.'''\n"
        "    def __init__(self, sizes):\n"
        "        super().__init__(sizes)\n"
    )
    code, out, _ = h2h("parts", "check", file)
    assert code == 1
    assert out.count("TypeError") == 1
    assert "parts in slot block are built with (sizes, build_norm, has_feedforward)" in out
    assert h2h("parts", "check", file, "--verbose")[1].count("short-constructor") == 2


def test_judge_gives_verdicts_words_and_a_picture_for_scores_from_elsewhere(h2h, tmp_path):  # noqa: F811
    file = tmp_path / "scores.csv"
    rows = [f"{name},{seed},{score + 0.01 * seed}" for name, score in (("old", 2.0), ("new", 1.5)) for seed in range(4)]
    file.write_text("variant,seed,score\n" + "\n".join(rows) + "\n")
    options = ("--metric", "loss", "--equivalence-margin", "0.1")
    code, out, _ = h2h("judge", file, *options, "--out", tmp_path / "forest.svg")
    assert code == 0
    assert "new: helped" in out
    assert "<svg" in (tmp_path / "forest.svg").read_text()
    (row,) = json.loads(h2h("judge", file, *options, "--json")[1])
    assert row["outcome"] == "helped"
    assert row["effect"] == pytest.approx(-0.5)
    code, _, err = h2h("judge", file)
    assert code == 2
    assert "metric" in err


CHEAT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, vocab_size, causal=True):
        super().__init__()
        self.embed, self.out, self.causal = nn.Embedding(vocab_size, 8), nn.Linear(8, vocab_size), causal

    def forward(self, ids):
        x = self.embed(ids)
        seen = x.cumsum(1) if self.causal else x.sum(1, keepdim=True).expand_as(x)
        return self.out(torch.tanh(seen))
"""


def test_audit_catches_a_custom_network_that_reads_the_future(h2h, tmp_path):  # noqa: F811
    (tmp_path / "net.py").write_text(CHEAT)
    code, out, _ = h2h("audit", "net.py:Net", "--vocab", "20", "--context", "8")
    assert code == 0, out
    code, out, _ = h2h("audit", "net.py:Net", "--vocab", "20", "--context", "8", "--option", "causal=false", "--json")
    assert code == 1
    (causality,) = (row for row in json.loads(out) if row["name"] == "causality")
    assert causality["passed"] is False
    assert causality["failure_reason"] == "reads the future"


def test_a_custom_network_is_compared_and_its_cheating_withholds_the_verdict(h2h, write_experiment, tmp_path):  # noqa: F811
    (tmp_path / "net.py").write_text(CHEAT)
    file = write_experiment()
    text = file.read_text().replace('[variants.alibi]\nmodel.position = "alibi"\n', "")
    module = '[variants.{0}]\nmodel.module = "net.py:Net"\nmodel.options = {{ causal = {1} }}\n'
    file.write_text(text + module.format("honest", "true") + module.format("cheat", "false"))
    code, out, err = h2h("run", file, "--out", "own", "--seeds", "2", "--json")
    assert code == 0, err
    words = {row["name"]: row["verdict"] for row in json.loads(out)["variants"]}
    assert words["cheat"] == "not comparable"
    assert words["honest"] != "not comparable"
    assert h2h("score", "own/honest/seed-0", "word1 is test line 3 .")[0] == 0
