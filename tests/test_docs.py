"""What the documents show works as shown."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import headtohead as h2h
from headtohead.cli import app
from headtohead.testing import check_part_file

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if "```" in path.read_text(encoding="utf-8")
)


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a document in a language, without their indentation."""
    text = (ROOT / document).read_text(encoding="utf-8")
    fences = re.findall(r"^( *)```([^\n]*)\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, name, body in fences if name == language]


def commands(document: str) -> list[list[str]]:
    """The arguments of every `h2h` command in the shell blocks of a document."""
    lines = "\n".join(blocks(document, "")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("h2h ")]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_of_a_document_has_the_options_that_it_is_given(document):
    for arguments in commands(document):
        command = get_command(app)
        while hasattr(command, "commands"):
            assert arguments[0] in command.commands, f"{document}: h2h {shlex.join(arguments)}"
            command, arguments = command.commands[arguments[0]], arguments[1:]
        with command.context_class(command) as context:
            command.make_parser(context).parse_args(list(arguments))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_python_block_compiles_and_uses_public_names(document):
    for code in blocks(document, "python"):
        compile(code, document, "exec")
        assert set(re.findall(r"\bh2h\.(\w+)", code)) <= set(h2h.__all__)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_toml_block_is_valid(document):
    for text in blocks(document, "toml"):
        tomllib.loads(text)


def test_the_parts_of_the_guide_pass_the_conformance_suite(tmp_path):
    code = "\n\n".join(block for block in blocks("docs/how-to/parts.md", "python") if "register_part" in block)
    file = tmp_path / "my_parts.py"
    file.write_text(re.sub(r'@register_part\("(\w+)", "([\w-]+)"\)', r'@register_part("\1", "\2-of-the-guide")', code))
    results = check_part_file(file)
    assert {result.part.split()[0] for result in results} == {"position", "merge", "block"}
    assert [f"{result.name}: {result.observation}" for result in results if not result.passed] == []


def test_the_experiment_of_the_readme_loads():
    raw = tomllib.loads(blocks("README.md", "toml")[0])
    assert h2h.experiment_from_dict(raw, "readme").names == ("baseline", "alibi", "window")


@pytest.mark.parametrize("name", ["positions", "idea"])
def test_the_experiments_of_the_tutorial_load(name):
    experiment = h2h.load_experiment(ROOT / "docs" / "tutorial" / "files" / f"{name}.toml")
    assert len(experiment.names) == 2


def test_every_link_between_documents_leads_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_that_the_text_of_a_document_names_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert set(re.findall(r"`h2h (\w+)", text)) <= set(get_command(app).commands)
