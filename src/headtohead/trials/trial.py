"""One trial: a pure function from (settings, seed, corpus) to a run folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save as pack

from headtohead import rng
from headtohead.atomic_io import (
    append_jsonl,
    compute_sha256,
    read_json_object,
    verify_checksum,
    write_bytes,
    write_json,
)
from headtohead.attention_analysis import trial_metrics
from headtohead.audit import model_audit
from headtohead.audit.data_checks import leakage
from headtohead.audit.model_checks import initialization
from headtohead.config import experiment, pretrained
from headtohead.data import batches, examples
from headtohead.data.batches import BatchSchedule
from headtohead.data.examples import EvaluationExamples
from headtohead.data.sft import PromptedRows, build_prompted_examples
from headtohead.distillation import summarization
from headtohead.distillation.distillation_data import build_distillation_data
from headtohead.distillation.teacher import build_teacher_strategy
from headtohead.distillation.teacher_texts import build_summary_prompts
from headtohead.errors import RunFolderError
from headtohead.experiment import inference, model_io
from headtohead.experiment.run_folder import SCHEMA_VERSION, compute_run_identity
from headtohead.experiment.versions import collect_versions
from headtohead.generation.generate import sample_continuation_ids
from headtohead.model_cost import ModelCost, compute_model_cost
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.init import compute_tensor_hashes
from headtohead.nn.parts import registry
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.pretrained.layer_dropping import StudentModel
from headtohead.training import devices
from headtohead.training.distillation_batches import DistillationObjective
from headtohead.training.loop import (
    EVALUATION_BATCH_SIZE,
    Trainer,
    TrainingProgress,
    TrainingResult,
    summarize_evaluation,
)
from headtohead.training.objectives import Evaluation, Objective, build_objective
from headtohead.training.processes import SINGLE_PROCESS, SingleProcess, check_rows_independent
from headtohead.trials import length_generalization
from headtohead.trials.dataset import Dataset, prepare_dataset

NUM_TRAIN_EVAL_EXAMPLES = 256
"""how many rows or blocks of the training text are scored along the way"""
SAMPLE_MAX_NEW_TOKENS = 30
AUDIT_BATCH_SIZE = 8


def build_initial_model(
    trial: experiment.Trial, dataset: Dataset
) -> Transformer | CustomModel | EncoderClassifier | StudentModel:
    """The trial's model at step 0."""
    vocab = dataset.tokenizer.vocab_size
    if isinstance(trial.model, pretrained.PretrainedModelConfig):
        return build_model(trial.model, vocab, dataset.classes, seed=trial.seed)
    shown = batches.count_tokens(dataset.encoded["train"], vocab)
    return build_model(trial.model, vocab, dataset.classes, seed=trial.seed, token_counts=shown)


def run_trial(
    trial: experiment.Trial,
    folder: Path,
    *,
    device: str = "auto",
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None,
    ranks: SingleProcess = SINGLE_PROCESS,
    model_size: ModelCost | None = None,
) -> dict[str, Any]:
    """Train, test and save one trial in its folder; continues what is there. Gives the result as it is written. Of
    several processes that train it together, the first one writes, and the others give nothing."""
    for file in trial.use:
        registry.load_part_file(file)
    prepared = prepare_dataset(trial.data, trial.task)
    where = ranks.place(devices.select_device(device))
    began = time.perf_counter()
    model, training = build_training(trial, prepared, folder, where, on_progress, ranks=ranks, model_size=model_size)
    trained = training.run()
    found = evaluate_splits(trial, prepared, model, where, training.evaluations, ranks)
    if not ranks.is_main_process:
        return {}
    _write_scores(folder, found)
    more = _write_summaries(trial, prepared, model, folder)
    if not trial.choosing:
        _write_audits(trial, prepared, model, folder)
        _write_probes(trial, prepared, model, folder)
        _write_head_analysis(trial, prepared, model, folder)
        _write_length_generalization(trial, prepared, model, folder)
        model_io.save(folder, model, prepared.tokenizer, trial, prepared.corpus.label_names)
    result = _build_result(trial, folder, trained, found, time.perf_counter() - began) | more
    write_json(folder / "result.json", result, fsync=True, with_checksum=True)
    remove_checkpoints(folder)
    return result


def build_training(
    trial: experiment.Trial,
    dataset: Dataset,
    folder: Path,
    device: torch.device,
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None,
    *,
    use_teacher: bool = True,
    ranks: SingleProcess = SINGLE_PROCESS,
    model_size: ModelCost | None = None,
) -> tuple[Transformer | CustomModel | EncoderClassifier | StudentModel, Trainer]:
    """The model at step 0 and its training, in a folder that belongs to this trial and no other. Without `taught`, a
    teacher's work is not done: people's texts stand in for it. `sizes` are counted unless they are given."""
    vocab = dataset.tokenizer.vocab_size
    model = build_initial_model(trial, dataset)
    schedule, objective = build_batches_and_objective(trial, dataset, use_teacher=use_teacher)
    followed = {
        name: _build_examples(dataset, name, trial)
        for name, split in dataset.corpus.splits.items()
        if split.role in ("train", "validation") or name in trial.data.watch
    }
    training = Trainer(
        model,
        objective,
        schedule,
        trial.training,
        trial.seed,
        folder,
        followed,
        device,
        on_progress,
        ranks,
        _find_unseen_rows(dataset, trial),
    )
    if ranks.size > 1:
        check_rows_independent(model)
    if ranks.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        _claim_run_folder(trial, dataset, folder)
    if ranks.is_main_process and (folder / "start.json").is_file():
        verify_checksum(folder / "start.json", f"remove {folder} to start the trial anew")
    elif ranks.is_main_process:
        model_size = model_size or compute_model_size(trial, dataset)
        start = {
            "schema": SCHEMA_VERSION,
            "tensors": compute_tensor_hashes(model),
            "schedule": schedule.digest(training.steps),
            "steps": training.steps,
            "steps_per_epoch": schedule.steps_per_epoch,
            "vocabulary": vocab,
            "classes": dataset.classes,
            **asdict(model_size),
            "device": device.type,
            "breaks": sorted(model.violates) if isinstance(model, Transformer) else [],
            "versions": collect_versions(),
        }
        write_json(folder / "start.json", start, with_checksum=True)
    model.to(device)
    return model, training


def compute_model_size(trial: experiment.Trial, dataset: Dataset) -> ModelCost:
    """What the trial's model is and costs."""
    return compute_model_cost(
        trial.model, dataset.tokenizer.vocab_size, dataset.classes, batch_size=trial.training.batch_size
    )


def build_batches_and_objective(
    trial: experiment.Trial, dataset: Dataset, *, use_teacher: bool = True
) -> tuple[BatchSchedule, Objective]:
    """What is learned from: batches, and what is minimised."""
    if trial.task == "distil":
        found = build_distillation_data(trial, dataset, run_trial, use_teacher=use_teacher)
        return found.schedule(trial, dataset.tokenizer), found.objective
    context, tokenizer = trial.model.context, dataset.tokenizer
    schedule = BatchSchedule(
        dataset.encoded["train"], trial.spec.target, trial.training, trial.data, context, trial.seed, tokenizer
    )
    return schedule, _build_objective(trial)


def _claim_run_folder(trial: experiment.Trial, dataset: Dataset, folder: Path) -> None:
    identity = compute_run_identity(trial, dataset.corpus.digest)
    path = folder / "trial.json"
    if path.is_file():
        verify_checksum(path, f"remove {folder} to start the trial anew")
        there = read_json_object(path).get("identity")
        if there != identity:
            raise RunFolderError(f"{folder}: holds a run of a different trial ({there}, this is {identity})")
    else:
        dumped = trial.model_dump(mode="json")
        about = {"schema": SCHEMA_VERSION, "identity": identity, "corpus": dataset.corpus.digest, "trial": dumped}
        write_json(path, about, with_checksum=True)
    (folder / "failure.json").unlink(missing_ok=True)


def _find_unseen_rows(dataset: Dataset, trial: experiment.Trial) -> dict[str, tuple[str, NDArray[np.intp]]]:
    """Of the held-out texts that are plotted along the way, the rows that do not stand in train, where some do."""
    found = {}
    for name in trial.data.watch:
        encoded = dataset.encoded[name]
        if not isinstance(encoded, batches.TokenRows):
            continue
        rows = np.flatnonzero(leakage.compute_unseen_mask(dataset.corpus, name))
        if 0 < len(rows) < len(encoded):
            found[f"{name}, unseen rows"] = name, rows
    return found


def _build_examples(dataset: Dataset, split: str, trial: experiment.Trial) -> EvaluationExamples:
    encoded = dataset.encoded[split]
    if isinstance(encoded, PromptedRows):
        found: EvaluationExamples = build_prompted_examples(encoded, trial.model.context, dataset.tokenizer.pad_id or 0)
    else:
        found = examples.build_evaluation_examples(encoded, trial.spec.target, trial.model.context, dataset.tokenizer)
    # Scoring all of train would cost more than training: an even sample of it shows the curve.
    return found.sample(NUM_TRAIN_EVAL_EXAMPLES) if split == "train" else found


def evaluate_splits(
    trial: experiment.Trial,
    dataset: Dataset,
    model: Any,
    device: torch.device,
    known_evaluations: Mapping[str, Evaluation] = MappingProxyType({}),
    ranks: SingleProcess = SINGLE_PROCESS,
) -> dict[str, Evaluation]:
    """Every split once, with the weights that were chosen; a search scores validation data only. This is the only
    place where test data is read whole. What was `scored` with these weights already is not scored again."""
    objective = _build_objective(trial)
    return {
        name: known_evaluations.get(name)
        or ranks.evaluate(
            model, objective, _build_examples(dataset, name, trial).batches(EVALUATION_BATCH_SIZE), device
        )
        for name, split in dataset.corpus.splits.items()
        if split.role == "validation" or not trial.choosing
    }


def _build_objective(trial: experiment.Trial) -> Objective:
    """What is measured, and minimised where nobody teaches."""
    return DistillationObjective() if trial.task == "distil" else build_objective(trial.spec.target)


def _write_scores(folder: Path, evaluations: dict[str, Evaluation]) -> None:
    arrays: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    for name, evaluation in evaluations.items():
        arrays |= {f"{name}.{column}": values for column, values in evaluation.columns.items()}
    write_bytes(folder / "scores.safetensors", pack(arrays))


def _write_audits(trial: experiment.Trial, dataset: Dataset, model: Any, folder: Path) -> None:
    """Audit the trained model. Once a variant is enough: another seed is the same network with other numbers."""
    if trial.seed != 0:
        return
    tokenizer, target = dataset.tokenizer, trial.spec.target
    batch = next(_build_examples(dataset, "train", trial).batches(AUDIT_BATCH_SIZE))
    initial = build_initial_model(trial, dataset)
    found = [
        *initialization.audit_untrained_model(
            initial, batch, target=target, vocab_size=tokenizer.vocab_size, num_classes=dataset.classes
        ),
        *model_audit.audit_model(
            model.cpu(),
            target=target,
            vocab_size=tokenizer.vocab_size,
            context=trial.model.context,
            num_classes=dataset.classes,
            pad_id=tokenizer.pad_id,
        ),
    ]
    write_json(folder / "audits.json", {"schema": SCHEMA_VERSION, "audits": [finding.to_dict() for finding in found]})


def _write_probes(trial: experiment.Trial, dataset: Dataset, model: Any, folder: Path) -> None:
    """Try the probe texts: samples for prompts, a score or a class for sentences, maps of the first of them."""
    tokenizer = dataset.tokenizer
    model.eval().cpu()
    loaded = model_io.SavedModel(model, tokenizer, trial.spec.target, dataset.corpus.label_names, trial, folder)
    samples = []
    for prompt in trial.probe.prompts if trial.spec.target.is_causal else ():
        for sample in range(trial.probe.samples):
            seed = rng.derive_seed(trial.seed, "sample", sample) if sample else trial.seed
            made = sample_continuation_ids(
                model, tokenizer.encode(prompt), SAMPLE_MAX_NEW_TOKENS, seed=seed, stop_token_id=tokenizer.eos_id
            )
            samples.append({"prompt": prompt, "text": tokenizer.decode(made)})
    sentences = {}
    for name, text in trial.probe.sentences.items():
        sentences[name] = (
            inference.predict_class(loaded, text) if trial.spec.target.is_class else inference.score_text(loaded, text)
        )
    write_json(folder / "probes.json", {"samples": samples, "sentences": sentences})
    texts = [*trial.probe.sentences.values(), *trial.probe.prompts]
    if texts and isinstance(model, Transformer):
        _write_attention_maps(trial, dataset, model, texts[0], folder)


def _write_summaries(trial: experiment.Trial, dataset: Dataset, model: Any, folder: Path) -> dict[str, Any]:
    """What a student writes about the held-out documents, measured; and how long one takes, once a variant."""
    if dataset.documents is None or trial.teacher is None or trial.choosing:
        return {}
    model.eval().cpu()
    how, longest = build_teacher_strategy(trial.teacher), trial.teacher.max_new_tokens
    prompts = build_summary_prompts(trial.data, dataset, dataset.tokenizer, "test")
    made = summarization.generate_summaries(model, dataset.tokenizer, prompts, how, longest)
    (folder / summarization.SUMMARIES_FILE).unlink(missing_ok=True)
    for document, one in zip(dataset.documents.splits["test"], made, strict=True):
        append_jsonl(folder / summarization.SUMMARIES_FILE, summarization.score_summary(document, one.text, one.ended))
    if trial.seed != 0:
        return {}
    return {
        "seconds_per_summary": summarization.measure_seconds_per_summary(
            model, dataset.tokenizer, prompts, how, longest
        )
    }


def _write_head_analysis(trial: experiment.Trial, dataset: Dataset, model: Any, folder: Path) -> None:
    """What each head does, on validation text where there is some: nothing is chosen by it."""
    if isinstance(model, Transformer):
        chosen = [split.name for split in dataset.corpus.splits.values() if split.role == "validation"]
        (name, *_) = [*chosen, *(split.name for split in dataset.corpus.get_test_splits()), "train"]
        trial_metrics.write_head_measures(folder, model, _build_examples(dataset, name, trial), dataset.tokenizer, name)


def _write_length_generalization(trial: experiment.Trial, dataset: Dataset, model: Any, folder: Path) -> None:
    """What the probe asks about other lengths of input. Costs are measured once a variant."""
    tested, measured = trial.probe.contexts, trial.probe.costs if trial.seed == 0 else ()
    if not tested and not measured:
        return
    held_out = {split.name: dataset.encoded[split.name] for split in dataset.corpus.get_test_splits()}
    found = {
        "schema": SCHEMA_VERSION,
        "contexts": length_generalization.evaluate_at_lengths(
            model, trial.spec.target, dataset.tokenizer, held_out, tested
        ),
        "costs": length_generalization.measure_costs_at_lengths(
            trial.model, dataset.tokenizer.vocab_size, dataset.classes, measured
        ),
    }
    write_json(folder / "lengths.json", found)


def _write_attention_maps(
    trial: experiment.Trial, dataset: Dataset, model: Transformer, text: str, folder: Path
) -> None:
    """Attention before and after training on one text, for the report."""
    ids = dataset.tokenizer.encode(text)[: trial.model.context]
    before = build_initial_model(trial, dataset).eval()
    arrays = {}
    with torch.no_grad():
        for when, one in (("before", before), ("after", model)):
            for layer, maps in enumerate(one(torch.tensor([ids]), output_attentions=True).attentions or ()):
                arrays[f"{when}.{layer}"] = maps[0].to(torch.float32).numpy()
    write_bytes(folder / "maps.safetensors", pack(arrays))
    write_json(folder / "maps.json", {"text": text, "tokens": [dataset.tokenizer.id_to_token(i) for i in ids]})


def _build_result(
    trial: experiment.Trial,
    folder: Path,
    training_summary: TrainingResult,
    evaluations: dict[str, Evaluation],
    seconds: float,
) -> dict[str, Any]:
    metric = build_objective(trial.spec.target).metric
    kept = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    sums = {
        str(p.relative_to(folder)): compute_sha256(p)
        for p in kept
        if not p.is_relative_to(folder / "own" / "__pycache__")
        and not p.relative_to(folder).parts[0].startswith(("checkpoint-", "best-"))
        and p.name not in ("result.json", "failure.json")
    }
    trained_row = {k: (None if v != v else v) for k, v in asdict(training_summary).items()}
    return {
        "schema": SCHEMA_VERSION,
        "variant": trial.variant,
        "seed": trial.seed,
        "metric": metric,
        "scores": {name: summarize_evaluation(evaluation, metric) for name, evaluation in evaluations.items()},
        "trained": trained_row,
        "trial_seconds": round(seconds, 3),
        "sha256": sums,
    }


def remove_checkpoints(folder: Path) -> None:
    """The checkpoints have done their work once the result is there."""
    for rest in folder.glob("checkpoint-*"):
        shutil.rmtree(rest, ignore_errors=True)
    for weights in folder.glob("best-*.safetensors"):
        weights.unlink(missing_ok=True)


def estimate_seconds(trial: experiment.Trial, folder: Path, *, num_steps: int = 3) -> float:
    """Seconds that a trial will take, from a few real steps and one evaluation of the followed texts."""
    prepared = prepare_dataset(trial.data, trial.task)
    model, training = build_training(trial, prepared, folder, devices.select_device("auto"), use_teacher=False)
    model.train()
    before = devices.set_num_threads(1)  # as in a worker
    training._step(0)
    began = time.perf_counter()
    for step in range(num_steps):
        training._step(step)
    one_step = (time.perf_counter() - began) / num_steps
    devices.set_num_threads(before)
    examples = sum(e.count / e.stride for e in training.tracked_examples.values())
    evaluations = 2 + training.steps // training.evaluate_every
    # An evaluation is a forward pass: about a third of a step's work for each row.
    return training.steps * one_step + evaluations * examples / trial.training.batch_size * one_step / 3
