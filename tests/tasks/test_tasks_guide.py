"""The experiments of docs/how-to/tasks.md load, and its tables name every task and audit."""

import re
import tomllib
from pathlib import Path

from headtohead.experiment import loading
from headtohead.tasks.registry import TASKS

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "tasks.md").read_text(encoding="utf-8")


def test_the_experiments_of_the_guide_load():
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    experiments = [loading.build_experiment(tomllib.loads(block), "guide") for block in blocks]
    assert [experiment.task for experiment in experiments] == ["masked-lm", "classify"]


def test_the_guide_names_every_task_with_its_required_audits():
    table = GUIDE.split("| task | required audits |")[1].split("\n\n")[0]
    listed = {}
    for line in table.splitlines()[2:]:
        tasks, audits = (re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|"))
        listed |= {name: tuple(audits) for name in tasks}
    assert listed == {name: task.spec.required_audits for name, task in TASKS.items()}
