"""Claims and published scores are compared with measurements, and only on the same texts."""

from statistics import geometric_mean
from types import SimpleNamespace

import pytest

from headtohead.config import experiment
from headtohead.errors import ConfigError
from headtohead.experiment import loading
from headtohead.replication import claims
from headtohead.replication.published_scores import is_original_corpus
from headtohead.runner import run_experiment


def make_claim(expected_verdict: str, **options) -> experiment.Claim:
    return experiment.Claim(
        source="X", statement="it does", variant="alibi", expected_verdict=expected_verdict, **options
    )


def make_verdict(outcome: str):
    return SimpleNamespace(
        variant="alibi",
        outcome=outcome,
        effect=-0.02,
        interval=(-0.03, -0.01),
        seeds=5,
        summary="so it is",
        is_exploratory=False,
    )


@pytest.mark.parametrize(
    ("expected_verdict", "outcome", "answer"),
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
def test_a_claim_holds_if_the_verdict_has_the_expected_outcome(expected_verdict, outcome, answer):
    experiment = SimpleNamespace(claims=(make_claim(expected_verdict),))
    (result,) = claims.evaluate_claims(experiment, {}, [make_verdict(outcome)], {}, {}, [])
    assert result.answer == answer


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, in_process_pool):
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
        "training": {"budget": "40 steps", "batch_size": 8, "eval_every": 20},
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
    return run_experiment.run_experiment(
        loading.build_experiment(raw, "answers"), folder / "runs", backend=in_process_pool
    )


def test_a_claim_about_an_earlier_step_is_answered_by_the_losses_at_that_step(outcome):
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


def test_a_claim_about_a_longer_context_compares_a_variant_with_itself(outcome):
    _, extends_claim, untestable_claim, _ = outcome.findings.claims
    short, long = (row.value for row in outcome.findings.length_generalization["alibi"].contexts)
    assert extends_claim.effect == pytest.approx(long / short - 1, abs=0.02)
    # Learned positions cannot be tested at 16: there is nothing to compare.
    assert untestable_claim.answer == "cannot be tested" and untestable_claim.outcome is None


def test_published_scores_are_compared_at_their_step_and_marked_on_different_data(outcome):
    end, early = outcome.findings.published
    assert early.ours > end.ours > 1 and early.seeds == end.seeds == 3
    assert end.other_data is True
    digest = outcome.findings.corpus.digest
    same = outcome.runs.experiment.model_copy(update={"original": experiment.OriginalSetup(corpus=digest)})
    assert is_original_corpus(same, digest) and not is_original_corpus(outcome.runs.experiment, digest)


def test_longer_contexts_are_scored_or_reported_as_not_supported(outcome):
    lengths = outcome.findings.length_generalization
    short, long = lengths["baseline"].contexts
    assert short.value > 1 and short.error is None
    assert long.value is None and "needs 16 positions, but the model supports 8" in long.error
    assert [row.value > 1 for row in lengths["alibi"].contexts] == [True, True]
    alibi = outcome.findings.primary_scores["alibi"]
    assert lengths["alibi"].contexts[0].value == pytest.approx(geometric_mean(v for _, v in alibi), rel=1e-5)


def test_costs_are_measured_once_per_variant(outcome):
    for item in outcome.findings.length_generalization.values():
        assert [row.context for row in item.costs] == [8, 32]
        assert all(row.bytes_per_token > 100 and row.seconds_per_1000_tokens > 0 for row in item.costs)
    assert not outcome.runs.finished("alibi")[1].lengths.costs


def test_the_axis_has_the_value_of_each_variant(outcome):
    assert outcome.findings.axis.values == {"baseline": 8, "alibi": 8, "wide": 32}


def test_claims_about_unknown_variants_or_contexts_are_rejected(small):
    with pytest.raises(ConfigError, match=r"(?s)claims.variant.*'alibo'.*did you mean 'alibi'"):
        small(claims=[{"source": "X", "statement": "so", "variant": "alibo", "expected_verdict": "helped"}])
    with pytest.raises(ConfigError, match=r"claims.context.*probe.contexts does not list"):
        small(
            claims=[{"source": "X", "statement": "so", "variant": "alibi", "expected_verdict": "helped", "context": 99}]
        )
