"""What the documents show works as shown."""

import re
import tomllib
from pathlib import Path

import headtohead as h2h
from headtohead.testing import check_part_file

ROOT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)


def test_the_part_of_the_guide_passes_the_exam(tmp_path):
    file = tmp_path / "my_parts.py"
    file.write_text(blocks("docs/how-to/parts.md", "python")[0].replace("sqrt-alibi", "sqrt-alibi-of-the-guide"))
    findings = check_part_file(file)
    assert findings
    assert [f"{f.name}: {f.observation}" for f in findings if not f.passed] == []


def test_the_experiment_of_the_readme_loads():
    raw = tomllib.loads(blocks("README.md", "toml")[0])
    assert h2h.experiment_from_dict(raw, "readme").names == ("baseline", "alibi", "window")


def test_the_python_of_the_readme_names_what_is_there():
    (code,) = blocks("README.md", "python")
    compile(code, "README.md", "exec")
    for name in re.findall(r"h2h\.(\w+)", code):
        assert name in h2h.__all__


def test_every_link_between_documents_leads_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_verb_of_the_readme_exists():
    from headtohead.cli.app import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    assert set(re.findall(r"h2h (\w+)", (ROOT / "README.md").read_text())) <= names
