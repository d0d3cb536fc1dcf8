"""Claims and published figures are answered by what was measured, and only beside the same texts."""

from statistics import geometric_mean
from types import SimpleNamespace

import pytest

from headtohead.config import experiment
from headtohead.errors import ConfigError
from headtohead.experiment import loading
from headtohead.replication import claims
from headtohead.runner import run_experiment


def claim(expects: str, **more) -> experiment.Claim:
    return experiment.Claim(source="X", statement="it does", variant="alibi", expected_verdict=expects, **more)


def verdict(word: str):
    return SimpleNamespace(
        variant="alibi",
        outcome=word,
        effect=-0.02,
        interval=(-0.03, -0.01),
        seeds=5,
        summary="so it is",
        is_exploratory=False,
    )


@pytest.mark.parametrize(
    ("expects", "word", "answer"),
    [
        ("helped", "helped", "holds"),
        ("helped", "hurt", "does not hold"),
        ("helped", "no practical difference", "does not hold"),
        ("helped", "not comparable", "cannot be tested"),
        ("helped", "cannot tell", "cannot tell"),
        ("no practical difference", "no practical difference", "holds"),
        ("no practical difference", "helped", "does not hold"),
        ("hurt", "hurt", "holds"),
    ],
)
def test_a_claim_holds_exactly_when_the_verdict_is_the_one_it_asks_for(expects, word, answer):
    experiment = SimpleNamespace(claims=(claim(expects),))
    (found,) = claims.evaluate_claims(experiment, {}, [verdict(word)], {}, {}, [])
    assert found.answer == answer


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    from tests.conftest import write_text

    folder = tmp_path_factory.mktemp("answers")
    raw = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": 3,
        "axis": "model.feedforward.hidden",
        "data": {"source": str(write_text(folder / "text")), "monitor": ["test"]},
        "original": {"corpus": "the digest of another text"},
        "model": {
            "width": 16,
            "layers": 1,
            "heads": 2,
            "context": 8,
            "feedforward": {"kind": "mlp", "hidden": 8},
        },
        "training": {"steps": 40, "batch_size": 8, "eval_every": 20},
        "variants": {
            "alibi": {"model": {"position": "alibi"}},
            "wide": {"model": {"feedforward": {"kind": "mlp", "hidden": 32}}},
        },
        "published": [
            {"source": "X", "split": "test", "metric": "perplexity", "value": 12.5},
            {"source": "X", "split": "test", "metric": "perplexity", "value": 99.0, "step": 20},
        ],
        "claims": [
            {
                "source": "X",
                "statement": "alibi is faster",
                "variant": "alibi",
                "expected_verdict": "helped",
                "step": 20,
            },
            {
                "source": "X",
                "statement": "alibi extends",
                "variant": "alibi",
                "expected_verdict": "helped",
                "context": 16,
            },
            {
                "source": "X",
                "statement": "wide extends",
                "variant": "wide",
                "expected_verdict": "helped",
                "context": 16,
            },
            {"source": "X", "statement": "alibi is better", "variant": "alibi", "expected_verdict": "helped"},
        ],
        "probe": {"contexts": [8, 16], "costs": [8, 32]},
    }
    return run_experiment.run_experiment(loading.build_experiment(raw, "answers"), folder / "runs", num_workers=2)


def test_a_claim_along_the_way_is_judged_by_the_figures_of_that_step(outcome):
    early, _, _, end = outcome.findings.claims
    values = {}
    for name in ("baseline", "alibi"):
        for run in outcome.runs.finished(name).values():
            values.setdefault(name, []).extend(
                line.loss for line in run.metrics if (line.split, line.step) == ("test", 20)
            )
    difference = sum(values["alibi"]) / 3 - sum(values["baseline"]) / 3
    assert early.effect == pytest.approx(2.718281828459045**difference - 1, abs=1e-6)
    assert end.effect == outcome.findings.verdicts[0].effect != early.effect


def test_a_claim_about_longer_inputs_compares_a_variant_with_itself(outcome):
    _, extends, cannot, _ = outcome.findings.claims
    short, long = (row.value for row in outcome.findings.length_generalization["alibi"].contexts)
    assert extends.effect == pytest.approx(long / short - 1, abs=0.02)
    # Learned positions cannot be tested at 16: there is nothing to compare.
    assert cannot.answer == "cannot be tested" and cannot.outcome is None


def test_published_figures_stand_beside_the_right_step_and_are_marked_on_other_texts(outcome):
    end, early = outcome.findings.published
    assert early.ours > end.ours > 1 and early.seeds == end.seeds == 3
    assert end.other_data is True
    digest = outcome.findings.corpus.digest
    same = outcome.runs.experiment.model_copy(update={"original": experiment.OriginalSetup(corpus=digest)})
    assert claims.is_original_corpus(same, digest) and not claims.is_original_corpus(outcome.runs.experiment, digest)


def test_a_model_that_cannot_read_longer_inputs_says_so_and_one_that_can_is_scored(outcome):
    lengths = outcome.findings.length_generalization
    short, long = lengths["baseline"].contexts
    assert short.value > 1 and short.error is None
    assert long.value is None and "needs 16 positions, but the model supports 8" in long.error
    assert [row.value > 1 for row in lengths["alibi"].contexts] == [True, True]
    ours = outcome.findings.primary_scores["alibi"]
    assert lengths["alibi"].contexts[0].value == pytest.approx(geometric_mean(v for _, v in ours), rel=1e-5)


def test_costs_are_measured_once_a_variant(outcome):
    for one in outcome.findings.length_generalization.values():
        assert [row.context for row in one.costs] == [8, 32]
        assert all(row.bytes_per_token > 100 and row.seconds_per_1000_tokens > 0 for row in one.costs)
    assert not outcome.runs.finished("alibi")[1].lengths.costs


def test_the_axis_has_a_number_for_each_variant_that_has_one(outcome):
    assert outcome.findings.axis.values == {"baseline": 8, "alibi": 8, "wide": 32}


def test_claims_about_nothing_in_the_file_are_an_error(small):
    with pytest.raises(ConfigError, match=r"(?s)claims.variant.*'alibo'.*did you mean 'alibi'"):
        small(claims=[{"source": "X", "statement": "so", "variant": "alibo", "expected_verdict": "helped"}])
    with pytest.raises(ConfigError, match=r"claims.context.*probe.contexts does not test"):
        small(
            claims=[{"source": "X", "statement": "so", "variant": "alibi", "expected_verdict": "helped", "context": 99}]
        )
