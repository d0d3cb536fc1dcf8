"""Write a finished trial's files: scores, audits, probes, attention maps and the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as pack

from headtohead import rng
from headtohead.atomic_io import compute_sha256, write_bytes
from headtohead.attention_analysis import trial_metrics
from headtohead.audit import model_audit
from headtohead.audit.model_checks import initialization
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.config.experiment import Trial
from headtohead.data.scored_text import ScoredText
from headtohead.errors import ModelError
from headtohead.experiment import schemas
from headtohead.generation.generate import sample_continuation_ids
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.base import Task, TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.training.loop import TrainingResult, summarize_evaluation
from headtohead.training.objectives import Evaluation
from headtohead.trials import length_generalization

SAMPLE_MAX_NEW_TOKENS = 30


@dataclass(frozen=True)
class TrainedTrial:
    """A trial whose model has been trained."""

    task: Task
    trial: Trial
    dataset: Dataset
    model: TrialModel
    get_initial_model: Callable[[], TrialModel]
    """returns the model at step 0"""


def write_scores(folder: Path, evaluations: Mapping[str, Evaluation], texts: Mapping[str, ScoredText]) -> None:
    """Write every split's scores, and the text they refer to, to scores.safetensors."""
    arrays: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    for name, evaluation in evaluations.items():
        columns = {**(texts[name].to_columns() if name in texts else {}), **evaluation.columns}
        arrays |= {f"{name}.{column}": values for column, values in columns.items()}
    write_bytes(folder / "scores.safetensors", pack(arrays))


def write_analyses(trained: TrainedTrial, folder: Path, scoring_audits: list[CheckResult]) -> None:
    """Write audits, probes, attention maps, head measures and length generalization to the run folder."""
    audits = list(scoring_audits)
    if trained.trial.seed == 0:  # other seeds have the same architecture
        audits += audit_initial_and_trained_model(trained)
    schemas.write_record(folder / "audits.json", schemas.AuditsFile(audits=audits))
    _write_probes(trained, folder)
    if isinstance(trained.model, Transformer):
        _write_head_measures(trained, trained.model, folder)
    _write_length_generalization(trained, folder)


def audit_initial_and_trained_model(trained: TrainedTrial) -> list[CheckResult]:
    """Audit the untrained and the trained model. A model that rejects the audit inputs is not audited."""
    task, trial, dataset = trained.task, trained.trial, trained.dataset
    target, vocab_size, num_classes = task.spec.target, dataset.tokenizer.vocab_size, dataset.num_classes
    try:
        return [
            *initialization.audit_untrained_model(
                trained.get_initial_model(),
                task.build_audit_batch(trial, dataset),
                target=target,
                vocab_size=vocab_size,
                num_classes=num_classes,
            ),
            *model_audit.audit_model(
                trained.model.cpu(),
                target=target,
                vocab_size=vocab_size,
                context=trial.model.context,
                num_classes=num_classes,
                pad_id=dataset.tokenizer.pad_id,
            ),
        ]
    except ModelError as error:
        return [build_not_applicable("model", str(error))]


def _write_probes(trained: TrainedTrial, folder: Path) -> None:
    """Continue the probe prompts, score or classify the probe sentences, and map attention on the first text."""
    task, trial, dataset, model = trained.task, trained.trial, trained.dataset, trained.model
    tokenizer = dataset.tokenizer
    model.eval().cpu()
    saved_model = SavedModel(model, tokenizer, task.spec.target, dataset.label_names, trial, folder)
    samples = []
    for prompt in trial.probe.prompts if task.spec.target.is_causal else ():
        assert not isinstance(model, EncoderClassifier)
        for sample_index in range(trial.probe.samples):
            seed = rng.derive_seed(trial.seed, "sample", sample_index) if sample_index else trial.seed
            ids = sample_continuation_ids(
                model, tokenizer.encode(prompt), SAMPLE_MAX_NEW_TOKENS, seed=seed, stop_token_id=tokenizer.eos_id
            )
            samples.append(schemas.SampleRecord(prompt=prompt, text=tokenizer.decode(ids)))
    sentences = {name: task.score_sentence(saved_model, text) for name, text in trial.probe.sentences.items()}
    schemas.write_record(folder / "probes.json", schemas.ProbesFile(samples=samples, sentences=sentences))
    texts = [*trial.probe.sentences.values(), *trial.probe.prompts]
    if texts and isinstance(model, Transformer):
        _write_attention_maps(trained, texts[0], folder)


def _write_attention_maps(trained: TrainedTrial, text: str, folder: Path) -> None:
    """Write the attention weights for one text before and after training."""
    tokenizer = trained.dataset.tokenizer
    input_ids = tokenizer.encode(text)[: trained.trial.model.context]
    arrays = {}
    with torch.no_grad():
        for stage, network in (("before", trained.get_initial_model().eval()), ("after", trained.model)):
            for layer, weights in enumerate(
                network(torch.tensor([input_ids]), output_attentions=True).attentions or ()
            ):
                arrays[f"{stage}.{layer}"] = weights[0].to(torch.float32).numpy()
    write_bytes(folder / "maps.safetensors", pack(arrays))
    tokens = [tokenizer.id_to_token(token_id) for token_id in input_ids]
    schemas.write_record(folder / "maps.json", schemas.AttentionMapsFile(text=text, tokens=tokens))


def _write_head_measures(trained: TrainedTrial, model: Transformer, folder: Path) -> None:
    """Measure each attention head, on validation data if there is any. The measures are not used for selection."""
    task, dataset = trained.task, trained.dataset
    validation_splits = [split.name for split in dataset.corpus.splits.values() if split.role == "validation"]
    (split_name, *_) = [*validation_splits, *(split.name for split in dataset.corpus.get_test_splits()), "train"]
    examples = task.build_split_examples(trained.trial, dataset, split_name)
    objective = task.build_objective(dataset)
    trial_metrics.write_head_measures(folder, model, examples, objective, dataset.tokenizer, split_name)


def _write_length_generalization(trained: TrainedTrial, folder: Path) -> None:
    """Evaluate at the probe's context lengths. Costs are measured for seed 0 only."""
    task, trial, dataset = trained.task, trained.trial, trained.dataset
    contexts, cost_contexts = trial.probe.contexts, trial.probe.costs if trial.seed == 0 else ()
    if not contexts and not cost_contexts:
        return
    lengths = schemas.LengthGeneralizationFile(
        contexts=length_generalization.evaluate_at_lengths(trained.model, task, dataset, contexts),
        costs=length_generalization.measure_costs_at_lengths(
            trial.model,
            dataset.tokenizer.vocab_size,
            dataset.num_classes,
            cost_contexts,
            is_causal=task.spec.target.is_causal,
        ),
    )
    schemas.write_record(folder / "lengths.json", lengths)


def build_result(
    trial: Trial,
    folder: Path,
    training_result: TrainingResult,
    evaluations: dict[str, Evaluation],
    seconds: float,
    task_result: dict[str, float],
) -> schemas.ResultFile:
    """Return the content of result.json: scores, a training summary, and checksums of all files in the folder."""
    metric = trial.spec.metric
    # Checksums of every file that remains in the run folder.
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    checksums = {
        str(path.relative_to(folder)): compute_sha256(path)
        for path in files
        if "__pycache__" not in path.relative_to(folder).parts
        and not path.relative_to(folder).parts[0].startswith(("checkpoint-", "best-"))
        and path.name not in ("result.json", "failure.json")
    }
    training = {name: None if value != value else value for name, value in asdict(training_result).items()}
    return schemas.ResultFile.model_validate(
        {
            "variant": trial.variant,
            "seed": trial.seed,
            "metric": metric,
            "scores": {
                name: {
                    key: value if np.isfinite(value) else None
                    for key, value in summarize_evaluation(evaluation, metric).items()
                }
                for name, evaluation in evaluations.items()
            },
            "training": {**training, "resharded": list(training_result.resharded)},
            "trial_seconds": round(seconds, 3),
            "sha256": checksums,
            **task_result,
        }
    )


def remove_checkpoints(folder: Path) -> None:
    """Remove a finished trial's checkpoints."""
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    for weights in folder.glob("best-*.safetensors"):
        weights.unlink(missing_ok=True)
