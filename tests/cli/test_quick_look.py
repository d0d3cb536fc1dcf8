"""`h2h run --quick` samples rows evenly, gives no verdict, and is labelled as quick in every output."""

import json
import re
from pathlib import Path

import pytest

from headtohead import report
from headtohead.experiment.run_folder import open_experiment_runs

from .test_bad_input import h2h, write_experiment  # noqa: F401

pytestmark = pytest.mark.usefixtures("in_process_workers")

VERDICT_WORDS = re.compile(r"\b(helped|hurt|cannot tell|no practical difference)\b")


@pytest.fixture
def sorted_rows(tmp_path: Path, write_experiment) -> Path:  # noqa: F811
    """Write a file whose test rows are sorted by class, as in many published corpora: the first 100 rows have one
    class.
    """
    file = write_experiment("classify", "sorted")
    folder = tmp_path / "sorted"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [f"{'ab'[i // 150]}\tword{i} is {split} line" for i in range(300)]
        (folder / f"{split}.tsv").write_text("label\ttext\n" + "\n".join(rows), encoding="utf-8")
    return file


def test_a_quick_look_has_every_class_and_no_verdict_word_anywhere(h2h, sorted_rows):  # noqa: F811
    code, out, err = h2h("run", sorted_rows, "--quick", "--out", "look")
    assert code == 0, err
    assert "Quick look, not judged: at most 10,000 training, 100 validation" in " ".join(out.split())
    assert not VERDICT_WORDS.search(out)
    runs = open_experiment_runs(Path("look"))
    assert runs.corpus.splits["test"].rows == 100
    result = json.loads(Path("look/findings.json").read_text(encoding="utf-8"))
    assert [verdict["outcome"] for verdict in result["verdicts"]] == ["quick look"]
    assert [sum(row) for row in result["confusion"]["matrices"]["baseline"]] == [50, 50]  # 1 seed, both classes
    report.write(Path("look"), ["html", "md"])
    for path in (Path("look/report.html"), Path("look/report.md")):
        text = path.read_text(encoding="utf-8")
        page = re.sub(r"<style>.*?</style>|<script.*?</script>", "", text, flags=re.DOTALL)
        assert "Quick look:" in page and "different data" not in page
        assert not VERDICT_WORDS.search(page), VERDICT_WORDS.search(page)
    code, out, _ = h2h("run", sorted_rows, "--quick", "--out", "look", "--resume", "--json")
    answer = json.loads(out)
    assert answer["quick"] is True and answer["left_out"]
    assert answer["variants"][0]["verdict"] == "quick look"


def test_a_variant_can_be_chosen_on_the_command_line(h2h, write_experiment):  # noqa: F811
    file = write_experiment()
    file.write_text(file.read_text() + '[variants.rope]\nmodel.position = "rope"\n', encoding="utf-8")
    code, out, err = h2h("run", file, "--only", "rope", "--json", "--out", "here")
    assert code == 0, err
    assert [variant["name"] for variant in json.loads(out)["variants"]] == ["rope"]
    code, out, err = h2h("run", file, "--resume", "--json", "--out", "here")  # the rest, in the same folder
    assert code == 0, err
    assert [variant["name"] for variant in json.loads(out)["variants"]] == ["alibi", "rope"]
    code, _, err = h2h("run", file, "--only", "rop")
    assert code == 2 and "did you mean 'rope'?" in err
