"""The chart of loss and accuracy, and comparisons between variants."""

import json
import re
from typing import Any

import pytest

from headtohead.report import page, sections
from headtohead.report.charts import learning_curves
from headtohead.report.sections import comparisons

from .make_findings import make_findings


def line(*values: float) -> list[list[float]]:
    return [[10 * at, value] for at, value in enumerate(values)]


def verdict(variant: str, effect: float) -> dict[str, Any]:
    return {
        "variant": variant,
        "outcome": "hurt" if effect < 0 else "helped",
        "metric": "accuracy",
        "equivalence_margin": 0.01,
        "effect": effect,
        "interval": [effect - 0.02, effect + 0.02],
        "seed_interval": [effect - 0.01, effect + 0.01],
        "seeds": 2,
        "summary": f"{variant} moved by {effect}.",
    }


@pytest.fixture
def found() -> dict[str, Any]:
    curve = {"train": {"0": line(0.5, 0.8, 0.95), "1": line(0.5, 0.7, 0.85)}, "validation": {"0": line(0.5, 0.7, 0.6)}}
    loss = {"train": {"0": line(0.7, 0.4, 0.1), "1": line(0.7, 0.5, 0.3)}, "validation": {"0": line(0.7, 0.5, 0.9)}}
    rows = [verdict("sgd", -0.3), verdict("adamw-own", 0.02), verdict("sgd-own", 0.01)]
    return {
        "metric": "accuracy",
        "verdicts": rows,
        "curves": {"baseline": curve, "sgd": curve},
        "loss_curves": {"baseline": loss, "sgd": loss},
        "chosen_steps": {"baseline": [[0, 10], [1, 10]], "sgd": [[0, 20]]},
        "comparisons": [
            {"title": "At one rate", "description": "The rate speaks.", "baseline": "baseline", "verdicts": [rows[0]]},
            {
                "title": "Own rates",
                "description": "",
                "baseline": "adamw-own",
                "verdicts": [verdict("sgd-own", -0.012)],
            },
            {"title": "Nothing ran", "description": "", "baseline": "adamw-own", "verdicts": []},
        ],
    }


def test_train_and_validation_loss_and_accuracy_stand_in_one_picture(found):
    result = learning_curves.build_classifier_fit_chart(make_findings(found))
    assert result is not None
    points = learning_curves.compute_fit_curve(make_findings(found), "baseline", "loss", "train")
    assert [(p.step, p.mean, p.low, p.high, p.seeds) for p in points][1] == (10, 0.45, 0.4, 0.5, 2)
    assert learning_curves.get_median_selected_step(make_findings(found), "baseline") == 10
    assert "baseline: final accuracy train 90.0\u00a0%, validation 60.0\u00a0%, weights of step 10." in result.alt_text
    samples = result.to_vega_lite()
    assert len(samples["concat"]) == 4  # two variants, loss and accuracy
    svg = result.to_svg()
    assert svg.count("baseline, validation, step 20: loss 0.900") == 1
    assert result.to_svg("narrow").startswith("<svg")


def test_the_panels_of_many_variants_share_rows_and_the_legend_is_as_dark_as_the_lines(found):
    for name in ("curves", "loss_curves"):
        found[name] |= dict.fromkeys(("adamw-own", "sgd-own"), found[name]["baseline"])
    chart = learning_curves.build_classifier_fit_chart(make_findings(found))
    assert chart is not None
    specification = chart.to_vega_lite()
    assert len(specification["concat"]) == 8
    assert specification["config"]["concat"]["columns"] == 4  # two variants in a row
    assert [float(number) for number in re.findall(r'height="(\d+)"', chart.to_svg())[:1]] < [500]
    legend = specification["concat"][0]["layer"][0]["encoding"]["color"]["legend"]
    assert legend["symbolOpacity"] == 1


def test_there_is_no_picture_without_validation_or_for_a_language_model(found):
    del found["loss_curves"]["baseline"]["validation"]  # the two share theirs
    assert learning_curves.build_classifier_fit_chart(make_findings(found)) is None
    assert learning_curves.build_classifier_fit_chart(make_findings({**found, "metric": "perplexity"})) is None
    assert learning_curves.build_classifier_fit_chart(make_findings({})) is None


def test_each_comparison_has_a_picture_its_verdicts_and_what_it_teaches(found):
    comparison_charts = comparisons.build_comparison_charts(make_findings(found))
    assert [(chart.name, chart.title.partition(":")[0]) for chart in comparison_charts] == [
        ("comparison-1", "At one rate"),
        ("comparison-2", "Own rates"),
    ]
    names = [chart.name for chart in sections.build_charts(make_findings(found))]
    assert names[:3] == ["forest", "comparison-1", "comparison-2"] and "fit" in names
    table = next(chart for chart in sections.build_tables(make_findings(found)) if chart.name == "comparisons")
    assert [[cell.text for cell in row][:4] for row in table.rows] == [
        ["At one rate", "sgd", "baseline", "hurt"],
        ["Own rates", "sgd-own", "adamw-own", "hurt"],
    ]
    html = page.render_page(make_findings(found))
    section = re.search(r'<section id="comparisons">(.*?)</section>', html, flags=re.DOTALL)
    assert section is not None
    for output in ("The rate speaks.", "sgd-own moved by -0.012.", "Change relative to adamw-own"):
        assert output in section[1]
    assert section[1].count("<figure>") == 2 and "Nothing ran" not in section[1]
    json.loads(json.dumps(found))


def test_a_report_without_comparisons_has_no_such_section(found):
    assert 'id="comparisons"' not in page.render_page(make_findings({**found, "comparisons": []}))
