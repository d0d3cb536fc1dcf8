"""`h2h judge`: score files, with every error of a file reported at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headtohead.cli import app
from headtohead.errors import ScoresError
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.external_scores.csv_reader import read_csv
from headtohead.verdict.external_scores.judge_csv import judge_csv
from headtohead.verdict.interim import InterimAnalysis, parse_interim_analysis
from headtohead.verdict.scores import Scores


def write_score_file(folder: Path, text: str) -> Path:
    path = folder / "scores.csv"
    path.write_text(text, encoding="utf-8")
    return path


def join_lines(header: str, *lines: str) -> str:
    return "\n".join([header, *lines]) + "\n"


def test_a_score_per_seed_gives_the_verdict_of_compare(tmp_path: Path) -> None:
    before, after = [174.2, 178.4, 171.0], [160.1, 166.0, 158.2]
    lines = [f"{name},{seed},{x}" for name, xs in (("plain", before), ("alibi", after)) for seed, x in enumerate(xs)]
    path = write_score_file(tmp_path, join_lines("variant,seed,perplexity", *lines))
    verdict = judge_csv(path)[0]

    def own(xs: list[float]) -> Scores:
        return Scores((0, 1, 2), np.log(xs)[:, None], np.ones(1))

    assert (
        verdict == compare_scores(own(before), {"alibi": own(after)}, metric="perplexity", equivalence_margin=0.01)[0]
    )
    assert verdict.outcome == "helped"
    assert verdict.baseline_mean == pytest.approx(np.exp(np.log(before).mean()))


def test_earlier_analyses_and_other_comparisons_are_charged(tmp_path: Path) -> None:
    lines = [f"{name},{seed},{x}" for name, x in (("a", 1.0), ("b", 0.9)) for seed in range(5)]
    path = write_score_file(tmp_path, join_lines("variant,seed,loss", *lines))

    def read_confidence(*options: str) -> float:
        result = CliRunner().invoke(app, ["judge", str(path), "--equivalence-margin", "0.01", "--json", *options])
        assert result.exit_code == 0, result.output
        return float(json.loads(result.stdout)[0]["adjusted_confidence"])

    assert read_confidence() == pytest.approx(1 - 0.05 * 3 / 5)
    later = 0.85 * 0.05 * (3 / 5 - 1 / 3)
    assert read_confidence("--interim-analysis", "3") == pytest.approx(1 - later)
    assert read_confidence("--interim-analysis", "3", "--num-comparisons", "4") == pytest.approx(1 - later / 4)
    assert read_confidence("--interim-analysis", "5") == read_confidence()
    with pytest.raises(ScoresError, match="earlier analysis '5x3'; allowed: SEEDS or SEEDS:DOCUMENTS"):
        parse_interim_analysis("5x3")
    assert parse_interim_analysis("5:30") == InterimAnalysis(5, num_documents=30)


def test_examples_and_weights_are_read(tmp_path: Path) -> None:
    lines = ["a,1,x,2.0,10", "a,1,y,3.0,5", "a,2,y,4.0,5", "a,2,x,5.0,10", "b,2,x,1,10", "b,2,y,1,5"]
    table = read_csv(write_score_file(tmp_path, join_lines("variant,seed,example,loss,weight", *lines)))
    assert (table.baseline, table.metric) == ("a", "loss")
    assert table.scores["a"].seeds == (1, 2)
    assert table.scores["a"].values.tolist() == [[20, 15], [50, 20]]
    assert table.scores["a"].weights.tolist() == [10, 5]


def test_totals_are_not_multiplied_by_their_tokens(tmp_path: Path) -> None:
    lines = ["a,1,x,20,10", "a,1,y,15,5", "b,1,x,20,10", "b,1,y,15,5"]
    table = read_csv(write_score_file(tmp_path, join_lines("variant,seed,example,total,weight", *lines)))
    assert table.metric == "perplexity"
    assert table.scores["a"].values.tolist() == [[20, 15]]


def test_the_variant_called_baseline_is_it(tmp_path: Path) -> None:
    path = write_score_file(tmp_path, join_lines("variant,seed,score", "x,1,1", "baseline,1,2"))
    assert read_csv(path).baseline == "baseline"


@pytest.mark.parametrize(
    "text", ["variant;seed;loss\na;1;2\n", "\ufeffVariant,Seed, Loss\r\na,1,2\r\n\r\n", "variant\tseed\tloss\na\t1\t2"]
)
def test_spreadsheets_write_csv_in_many_ways(tmp_path: Path, text: str) -> None:
    table = read_csv(write_score_file(tmp_path, text))
    assert table.scores["a"].values.tolist() == [[2]]


def test_right_and_wrong_answers_are_accuracy(tmp_path: Path) -> None:
    lines = [f"{v},{s},{e},{(s + e) % 2}" for v in "ab" for s in range(3) for e in range(4)]
    path = write_score_file(tmp_path, join_lines("variant,seed,example,score", *lines))
    assert read_csv(path).metric == "accuracy"
    assert judge_csv(path)[0].metric == "accuracy"


def test_what_cannot_be_seen_from_the_file_is_asked_for(tmp_path: Path) -> None:
    path = write_score_file(tmp_path, join_lines("variant,seed,score", "a,1,170", "a,2,171", "b,1,160", "b,2,162"))
    with pytest.raises(ScoresError, match="set metric to perplexity, accuracy, loss"):
        judge_csv(path)
    with pytest.raises(ScoresError, match="metric loss has no default equivalence margin"):
        judge_csv(path, metric="loss")
    assert judge_csv(path, metric="perplexity")[0].is_better
    assert not judge_csv(path, metric="score", equivalence_margin=1.0)[0].is_better


def test_another_baseline_can_be_named(tmp_path: Path) -> None:
    path = write_score_file(tmp_path, join_lines("variant,seed,loss", "alpha,1,1", "alpha,2,2", "beta,1,3", "beta,2,4"))
    assert [v.variant for v in judge_csv(path, baseline_name="beta", equivalence_margin=0.1)] == ["alpha"]
    with pytest.raises(ScoresError, match=r"no variant 'betta'; variants: alpha, beta; did you mean 'beta'"):
        judge_csv(path, baseline_name="betta", equivalence_margin=0.1)


def test_one_variant_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match="only 'a' has scores; a comparison needs two"):
        judge_csv(write_score_file(tmp_path, join_lines("variant,seed,loss", "a,1,1")), equivalence_margin=0.1)


def test_every_error_of_a_file_is_reported_together_with_its_line(tmp_path: Path) -> None:
    path = write_score_file(
        tmp_path,
        join_lines(
            "variant,seed,example,score,weight",
            "a,1,x,1,10",
            "a,1,y,one,10",
            "a,1.5,x,1,10",
            "a,2,x,1,10",
            ",2,y,nan,0",
            "a,2,x,0,10",
            "b,1,x,1,11",
            "b,1,y,1",
            "b,3,y,1,10",
        ),
    )
    with pytest.raises(ScoresError, match="9 errors") as caught:
        read_csv(path)
    assert str(caught.value).splitlines()[1:] == [
        "  line 3: score 'one' is not a number",
        "  line 4: seed '1.5' is not an integer",
        "  line 6: the variant is empty",
        "  line 6: weight '0' is not a positive number",
        "  line 9: 4 cells, but 5 columns",
        "  line 7: duplicate of line 5: a, seed 2, example x",
        "  line 8: example x has weight 11, but 10 at line 2",
        "  line 7: a, seed 2 lacks 1 examples: y",
        "  line 10: b, seed 3 lacks 1 examples: x",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty; the first line must name the columns variant, seed, score"),
        ("variant,seed,score\n", "the file has no scores"),
        (
            "varient,sed\n",
            r"missing column 'variant'; did you mean 'varient'\?\n.*'seed'; did you mean 'sed'\?\n.*'score'",
        ),
        (
            "variant,seed,scores\na,1,2\n",
            r"missing column 'score'; did you mean 'scores'\? \(allowed names: score, accuracy",
        ),
        ("variant,seed,loss,accuracy\na,1,2,1\n", "several score columns: accuracy, loss"),
        ("variant,seed,seed,loss\na,1,1,2\n", "duplicate column 'seed'"),
        ("variant,seed,accuracy\na,1,85.9\n", "line 2: accuracy must be between 0 and 1, got 85.9"),
        ("variant,seed,perplexity\na,1,0\n", "line 2: perplexity must be at least 1, got 0"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ScoresError, match=words):
        read_csv(write_score_file(tmp_path, text))


def test_a_column_cannot_be_judged_as_something_else(tmp_path: Path) -> None:
    path = write_score_file(tmp_path, join_lines("variant,seed,accuracy", "a,1,0.5"))
    with pytest.raises(ScoresError, match="column 'accuracy' does not hold the metric loss"):
        read_csv(path, metric="loss")


def test_an_unknown_metric_is_rejected_before_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match=r"unknown metric 'acuracy'; .*did you mean 'accuracy'"):
        judge_csv(tmp_path / "none.csv", metric="acuracy")


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match="no such file"):
        read_csv(tmp_path / "none.csv")


def test_a_long_list_of_errors_is_cut(tmp_path: Path) -> None:
    with pytest.raises(ScoresError, match="and 30 more"):
        read_csv(write_score_file(tmp_path, join_lines("variant,seed,loss", *["a,1,x"] * 50)))
