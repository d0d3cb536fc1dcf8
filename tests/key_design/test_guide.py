"""The examples and statements of docs/how-to/design-by-hand.md are correct."""

import re
from pathlib import Path

from headtohead.cli.design import design_app

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "design-by-hand.md").read_text(encoding="utf-8")


def test_example_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert len(examples) == 1
    for example in examples:
        exec(compile(example, "docs/how-to/design-by-hand.md", "exec"), {})
    assert "Key 3 is not a vertex of the convex hull: it equals" in capsys.readouterr().out
    assert (tmp_path / "edge.svg").exists()


def test_guide_documents_every_command():
    command_names = {command.name or command.callback.__name__ for command in design_app.registered_commands}
    assert set(re.findall(r"h2h design ([a-z-]+) ", GUIDE)) == command_names
