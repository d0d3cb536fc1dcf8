"""Every task is declared once, and its declaration matches its implementation."""

import re
from pathlib import Path
from typing import get_args

import headtohead
from headtohead.config.tasks import TASK_SPECS, TaskName
from headtohead.tasks.registry import TASKS

SOURCES = Path(headtohead.__file__).parent


def test_every_declared_task_has_an_object():
    assert set(get_args(TaskName)) == set(TASK_SPECS) == set(TASKS)
    for name, task in TASKS.items():
        assert task.spec is TASK_SPECS[name]
        assert task.label_description
        assert ("scored-causality" in task.spec.required_audits) is task.spec.target.is_causal


def test_no_module_outside_the_tasks_compares_a_task_name():
    names = "|".join(TASK_SPECS)
    pattern = re.compile(rf"(==|!=|\bin)\s*\(?\"({names})\"|\"({names})\"\s*(==|!=)")
    offenders = [
        f"{path.relative_to(SOURCES)}:{number}"
        for path in SOURCES.rglob("*.py")
        if path.parent.name != "tasks"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert offenders == []
