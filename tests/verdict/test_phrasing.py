"""The sentences of verdicts, word by word, for verdicts with given figures."""

from __future__ import annotations

import math
import shlex
import subprocess

import pytest

from headtohead.presentation.command_line import build_command_with_more_seeds, wrap_command
from headtohead.verdict import phrasing
from headtohead.verdict.additional_data import AdditionalData
from headtohead.verdict.metric import METRICS
from headtohead.verdict.record import Verdict

OPEN = "cannot tell"


def make_verdict(outcome: str = "helped", metric: str = "loss", **figures: object) -> Verdict:
    defaults: dict[str, object] = {
        "variant": "x",
        "outcome": outcome,
        "metric": metric,
        "equivalence_margin": 0.01,
        "baseline_mean": 1.0,
        "variant_mean": 0.9,
        "effect": -0.1,
        "is_better": True,
        "interval": (-0.15, -0.05),
        "seed_interval": (-0.12, -0.08),
        "equivalence_interval": (-0.14, -0.06),
        "confidence": 0.95,
        "adjusted_confidence": 0.97,
        "seeds": 5,
        "examples": 300,
        "documents": 30,
        "dominant_noise_source": "seeds",
        "min_detectable_effect": 0.02,
        "additional_seeds": None,
        "additional_documents": None,
        "summary": "",
        "runs": 5,
        "baseline_runs": 5,
        "max_failure_rate": 0.45,
    }
    return Verdict(**(defaults | figures))  # type: ignore[arg-type]


def summarize(verdict: Verdict, data: AdditionalData = AdditionalData(), unused: tuple[int, ...] = ()) -> str:  # noqa: B008
    return phrasing.format_summary(verdict, data, unused)


NO_FAILURE = "No run failed; with 5 runs, failure rates up to 45 % cannot be excluded."
FEW_DOCUMENTS = (
    "With {} documents, the interval is too narrow if the difference is far larger for a few documents than for the "
    "others."
)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (
            make_verdict(),
            "x helped: loss 0.100 lower (97 % confidence interval 0.050 to 0.150 lower; 5 seeds, 30 documents).",
        ),
        (
            make_verdict(documents=11),
            "x helped: loss 0.100 lower (97 % confidence interval 0.050 to 0.150 lower; 5 seeds, 11 documents).",
        ),
        (
            make_verdict("hurt", effect=0.1, interval=(0.05, 0.15), documents=300, comparisons=2),
            (
                "x hurt: loss 0.100 higher (97 % confidence interval 0.050 to 0.150 higher; 5 seeds, 300 examples, one "
                "of 2 "
                "comparisons with 95 % joint confidence)."
            ),
        ),
        (
            make_verdict("no practical difference", effect=0.0, interval=(0.0, 0.0), equivalence_interval=(0.0, 0.0)),
            (
                "x makes no practical difference: its scores are identical to those of the baseline (5 seeds, 30 "
                "documents)."
            ),
        ),
        (
            make_verdict(
                "no practical difference", effect=0.001, interval=(0.0, 0.003), equivalence_interval=(-0.002, 0.004)
            ),
            (
                "x makes no practical difference: loss 0.0010 higher (94 % equivalence interval runs from 0.0020 "
                "lower to "
                "0.0040 higher, inside ±0.01; 5 seeds, 30 documents)."
            ),
        ),
        (
            make_verdict(OPEN, effect=0.02, interval=(-0.01, 0.05), equivalence_interval=(0.0, 0.04)),
            (
                "x: cannot tell. Loss 0.020 higher, but the 97 % confidence interval runs from 0.010 lower to 0.050 "
                "higher "
                "(5 seeds, 30 documents). Not even 1,000 seeds would settle it with a probability of 80 %."
            ),
        ),
        (
            make_verdict(documents=4),
            (
                "x helped: on these 4 documents, loss 0.100 lower (97 % confidence interval 0.080 to 0.120 lower; 5 "
                "seeds). "
                "For new text the interval is 0.050 to 0.150 lower."
            ),
        ),
        (
            make_verdict(
                "no practical difference",
                documents=2,
                comparisons=3,
                effect=0.001,
                interval=(-0.002, 0.004),
                seed_interval=(-0.001, 0.003),
                equivalence_interval=(-0.001, 0.003),
            ),
            (
                "x makes no practical difference: on these 2 documents, loss 0.0010 higher (97 % confidence interval "
                "runs "
                "from 0.0010 lower to 0.0030 higher; 5 seeds, one of 3 comparisons with 95 % joint confidence). For "
                "new "
                "text: 94 % equivalence interval runs from 0.0010 lower to 0.0030 higher, inside ±0.01."
            ),
        ),
        (
            make_verdict(OPEN, documents=2, interval=(-0.3, 0.1), equivalence_interval=(-0.2, 0.0)),
            (
                "x: on these 2 documents, loss 0.100 lower (97 % confidence interval 0.080 to 0.120 lower; 5 seeds). "
                "For "
                "new "
                "text the interval runs from 0.30 lower to 0.10 higher: cannot tell. Not even 1,000 seeds would "
                "settle it "
                "with a probability of 80 %."
            ),
        ),
        (
            make_verdict(metric="perplexity", effect=-0.0312, interval=(-0.0398, -0.0225)),
            "x helped: perplexity 3.12 % lower (97 % confidence interval 2.25 to 3.98 % lower; 5 seeds, 30 documents).",
        ),
        (
            make_verdict(metric="accuracy", effect=0.01, interval=(0.0, 0.02), adjusted_confidence=0.9975),
            (
                "x helped: accuracy 1.0 points higher (99.75 % confidence interval 0.0 to 2.0 points higher; 5 "
                "seeds, 30 "
                "documents)."
            ),
        ),
    ],
)
def test_sentences_on_an_interval(verdict: Verdict, expected: str) -> None:
    assert summarize(verdict) == f"{expected} {NO_FAILURE}"


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (
            {"examples": 1, "documents": 1},
            "Only one score per seed is known, so this holds for this test set, not for new text like it.",
        ),
        ({"documents": 1}, "All examples are from one document, so this holds for this document, not for new text."),
        ({"documents": 5}, FEW_DOCUMENTS.format(5)),
        ({"documents": 10}, FEW_DOCUMENTS.format(10)),
        (
            {"is_paired": False},
            "Baseline and variant were run with different seeds, so they are compared without pairing.",
        ),
    ],
)
def test_caveats(figures: dict[str, object], sentence: str) -> None:
    documents = figures.get("documents", 30)
    data = "; 5 seeds)." if documents == 1 else f"; 5 seeds, {documents} documents)."
    assert summarize(make_verdict(**figures)) == (
        f"x helped: loss 0.100 lower (97 % confidence interval 0.050 to 0.150 lower{data} {NO_FAILURE} {sentence}"
    )


def test_unused_seeds_are_reported() -> None:
    assert summarize(make_verdict(), unused=(7,)).endswith(f"{NO_FAILURE} Seed 7 is not scored for both and not used.")
    assert summarize(make_verdict(), unused=(7, 9)).endswith(" Seeds 7, 9 are not scored for both and not used.")
    text = summarize(make_verdict(documents=1, is_paired=False), unused=(7,))
    assert text.endswith(
        "not for new text. Baseline and variant were run with different seeds, so they are compared "
        "without pairing. Seed 7 is not scored for both and not used."
    )


def test_lost_runs_are_counted() -> None:
    lost = {"lost_runs": 1, "runs": 6, "max_failure_rate": 0.582}
    rates = (
        "1 of 6 runs of the variant and 0 of 5 of the baseline diverged or learned nothing (Fisher's exact test: p = "
        "1); "
        "failure rates up to 58 % cannot be excluded."
    )
    assert summarize(make_verdict(**lost)).endswith(f"30 documents). {rates}")
    open_verdict = make_verdict(OPEN, comparisons=2, **lost)
    assert summarize(open_verdict) == (
        "x: cannot tell. In the runs that finished, loss is 0.100 lower (97 % confidence interval 0.050 to 0.150 "
        "lower; 5 "
        "seeds, one of 2 comparisons with 95 % joint confidence), but the two sides lost different numbers of runs, "
        "which "
        f"the interval does not count. {rates}"
    )
    assert phrasing.explain_lost_runs(open_verdict) == "1 of 6 runs were lost (baseline: 0 of 5)"
    only_baseline = summarize(make_verdict(baseline_lost_runs=2))
    assert "0 of 5 runs of the variant and 2 of 5 of the baseline diverged or learned nothing" in only_baseline


@pytest.mark.parametrize(
    ("figures", "is_excess"),
    [
        ({"interval": (0.0, 0.1), "equivalence_interval": (0.0, 0.1)}, False),
        ({"interval": (0.001, 0.1), "equivalence_interval": (0.02, 0.1)}, True),
        ({"interval": (-0.1, 0.0), "equivalence_interval": (-0.1, 0.0)}, False),
        ({"interval": (-0.1, -0.001), "equivalence_interval": (-0.1, 0.0)}, True),
        ({"interval": (-0.02, 0.02), "equivalence_interval": (-0.01, 0.01)}, True),
        ({"interval": (-0.02, 0.02), "equivalence_interval": (-0.0101, 0.01)}, False),
        ({"interval": (-0.02, 0.02), "equivalence_interval": (-0.01, 0.0101)}, False),
    ],
)
def test_lost_runs_are_the_reason_only_if_the_interval_would_settle_it(
    figures: dict[str, object], is_excess: bool
) -> None:
    verdict = make_verdict(OPEN, lost_runs=1, **figures)
    assert ("In the runs that finished" in summarize(verdict)) == is_excess
    equal = make_verdict(OPEN, lost_runs=1, baseline_lost_runs=1, **figures)
    assert "In the runs that finished" not in summarize(equal)
    assert "In the runs that finished" not in summarize(make_verdict("hurt", lost_runs=1, **figures))


@pytest.mark.parametrize(
    ("data", "noise", "sentence", "remedy"),
    [
        (AdditionalData(seeds=1), "seeds", "About 1 more seed would settle it", "run 1 more seed"),
        (AdditionalData(seeds=1200), "seeds", "About 1,200 more seeds would settle it", "run 1,200 more seeds"),
        (
            AdditionalData(documents=7),
            "documents",
            (
                "Most of the noise is from differences between documents, so more seeds alone would not help; about "
                "7 more "
                "documents would settle it"
            ),
            "score 7 more documents",
        ),
        (
            AdditionalData(documents=1),
            "seeds",
            "More seeds alone would not help; about 1 more document would settle it",
            "score 1 more document",
        ),
        (
            AdditionalData(seeds=3, documents=7),
            "seeds",
            "About 3 more seeds, or about 7 more documents, would settle it",
            "run 3 more seeds or score 7 more documents",
        ),
        (
            AdditionalData(seeds=3, documents=7, is_either_sufficient=False),
            "seeds",
            "About 3 more seeds together with about 7 more documents would settle it",
            "run 3 more seeds and score 7 more documents",
        ),
        (AdditionalData(), "seeds", "Not even 1,000 seeds would settle it", ""),
    ],
)
def test_what_would_settle_an_open_verdict(data: AdditionalData, noise: str, sentence: str, remedy: str) -> None:
    verdict = make_verdict(OPEN, dominant_noise_source=noise)
    assert f"30 documents). {sentence} with a probability of 80 %. No run failed" in summarize(verdict, data)
    assert phrasing.format_remedy(verdict, data) == remedy
    assert "would settle" not in summarize(make_verdict("hurt"), data)
    examples = make_verdict(OPEN, dominant_noise_source=noise, documents=300)
    assert summarize(examples, data) == summarize(verdict, data).replace("document", "example").replace(
        "30 examples", "300 examples"
    )


def test_confidence_levels_have_two_digits_of_their_error_rate() -> None:
    levels = {0.95: "95 %", 0.975: "97.5 %", 0.9975: "99.75 %", 0.98333: "98.3 %", 0.5: "50 %", 1.0: "100 %"}
    levels |= {0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.99986: "99.986 %", 0.94: "94 %", 0.8999: "90 %"}
    for level, expected in levels.items():
        assert phrasing.format_confidence(level) == expected


def test_quick_looks() -> None:
    assert phrasing.format_quick_look(make_verdict(seeds=1), "so far") == (
        "x: loss 0.100 lower so far (1 seed, 30 documents), which is not judged."
    )
    verdict = make_verdict(metric="perplexity", seeds=2, documents=1)
    assert phrasing.format_quick_look(verdict, "in a quick look") == (
        "x: perplexity 10.0 % lower in a quick look (2 seeds, 1 document), which is not judged."
    )
    none = make_verdict(effect=math.nan, seeds=0, documents=0)
    assert phrasing.format_quick_look(none, "here") == (
        "x: no score in common with the baseline here (0 seeds, 0 documents), which is not judged."
    )


def test_too_few_seeds() -> None:
    verdict = make_verdict("too few seeds", metric="accuracy", effect=0.05, seeds=2)
    assert phrasing.format_too_few_seeds(verdict, [0.5, 0.61], [0.6, 0.611]) == (
        "x: accuracy 60.0 %, 61.1 %; baseline 50.0 %, 61.0 % (2 seeds; on average 5.0 points higher). An interval "
        "needs "
        "at least 3 seeds."
    )
    loss = make_verdict("too few seeds", effect=-0.12345, seeds=1)
    assert phrasing.format_too_few_seeds(loss, [1.23456], [123456.0]) == (
        "x: loss 1.235e+05; baseline 1.235 (1 seed; on average 0.123 lower). An interval needs at least 3 seeds."
    )
    for sides in (([], [1.0]), ([1.0], [])):
        assert phrasing.format_too_few_seeds(loss, *sides) == (
            "x: no score to compare with the baseline. An interval needs at least 3 seeds."
        )


def test_rank_tests() -> None:
    verdict = make_verdict(lost_runs=0, baseline_lost_runs=4, runs=6, seeds=2, comparisons=2)
    assert phrasing.format_rank_test(verdict, 0.0123, 5) == (
        "x helped: 0 of 6 runs were lost (baseline: 4 of 5), which leaves 2 pairs where an interval needs 3 "
        "(rank-sum test "
        "with lost runs ranked worst: p = 0.012, significance level 0.03, one of 2 comparisons with 95 % joint "
        "confidence). Failure rates up to 45 % cannot be excluded."
    )
    open_verdict = make_verdict(OPEN, lost_runs=4, runs=4, seeds=1)
    assert phrasing.format_rank_test(open_verdict, 0.2, 5) == (
        "x: cannot tell, because 4 of 4 runs were lost (baseline: 0 of 5), which leaves 1 pair where an interval "
        "needs 3 "
        "(rank-sum test with lost runs ranked worst: p = 0.2, significance level 0.03). This test needs at least 5 "
        "seeds. "
        "Failure rates up to 45 % cannot be excluded."
    )
    assert "needs at least 4" not in phrasing.format_rank_test(open_verdict, 0.2, 4)
    assert "This test needs" not in phrasing.format_rank_test(make_verdict(runs=4), 0.2, 5)
    assert phrasing.explain_lost_runs(make_verdict(seeds=3)) == "0 of 5 runs were lost (baseline: 0 of 5)"


@pytest.mark.parametrize(
    ("metric", "interval", "decimals"),
    [
        ("loss", (0.1, 0.3), 2),
        ("loss", (0.1, 0.298), 3),
        ("loss", (0.0, 2.0), 1),
        ("loss", (0.0, 20.0), 0),
        ("loss", (0.0, 2000.0), 0),
        ("loss", (0.001, 0.3), 3),
        ("loss", (-0.3, -0.00021), 4),
        ("loss", (0.00001, 0.3), 2),
        ("loss", (1.0, 1.0), 6),
        ("loss", (1.0, 1.0 + 2e-9), 6),
        ("loss", (0.1, 0.1000002), 6),
        ("loss", (math.nan, math.nan), 3),
        ("loss", (-math.inf, 1.0), 3),
        ("perplexity", (math.nan, math.nan), 1),
        ("accuracy", (0.1, math.inf), 1),
        ("accuracy", (0.01, 0.0302), 1),
        ("perplexity", (0.01, 0.0298), 2),
        ("score", (0.01, 0.0298), 4),
    ],
)
def test_intervals_are_shown_with_two_digits_of_their_half_width(
    metric: str, interval: tuple[float, float], decimals: int
) -> None:
    assert phrasing._choose_decimals(METRICS[metric], interval) == decimals


@pytest.mark.parametrize(
    ("metric", "interval", "words"),
    [
        ("loss", (0.5, 2.0), "0.50 to 2.00 higher"),
        ("loss", (-2.0, -0.5), "0.50 to 2.00 lower"),
        ("loss", (-2.0, 0.5), "runs from 2.00 lower to 0.50 higher"),
        ("loss", (-2.0, 0.0), "runs from 2.00 lower to the same"),
        ("loss", (0.0, 2.0), "0.00 to 2.00 higher"),
        ("score", (9.0, 9.99), "9.00 to 9.99 higher"),
        ("score", (9.0, 10.0), "runs from 9.00 higher to 10.00 higher"),
        ("perplexity", (9.0, 10.0), "runs from 900.00 % higher to more than 1,000 % higher"),
        ("perplexity", (10.0, 12.0), "also beyond that"),
        ("perplexity", (9.99, 12.0), "runs from 999.00 % higher to more than 1,000 % higher"),
        ("perplexity", (-0.9995, 0.5), "runs from more than 99.9 % lower to 50.00 % higher"),
        ("perplexity", (-0.999, 0.5), "runs from 99.90 % lower to 50.00 % higher"),
        ("accuracy", (0.01, 0.02), "1.00 to 2.00 points higher"),
    ],
)
def test_intervals_as_sentences(metric: str, interval: tuple[float, float], words: str) -> None:
    assert phrasing._format_interval(METRICS[metric], interval, 2) == words


@pytest.mark.parametrize(
    ("metric", "magnitude", "decimals", "words"),
    [
        ("perplexity", 0.0123456789, None, "1.23457 %"),
        ("accuracy", 0.01, None, "1 point"),
        ("accuracy", 0.02, None, "2 points"),
        ("accuracy", 0.01, 0, "1 point"),
        ("loss", 1234.5, 1, "1,234.5"),
        ("loss", 0.0000004, 6, "4e-07"),
        ("loss", 0.00000051, 6, "0.000001"),
        ("loss", 0.0, 6, "0.000000"),
        ("loss", 0.0000004, 5, "0.00000"),
        ("score", 0.1 + 0.2, None, "0.3"),
    ],
)
def test_magnitudes_have_units(metric: str, magnitude: float, decimals: int | None, words: str) -> None:
    assert phrasing._format_with_unit(METRICS[metric], magnitude, decimals) == words


def test_verdicts_that_are_withheld() -> None:
    assert phrasing.format_not_comparable("x", "reads the future") == "x is not comparable: reads the future."


def test_an_open_verdict_names_the_command_that_adds_seeds() -> None:
    def build_command(*arguments: str) -> str | None:
        return build_command_with_more_seeds([settled, open_verdict, lossy], ["/bin/h2h", *arguments])

    settled = make_verdict()
    open_verdict = make_verdict("cannot tell", additional_seeds=4)
    lossy = make_verdict("cannot tell", seeds=4, runs=5, additional_seeds=2)
    assert build_command("run", "a b.toml") == "h2h run 'a b.toml' --seeds 9 --resume"
    assert build_command("run", "a.toml", "--seeds", "5", "--set=x=1", "--resume") == (
        "h2h run a.toml --set=x=1 --seeds 9 --resume"
    )
    assert build_command("versus", "--seeds=5", "--", "python", "--seeds", "5") == (
        "h2h versus --seeds 9 --resume -- python --seeds 5"
    )
    assert build_command_with_more_seeds([settled], ["h2h", "run"]) is None
    assert build_command_with_more_seeds([open_verdict], []) is None
    assert build_command_with_more_seeds([make_verdict("cannot tell")], ["h2h", "run"]) is None


def test_a_long_command_is_broken_between_its_arguments():
    command = shlex.join(
        ["h2h", "run", "a file.toml", "--set", "training.budget=600 steps", "--out", "x" * 30, "--resume"]
    )
    lines = wrap_command(command, 50)
    assert max(map(len, lines.splitlines())) <= 54 and len(lines.splitlines()) == 3
    printed = subprocess.run(["sh", "-c", f"printf '%s\\n' {lines}"], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == shlex.split(command)
    assert wrap_command("h2h run", 50) == "h2h run"
