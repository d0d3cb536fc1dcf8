"""`h2h push`: the model card contains the verdict of the experiment. Nothing is uploaded here."""

from pathlib import Path

import pytest

from headtohead.errors import ModelError, RequestError
from headtohead.exchange.export.hub import push_run
from headtohead.experiment.findings_view import read_findings
from headtohead.experiment.loading import load_experiment
from headtohead.runner import run_experiment

EXPERIMENT = """
question = "Does it help?"
task = "language-model"
seeds = 2
data = {{ source = "{source}" }}
model = {{ width = 16, layers = 1, context = 16 }}
training = {{ budget = "4 steps", batch_size = 4 }}

[variants]
alibi = {{ model.position = "alibi" }}
rope = {{ model.position = "rope" }}
"""


@pytest.mark.usefixtures("in_process_workers")
def test_the_model_card_contains_the_verdict(text_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(EXPERIMENT.format(source=text_folder))
    run_experiment.run_experiment(load_experiment(path), tmp_path / "runs")
    summaries = {verdict.variant: verdict.summary for verdict in read_findings(tmp_path / "runs").verdicts}
    for variant, expected in (("alibi", {"alibi"}), ("baseline", {"alibi", "rope"})):
        folder = tmp_path / variant
        assert push_run(tmp_path / "runs" / variant / "seed-0", "owner/name", folder=folder) == str(folder)
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert {name for name, summary in summaries.items() if summary in card} == expected
        assert f"Variant `{variant}` of the experiment" in card
    with pytest.raises(RequestError, match="owner/name"):
        push_run(tmp_path / "runs/alibi/seed-0", "name")
    with pytest.raises(ModelError, match="owner/name: cannot be uploaded"):
        push_run(tmp_path / "runs/alibi/seed-0", "owner/name")
