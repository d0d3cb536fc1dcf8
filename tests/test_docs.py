"""Commands and code blocks of the documentation work as shown."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import headtohead as h2h
from headtohead import parts
from headtohead.cli import app
from headtohead.nn.parts import registry
from headtohead.nn.parts.registry import SLOTS
from headtohead.testing import check_part_file
from tools import reference, slot_pictures

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if "```" in path.read_text(encoding="utf-8")
)


def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of a document in a language, dedented."""
    text = (ROOT / document).read_text(encoding="utf-8")
    fences = re.findall(r"^( *)```([^\n]*)\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, name, body in fences if name == language]


def commands(document: str) -> list[list[str]]:
    """Return the arguments of every `h2h` command in the shell blocks of a document."""
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
    slots = {result.part.split()[0] for result in results}
    assert slots == {"position", "projection", "attention", "merge", "block", "optimizer"}
    assert [f"{result.name}: {result.observation}" for result in results if not result.passed] == []


@pytest.mark.parametrize("slot", SLOTS)
def test_every_slot_has_a_page_with_its_picture(slot):
    picture = ROOT / "docs" / "pictures" / "slots" / f"{slot}.svg"
    assert picture.read_text(encoding="utf-8") == slot_pictures.draw_slot_picture(slot), (
        "run python -m tools.slot_pictures"
    )
    page = reference.expand_placeholders((ROOT / "docs" / "reference" / "slots" / f"{slot}.md").read_text())
    assert f"pictures/slots/{slot}.svg" in page and f"slots/{slot}\n" in (ROOT / "docs/reference/parts.md").read_text()
    names = set(re.findall(r"autoclass:: headtohead\.parts\.(\w+)", page))
    assert names and names <= set(parts.__all__)
    assert ("TwoNormBlock" in names) == (slot == "block")
    for name in registry.list_part_names(slot):
        assert f"`{name}`" in page


def test_the_experiment_of_the_readme_loads():
    raw = tomllib.loads(blocks("README.md", "toml")[0])
    assert h2h.experiment_from_dict(raw, "readme").names == ("baseline", "alibi", "window")


@pytest.mark.parametrize("name", ["positions", "idea"])
def test_the_experiments_of_the_tutorial_load(name):
    experiment = h2h.load_experiment(ROOT / "docs" / "tutorial" / "files" / f"{name}.toml")
    assert len(experiment.names) == 2


def test_the_part_of_the_tutorial_passes_as_many_checks_as_its_text_says():
    results = check_part_file(ROOT / "docs" / "tutorial" / "files" / "my_parts.py")
    output = blocks("docs/tutorial/your-idea.md", "text")[0]
    assert f"{len(results)} checks passed, 0 failed" in output and all(result.passed for result in results)


def test_every_link_between_documents_leads_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_that_the_text_of_a_document_names_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert set(re.findall(r"`h2h (\w+)", text)) <= set(get_command(app).commands)


def test_the_architecture_page_names_existing_files_and_every_package():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src/headtohead"
    names = [name for name in re.findall(r"`([^`\s]+)`", text) if re.fullmatch(r"[\w./]+/[\w./]+|\w+\.py", name)]
    missing = [
        name
        for name in names
        if not name.startswith("/") and not any((folder / name).exists() for folder in (package, package.parent, ROOT))
    ]
    assert missing == []
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## Packages")[2].partition("## ")[0], flags=re.MULTILINE)
    described = {name.partition("/")[0] for row in rows for name in re.findall(r"`([\w/]+)`", row)}
    existing = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert existing - described <= {"__init__", "__main__", "testing"}
    assert described <= existing
