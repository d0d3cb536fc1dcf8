"""Analyze the trained model of a trial, and write the results to its run folder: audits, probes, maps, lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.numpy import save as serialize_tensors

from headtohead import rng
from headtohead.atomic_io import write_bytes
from headtohead.attention_analysis import trial_metrics
from headtohead.audit import model_audit
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.config.experiment import Trial
from headtohead.errors import ModelError
from headtohead.experiment import schemas
from headtohead.generation.generate import sample_continuation_ids
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.base import Task, TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.trials import length_generalization

SAMPLE_MAX_NEW_TOKENS = 30


@dataclass(frozen=True)
class TrainedTrial:
    """A trial whose model has been trained, as input to its analyses."""

    task: Task
    trial: Trial
    dataset: Dataset
    model: TrialModel
    get_initial_model: Callable[[], TrialModel]
    """returns the model at step 0"""


def write_analyses(trained: TrainedTrial, folder: Path, scoring_audits: list[CheckResult]) -> None:
    """Write audits, probes, attention maps, head metrics and length generalization to the run folder."""
    audits = list(scoring_audits)
    if trained.trial.seed == 0:  # other seeds have the same architecture
        audits += audit_trial_models(trained)
    schemas.write_record(folder / "audits.json", schemas.AuditsFile(audits=audits))
    _write_probes(trained, folder)
    if isinstance(trained.model, Transformer):
        _write_head_metrics(trained, trained.model, folder)
    _write_length_generalization(trained, folder)


def audit_trial_models(trained: TrainedTrial) -> list[CheckResult]:
    """Run the audits among a trial's analyses, of the untrained and the trained model, for audits.json.

    A model that rejects the audit inputs is not audited.
    """
    task, trial, dataset = trained.task, trained.trial, trained.dataset
    target, vocab_size, num_classes = task.spec.target, dataset.tokenizer.vocab_size, dataset.num_classes
    try:
        return [
            *model_audit.audit_untrained_model(
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
        return [build_inapplicable_result("model", str(error))]


def _write_probes(trained: TrainedTrial, folder: Path) -> None:
    """Analyze the probes of a trial and write probes.json: continuations of prompts, and scores of sentences.

    The attention on the first text is written to maps.safetensors.
    """
    task, trial, dataset, model = trained.task, trained.trial, trained.dataset, trained.model
    tokenizer = dataset.tokenizer
    model.eval().cpu()
    saved_model = SavedModel(model, tokenizer, task.spec.target, dataset.label_names, trial, folder)
    samples = []
    for prompt in trial.probe.prompts if task.spec.target.is_causal else ():
        assert not isinstance(model, EncoderClassifier)
        for sample_index in range(trial.probe.samples):
            seed = rng.derive_seed(trial.seed, "sample", sample_index) if sample_index else trial.seed
            continuation_ids = sample_continuation_ids(
                model, tokenizer.encode(prompt), SAMPLE_MAX_NEW_TOKENS, seed=seed, stop_token_id=tokenizer.eos_id
            )
            samples.append(schemas.SampleRecord(prompt=prompt, text=tokenizer.decode(continuation_ids)))
    sentences = {name: task.score_sentence(saved_model, text) for name, text in trial.probe.sentences.items()}
    schemas.write_record(folder / "probes.json", schemas.ProbesFile(samples=samples, sentences=sentences))
    probe_texts = [*trial.probe.sentences.values(), *trial.probe.prompts]
    if probe_texts and isinstance(model, Transformer):
        _write_attention_maps(trained, probe_texts[0], folder)


def _write_attention_maps(trained: TrainedTrial, text: str, folder: Path) -> None:
    """Analyze the attention on one text, before and after training, and write maps.safetensors and maps.json.

    The tensor of layer L is named "before.L" or "after.L" and has shape (heads, length, length).
    """
    tokenizer = trained.dataset.tokenizer
    input_ids = tokenizer.encode(text)[: trained.trial.model.context]
    maps_by_layer = {}
    with torch.no_grad():
        for stage, model in (("before", trained.get_initial_model().eval()), ("after", trained.model)):
            for layer, weights in enumerate(model(torch.tensor([input_ids]), output_attentions=True).attentions or ()):
                maps_by_layer[f"{stage}.{layer}"] = weights[0].to(torch.float32).numpy()
    write_bytes(folder / "maps.safetensors", serialize_tensors(maps_by_layer))
    tokens = [tokenizer.id_to_token(token_id) for token_id in input_ids]
    schemas.write_record(folder / "maps.json", schemas.AttentionMapsFile(text=text, tokens=tokens))


def _write_head_metrics(trained: TrainedTrial, model: Transformer, folder: Path) -> None:
    """Analyze attention heads and write attention.json, on validation data if there are any.

    Nothing is selected by these metrics.
    """
    task, dataset = trained.task, trained.dataset
    validation_splits = [split.name for split in dataset.corpus.splits.values() if split.role == "validation"]
    (split_name, *_) = [*validation_splits, *(split.name for split in dataset.corpus.get_test_splits()), "train"]
    examples = task.build_split_examples(trained.trial, dataset, split_name)
    objective = task.build_objective(dataset)
    trial_metrics.write_trial_head_metrics(folder, model, examples, objective, dataset.tokenizer, split_name)


def _write_length_generalization(trained: TrainedTrial, folder: Path) -> None:
    """Analyze the input lengths in [probe] and write lengths.json. Costs are measured for seed 0 only."""
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
