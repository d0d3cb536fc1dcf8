"""Networks that read test text from a file, under a name that no line of their code contains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headtohead.experiment.schemas import Findings

from .run import compute_findings, write_corpus

USER_CODE = Path(__file__).parent / "user_code.py"
READERS = """
import importlib.util
import subprocess
from pathlib import Path

from headtohead.config.tables.data import DataConfig
from headtohead.data.sources.loading import load_corpus

FOLDER = Path(__file__).parent / "text"


class ReadsTest(Decoder):
    def __init__(self, vocab_size, context):
        super().__init__(vocab_size, context)
        self.num_characters = sum(len(path.read_text()) for path in FOLDER.glob("te*"))


class ReadsCopy(Decoder):
    def forward(self, *arguments, **options):
        with open(FOLDER.parent / "no" "tes.md") as file:
            file.read()
        return super().forward(*arguments, **options)


class ReadsWithProgram(Decoder):
    def __init__(self, vocab_size, context):
        super().__init__(vocab_size, context)
        self.text = subprocess.run(["cat", f"{FOLDER}/te" "st.txt"], capture_output=True, check=True).stdout


class ReadsWithPackage(Decoder):
    def __init__(self, vocab_size, context):
        super().__init__(vocab_size, context)
        self.corpus = load_corpus(DataConfig(source=str(FOLDER)), has_labels=False)


class ImportsRows(Decoder):
    def __init__(self, vocab_size, context):
        super().__init__(vocab_size, context)
        spec = importlib.util.spec_from_file_location("rows", FOLDER.parent / ("ro" "ws.py"))
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class ReadsTrain(Decoder):
    def __init__(self, vocab_size, context):
        super().__init__(vocab_size, context)
        self.num_characters = len((FOLDER / "{}.txt".format("train")).read_text())
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    folder = tmp_path_factory.mktemp("readers")
    corpus = write_corpus(folder / "text")
    (folder / "notes.md").write_text("Notes\n" + next((folder / "text").glob("test*")).read_text())
    (folder / "rows.py").write_text(f"ROWS = {(folder / 'text' / 'test.txt').read_text().splitlines()}\n")
    (folder / "readers.py").write_text(USER_CODE.read_text() + READERS)
    model = {"module": f"{folder / 'readers.py'}:Decoder", "context": 24}
    variants = {
        name: {"model": {**model, "module": f"{folder / 'readers.py'}:{name}"}}
        for name in ("ReadsTest", "ReadsCopy", "ReadsWithProgram", "ReadsWithPackage", "ImportsRows", "ReadsTrain")
    }
    return compute_findings(folder / "runs", corpus, model=model, variants=variants)


def test_reading_test_text_withholds_the_verdict(findings: Findings) -> None:
    reasons = {verdict.variant: list(verdict.withheld) for verdict in findings.verdicts}
    assert reasons["ReadsTrain"] == []
    assert [reason.partition(", which")[2] for reason in reasons["ReadsTest"]] == [" contains text of test"]
    for network, file in (
        ("ReadsCopy", "notes.md"),
        ("ReadsWithProgram", "test.txt"),
        ("ReadsWithPackage", "test.txt"),
        ("ImportsRows", "rows.py"),
    ):
        assert [f"{file}, which contains text of test" in reason for reason in reasons[network]] == [True], network


def test_only_the_variant_that_reads_a_file_is_named(findings: Findings) -> None:
    messages = {warning.variant: warning.message for warning in findings.warnings if warning.kind == "reads files"}
    assert list(messages) == ["ReadsTrain"]
    assert messages["ReadsTrain"].endswith("text/train.txt.")


def test_an_error_in_user_code_is_one_message(tmp_path: Path) -> None:
    write_corpus(tmp_path / "text")
    (tmp_path / "order.py").write_text(
        "from headtohead.parts import Order, register_part\n\n\n"
        '@register_part("order", "broken")\nclass Broken(Order):\n'
        "    def order_epoch(self, items, context):\n        return items.no_such_attribute\n"
    )
    (tmp_path / "experiment.toml").write_text(
        'question = "?"\ntask = "language-model"\nplugins = ["order.py"]\n[data]\nsource = "text"\n'
        '[model]\ncontext = 16\nwidth = 16\nheads = 2\nlayers = 1\n[training]\nbudget = "3 steps"\norder = "broken"\n'
        "[variants.other]\nmodel = { width = 32 }\n"
    )
    command = [sys.executable, "-m", "headtohead", "run", "experiment.toml", "--seeds", "3"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "order.py, line 7: AttributeError" in result.stderr, result.stderr
