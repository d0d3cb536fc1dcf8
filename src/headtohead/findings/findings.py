"""What an experiment found out, read from its run folders: verdicts, pairing, costs, audits, as plain data.

No torch here: findings can be made again anywhere from the folders alone. docs/run-folder.md lists the keys.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from headtohead.atomic_io import compute_sha256, read_json_object, verify_checksum, write_json
from headtohead.attention_analysis import trial_metrics
from headtohead.config import experiment, loading, model
from headtohead.config.experiment import BASELINE
from headtohead.distillation import evaluation
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import SCHEMA_VERSION, ExperimentRuns, Run
from headtohead.replication.claims import compare_with_published, evaluate_claims, is_original_corpus
from headtohead.search import selection_bias
from headtohead.search.points import list_finished_runs
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.interim import plan_interim_analyses
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import compute_mean_interval

FinishedRuns = Mapping[str, Mapping[int, Run]]
COST_FIELDS = ("parameters", "flops_per_token")
MAX_SAMPLE_SEEDS = 3
SEALED_FILES = ("experiment.json", "corpus.json", "teacher.json")
"""files of an experiment that no run vouches for"""
MAX_CONFUSION_LABELS = 1000
"""a table of more, true by guessed, would show nothing and fill the memory"""


def compute_findings(
    runs: ExperimentRuns, *, interim_analyses: Sequence[int] = (), check_files: bool = True
) -> dict[str, Any]:
    """All that can be said about this experiment now. With `looks`, its verdicts stay valid under peeking. Files that
    are not what was written are refused, unless `checked` is false: for those who check them anyway."""
    if check_files:
        _check_integrity(runs)
    with schemas.report_inconsistent_data(runs.folder), np.errstate(all="ignore"):
        found = _compute_findings(runs, interim_analyses)
        json.dumps(found, allow_nan=False)
        return found


def _compute_findings(runs: ExperimentRuns, interim_analyses: Sequence[int]) -> dict[str, Any]:
    experiment = runs.experiment
    finished = {name: runs.finished(name) for name in experiment.names}
    if not finished[BASELINE]:
        raise RunFolderError(f"{runs.folder}: no run of the baseline is finished, so there is nothing to compare with")
    corpus: dict[str, Any] = schemas.read_validated(runs.folder / "corpus.json", schemas.CorpusFile)
    audits = {name: _read_audits(found) for name, found in finished.items()}
    pairing = {name: _check_pairing(experiment, name, finished) for name in experiment.variants}
    failed = {name: reason for name, rows in audits.items() if (reason := _format_audit_failure(rows)) is not None}
    failed |= {name: reason for name, row in pairing.items() if (reason := row["unpaired"]) and name not in failed}
    choices = _select_evaluation_sets(experiment, corpus)
    (split, kept), *others = choices
    verdicts = _compute_verdicts(experiment, finished, corpus, split, kept, failed, interim_analyses)
    judged = {
        _format_evaluation_set(name, rows): _compute_verdicts(
            experiment, finished, corpus, name, rows, failed, interim_analyses
        )
        for name, rows in others
    }
    original = is_original_corpus(experiment, corpus["digest"])
    comparisons = {
        at: _compute_verdicts(
            experiment,
            _select_compared_runs(one, finished),
            corpus,
            split,
            kept,
            failed,
            interim_analyses,
            one.baseline,
        )
        for at, one in enumerate(experiment.comparisons)
    }
    among = {(experiment.comparisons[at].baseline, v.variant): v for at, rows in comparisons.items() for v in rows}
    return {
        "schema": SCHEMA_VERSION,
        "experiment": runs.about["experiment"],
        "versions": runs.about["versions"],
        "command": runs.about["command"],
        "metric": experiment.primary.metric,
        "split": experiment.primary.split,
        "rows": kept,
        "looks": list(interim_analyses),
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "others": {name: [verdict.to_dict() for verdict in rows] for name, rows in judged.items()},
        "comparisons": [
            {**one.model_dump(mode="json"), "verdicts": [verdict.to_dict() for verdict in comparisons[at]]}
            for at, one in enumerate(experiment.comparisons)
        ],
        "results": _collect_results(finished, corpus),
        "by_seed": _compute_metric_by_seed(finished, corpus, split, kept, experiment.primary.metric),
        "curves": _collect_curves(finished),
        "losses": _collect_curves(finished, "loss") if experiment.primary.metric == "accuracy" else {},
        "chosen": {
            name: [[seed, run.result["trained"]["chosen_step"]] for seed, run in found.items()]
            for name, found in finished.items()
        },
        "pairing": pairing,
        "audits": audits,
        "data_audits": corpus["audits"],
        "failures": _collect_failures(runs, finished),
        "samples": {name: _collect_samples(found) for name, found in finished.items()},
        "sentences": {name: _collect_sentence_scores(found) for name, found in finished.items()},
        "published": [
            compare_with_published(figure, finished, is_original_data=original) for figure in experiment.published
        ],
        "claims": evaluate_claims(
            experiment, finished, verdicts, judged, failed, _resolve_split(corpus, "test"), among
        ),
        "lengths": {name: _summarize_length_generalization(found) for name, found in finished.items()},
        "axis": _collect_axis_values(experiment, finished),
        "confusion": _compute_confusion_matrices(finished, corpus),
        "attention": trial_metrics.summarize_over_seeds(finished),
        "teacher": read_json_object(runs.folder / "teacher.json") if experiment.spec.has_teacher else None,
        "distilled": evaluation.evaluate_distillation(runs, finished) if experiment.spec.has_teacher else None,
        "search": selection_bias.summarize_search(runs, finished),
        "seals": {
            f"{name}/seed-{seed}": compute_sha256(run.folder / "result.json")
            for name, found in finished.items()
            for seed, run in found.items()
        },
        "corpus": {key: value for key, value in corpus.items() if key not in ("audits", "unseen")},
    }


def _check_integrity(runs: ExperimentRuns) -> None:
    """Nothing is said about figures that somebody, or a bad disk, has changed."""
    for name in SEALED_FILES:
        if (runs.folder / name).is_file():
            verify_checksum(runs.folder / name, "run the experiment again with --resume, which writes it anew")
    for name in runs.experiment.names:
        for run in runs.finished(name).values():
            run.check()
    for _, run in list_finished_runs(runs.folder):
        run.check()


def write_findings(runs: ExperimentRuns, *, interim_analyses: Sequence[int] = ()) -> dict[str, Any]:
    """Find, and leave it in the experiment's folder."""
    found = compute_findings(runs, interim_analyses=interim_analyses)
    write_json(runs.folder / "findings.json", found, with_checksum=True)
    return found


def list_interim_analyses(runs: ExperimentRuns) -> tuple[int, ...]:
    """The looks that were planned, when the experiment adds seeds until it is settled."""
    experiment = runs.experiment
    return plan_interim_analyses(experiment.max_seeds) if isinstance(experiment.seeds, str) else ()


def _select_evaluation_sets(experiment: experiment.Experiment, corpus: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(split, rows) of the primary comparison first, then those that inform: each held-out text, and all rows where
    the verdict is taken from the unseen ones."""
    primary = experiment.primary.split
    held_out = [name for name, about in corpus["splits"].items() if about["role"] == "test"]
    leaking = [name for name in held_out if _has_leaked_rows(corpus, name)]
    inside = held_out if primary == "test" else [primary]
    kept = "unseen" if any(name in leaking for name in inside) else "all"
    choices = [(primary, kept)]
    if kept == "unseen":
        choices.append((primary, "all"))
    if len(held_out) > 1 or primary not in ("test", *held_out):
        choices += [(name, "unseen" if name in leaking else "all") for name in held_out if name != primary]
    return choices


def _has_leaked_rows(corpus: Mapping[str, Any], split: str) -> bool:
    """Are there rows that also stand in train, and can the scores be told apart by row?"""
    unseen = corpus["unseen"].get(split)
    return unseen is not None and 0 < len(unseen) < corpus["splits"][split]["rows"]


def _format_evaluation_set(split: str, row_filter: str) -> str:
    return f"{split}, {row_filter} rows" if row_filter != "all" or split == "test" else split


def _compute_verdicts(
    experiment: experiment.Experiment,
    finished_runs: FinishedRuns,
    corpus: Mapping[str, Any],
    split: str,
    row_filter: str,
    failure_reasons: Mapping[str, str],
    interim_analyses: Sequence[int],
    reference: str = BASELINE,
) -> list[Verdict]:
    kind = experiment.primary.metric
    scored = {
        name: _stack_scores(found, corpus, split, row_filter, kind)
        for name, found in finished_runs.items()
        if found  # a variant without a finished run is in the failures
    }
    if reference not in scored:
        return []
    baseline, per_byte = scored.pop(reference), False
    if kind == "perplexity" and any(not np.array_equal(s.weights, baseline.weights) for s in scored.values()):
        # Other tokens, other predictions: only totals can be compared, and per byte of the same text.
        per_byte = True
        size = _count_bytes(corpus, split)
        baseline, scored = _sum_scores(baseline, size), {name: _sum_scores(s, size) for name, s in scored.items()}
    barred = {name: reason for name, reason in failure_reasons.items() if name != reference}
    if reference in failure_reasons:
        barred = dict.fromkeys(
            scored, f"{'the baseline' if reference == BASELINE else reference} {failure_reasons[reference]}"
        )
    verdicts = compare_scores(
        baseline,
        scored,
        metric=kind,
        equivalence_margin=experiment.matters,
        failed_audits=barred,
        interim_analyses=interim_analyses,
    )
    if per_byte:
        return [replace(v, summary=re.sub("(?i)(perplexity)", r"\1 per byte", v.summary)) for v in verdicts]
    return verdicts


def _select_compared_runs(comparison: experiment.Comparison, finished: FinishedRuns) -> FinishedRuns:
    return {name: finished[name] for name in (comparison.baseline, *comparison.variants)}


def _resolve_split(corpus: Mapping[str, Any], split: str) -> list[str]:
    """The texts behind the name of a split: "test" stands for all held-out ones."""
    names = [name for name, about in corpus["splits"].items() if about["role"] == "test"]
    return names if split == "test" else [split]


def _stack_scores(
    runs_by_seed: Mapping[int, Run], corpus: Mapping[str, Any], split: str, row_filter: str, metric: str
) -> Scores:
    column = "correct" if metric == "accuracy" else "losses"
    names = _resolve_split(corpus, split)

    def pooled(run: Run, what: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        pieces = []
        for name in names:
            values = run.scores[f"{name}.{what}"]
            kept = corpus["unseen"].get(name) if row_filter == "unseen" else None
            pieces.append(values if kept is None else values[np.asarray(kept, dtype=int)])
        return np.concatenate(pieces)

    runs = list(runs_by_seed.values())
    return Scores(tuple(runs_by_seed), np.stack([pooled(run, column) for run in runs]), pooled(runs[0], "counts"))


def _count_bytes(corpus: Mapping[str, Any], split: str) -> float:
    return float(sum(corpus["splits"][name]["bytes"] for name in _resolve_split(corpus, split)))


def _sum_scores(scores: Scores, num_bytes: float) -> Scores:
    return Scores(scores.seeds, scores.values.sum(1, keepdims=True), np.array([num_bytes]))


def _read_audits(runs_by_seed: Mapping[int, Run]) -> list[dict[str, Any]]:
    """What the audits of the variant's first audited run say."""
    for run in runs_by_seed.values():
        path = run.folder / "audits.json"
        if path.is_file():
            rows: list[dict[str, Any]] = schemas.read_validated(path, schemas.AuditsFile)["audits"]
            return rows
    return []


def _format_audit_failure(audits: Sequence[Mapping[str, Any]]) -> str | None:
    reasons = [str(row["failure_reason"]) for row in audits if row["passed"] is False and row["is_blocking"]]
    return ", ".join(dict.fromkeys(reasons)) if reasons else None


def _collect_results(finished: FinishedRuns, corpus: Mapping[str, Any]) -> dict[str, Any]:
    """The metric of every run on every split, and on the unseen rows of a split that leaks."""
    results: dict[str, Any] = {}
    for name, found in finished.items():
        by_split: dict[str, list[list[float]]] = {}
        for seed, run in found.items():
            metric = run.result["metric"]
            for split, scores in run.result["scores"].items():
                by_split.setdefault(split, []).append([seed, scores[metric]])
                if _has_leaked_rows(corpus, split):
                    unseen = _stack_scores({seed: run}, corpus, split, "unseen", metric)
                    mean = float(unseen.values.sum() / unseen.weights.sum())
                    value = mean if metric == "accuracy" else math.exp(mean)
                    by_split.setdefault(f"{split}, unseen rows", []).append([seed, value])
        results[name] = by_split
    return results


def _compute_metric_by_seed(
    finished: FinishedRuns, corpus: Mapping[str, Any], split: str, row_filter: str, metric: str
) -> dict[str, list[list[float]]]:
    """The metric of every run on what the verdict is taken from."""
    shown = {}
    for name, found in finished.items():
        if found:
            scores = _stack_scores(found, corpus, split, row_filter, metric)
            means = scores.values.sum(1) / scores.weights.sum()
            values = means if metric == "accuracy" else np.exp(means)
            shown[name] = [[seed, float(value)] for seed, value in zip(scores.seeds, values, strict=True)]
    return shown


def _collect_curves(finished: FinishedRuns, metric: str | None = None) -> dict[str, Any]:
    """What was noted along the way, by variant, split and seed: the metric that counts unless another is named."""
    curves: dict[str, Any] = {}
    for name, found in finished.items():
        by_split: dict[str, dict[str, list[list[float]]]] = {}
        for seed, run in found.items():
            for line in run.metrics:
                value = line.get(metric or run.result["metric"], line["loss"])
                if not isinstance(value, int | float) or not math.isfinite(value):
                    value = None  # it had run away
                by_split.setdefault(line["split"], {}).setdefault(str(seed), []).append([line["step"], value])
        curves[name] = by_split
    return curves


def _check_pairing(experiment: experiment.Experiment, variant: str, finished: FinishedRuns) -> dict[str, Any]:
    """The proof that two were trained alike: equal tensors at step 0, the same batches, and what differs."""
    settings = loading.diff_from_baseline(experiment, variant)
    common = [seed for seed in finished[variant] if seed in finished[BASELINE]]
    row: dict[str, Any] = {"settings": settings, "flag": len(settings) > 1, "seeds": len(common), "unpaired": None}
    if not common:
        return row
    pairs = [(finished[BASELINE][seed], finished[variant][seed]) for seed in common]
    shared = equal = 0
    on_purpose = [tensors for setting, tensors in SETTINGS_CHANGING_INITIALIZATION.items() if setting in settings]
    for one, other in pairs:
        first, second = one.start["tensors"], other.start["tensors"]
        both = [t for t in second if t in first and first[t].split(":")[0] == second[t].split(":")[0]]
        both = [t for t in both if not any(fnmatchcase(t, tensors) for tensors in on_purpose)]
        shared = len(both)
        equal = min(sum(first[t] == second[t] for t in both), equal or shared)
    row |= {
        "tensors": len(pairs[0][1].start["tensors"]),
        "shared": shared,
        "equal": equal,
        "schedule": all(one.start["schedule"] == other.start["schedule"] for one, other in pairs),
    }
    row["unpaired"] = _explain_unpaired(row, pairs[0])
    for cost in COST_FIELDS:
        row[cost] = [run.start[cost] for run in pairs[0]]
    row["seconds_per_step"] = _compute_medians(pairs, "seconds_per_step")
    if isinstance(experiment.training.steps, str):  # counted in epochs
        ends = zip(row["seconds_per_step"], pairs[0], strict=True)
        row["seconds_per_epoch"] = [seconds * run.start["steps_per_epoch"] for seconds, run in ends]
    row["peak_memory"] = _compute_medians(pairs, "peak_memory")
    return row


SETTINGS_CHANGING_BATCHES = (
    "data.",
    "training.batch_size",
    "training.group_by_length",
    "training.sampling",
    "training.steps",
    "model.context",
    "model.pretrained",
    "model.max_length",
)
"""settings that change the batches on purpose"""
SETTINGS_CHANGING_INITIALIZATION = {
    "model.init_from": "*",
    "model.embedding_init_std": "embedding.*",
    "model.position": "positions.*",
    "model.output_init": "output.*",
    "model.output_bias": "output.*",
    # A bias is drawn within bounds that depend on how many numbers its layer takes in.
    "model.width": "*",
    "model.feedforward": "*.feedforward.*",
    "model.head_dim": "*.attention.*",
    "model.classifier_hidden": "classifier.*",
}
"""settings that change on purpose what some tensors of the same shape start with: the names of these"""


def _explain_unpaired(row: Mapping[str, Any], pair: tuple[Run, Run]) -> str | None:
    """Why two that should have been trained alike were not, if so."""
    on_purpose = any(name.startswith(SETTINGS_CHANGING_BATCHES) for name in row["settings"])
    if not row["schedule"] and not on_purpose:
        return "was shown other batches than the baseline"
    # A network of the user's own draws its weights as it likes; the figures are shown and nothing is concluded.
    known = all(not isinstance(run.trial.model, model.CustomModelConfig) for run in pair)
    known = known and not any(name.startswith("model.pretrained") for name in row["settings"])
    if row["equal"] < row["shared"] and known:
        return "began with other weights than the baseline"
    return None


def _compute_medians(pairs: Sequence[tuple[Run, Run]], field: str) -> list[float]:
    return [statistics.median(pair[side].result["trained"][field] for pair in pairs) for side in (0, 1)]


def _collect_failures(runs: ExperimentRuns, finished: FinishedRuns) -> list[dict[str, Any]]:
    return [
        {"variant": name, "seed": seed, "message": runs.run(name, seed).failure or "not finished"}
        for name in runs.experiment.names
        for seed in runs.seeds(name)
        if seed not in finished[name]
    ]


def _collect_samples(runs_by_seed: Mapping[int, Run]) -> list[dict[str, Any]]:
    return [
        {**sample, "seed": seed}
        for seed, run in list(runs_by_seed.items())[:MAX_SAMPLE_SEEDS]
        for sample in run.probes.get("samples", [])
    ]


def _collect_sentence_scores(runs_by_seed: Mapping[int, Run]) -> dict[str, dict[str, Any]]:
    """For each sentence of the probe: perplexity, or class with confidence, by seed."""
    shown: dict[str, dict[str, Any]] = {}
    for seed, run in runs_by_seed.items():
        for name, answer in run.probes.get("sentences", {}).items():
            figure = answer["perplexity"] if "perplexity" in answer else [answer["class"], answer["confidence"]]
            shown.setdefault(name, {})[str(seed)] = figure
    return shown


def _summarize_length_generalization(runs_by_seed: Mapping[int, Run]) -> dict[str, Any]:
    """On other lengths of input: all held-out texts together over seeds, the time, what a step costs."""
    contexts: dict[int, dict[str, Any]] = {}
    for run in runs_by_seed.values():
        metric = run.result["metric"]
        for at in dict.fromkeys(row["context"] for row in run.lengths.get("contexts", [])):
            rows = [row for row in run.lengths["contexts"] if row["context"] == at]
            into = contexts.setdefault(at, {"values": [], "seconds_per_1000_tokens": [], "error": None})
            if refused := [row["error"] for row in rows if "error" in row]:
                into["error"] = refused[0]
                continue
            column = "accuracy" if metric == "accuracy" else "loss"
            mean = sum(row[column] * row["count"] for row in rows) / sum(row["count"] for row in rows)
            into["values"].append(mean if metric == "accuracy" else math.exp(mean))
            into["seconds_per_1000_tokens"].append(statistics.fmean(row["seconds_per_1000_tokens"] for row in rows))
    shown = [
        {
            "context": at,
            "value": statistics.fmean(one["values"]) if one["values"] else None,
            "interval": compute_mean_interval(one["values"]),
            "seconds_per_1000_tokens": min(one["seconds_per_1000_tokens"], default=None),
            "error": one["error"],
        }
        for at, one in contexts.items()
    ]
    costs: list[dict[str, Any]] = next(
        (run.lengths["costs"] for run in runs_by_seed.values() if run.lengths.get("costs")), []
    )
    return {"contexts": shown, "costs": costs}


def _collect_axis_values(experiment: experiment.Experiment, finished: FinishedRuns) -> dict[str, Any] | None:
    """The number that each variant has for the setting that results are drawn against, and the last training loss."""
    if experiment.axis is None:
        return None
    values, last = {}, {}
    for name, found in finished.items():
        for run in found.values():
            at: Any = run.trial.model_dump(mode="json")
            for key in experiment.axis.split("."):
                at = at.get(key) if isinstance(at, dict) else None
            if isinstance(at, int | float):
                values[name] = at
        losses = [float(run.result["trained"]["last_loss"]) for run in found.values()]
        last[name] = {"mean": statistics.fmean(losses) if losses else None, "interval": compute_mean_interval(losses)}
    return {"setting": experiment.axis, "values": values, "last_loss": last}


def _compute_confusion_matrices(finished: FinishedRuns, corpus: Mapping[str, Any]) -> dict[str, Any] | None:
    """Counts of true by guessed over the held-out rows, summed over seeds."""
    labels = corpus["labels"]
    if not 0 < len(labels) <= MAX_CONFUSION_LABELS:
        return None
    matrices = {}
    for name, found in finished.items():
        counts = np.zeros((len(labels), len(labels)), dtype=int)
        for run in found.values():
            for split in _resolve_split(corpus, "test"):
                pairs = zip(run.scores[f"{split}.labels"], run.scores[f"{split}.guessed"], strict=True)
                for true, guessed in pairs:
                    if true < 0 or guessed < 0:
                        raise ValueError(f"a class numbered {min(true, guessed)}")
                    counts[int(true), int(guessed)] += 1
        matrices[name] = counts.tolist()
    return {"labels": labels, "matrices": matrices}
