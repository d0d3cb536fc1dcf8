"""Run one trial: a pure function of its settings, seed and corpus that fills a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import torch

from headtohead.audit.opened_files import (
    check_opened_files,
    compute_file_digests,
    list_opened_files,
    list_written_files,
    record_opened_files,
)
from headtohead.config.experiment import Trial
from headtohead.errors import RunFolderError
from headtohead.experiment import schemas
from headtohead.experiment.provenance.environment import collect_versions
from headtohead.experiment.provenance.run_identity import compute_run_identity, describe_dependencies
from headtohead.experiment.provenance.user_files import find_code_files
from headtohead.json_files import verify_json_checksum
from headtohead.model_cost import ModelCost
from headtohead.nn.parts import registry
from headtohead.nn.seeded_init import list_differently_initialized_tensors
from headtohead.nn.tensor_hashes import compute_tensor_hashes
from headtohead.nn.transformer import Transformer
from headtohead.saved_models import model_io
from headtohead.tasks.base import TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.hardware import devices
from headtohead.training.loop import Trainer
from headtohead.training.optimization.gradients import check_batch_can_be_split
from headtohead.training.parallel.single_process import SINGLE_PROCESS, SingleProcess
from headtohead.training.training_progress import TrainingProgress
from headtohead.trials import analyses, result_files
from headtohead.trials.evaluation import (
    audit_trial_scores,
    audit_trial_training,
    describe_scored_splits,
    evaluate_splits,
    find_unseen_rows,
)
from headtohead.trials.pass_counts import count_passes_after_training
from headtohead.trials.step_cost import compute_trial_model_cost


def run_trial(
    trial: Trial,
    folder: Path,
    *,
    device: str = "auto",
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None,
    ranks: SingleProcess = SINGLE_PROCESS,
    model_cost: ModelCost | None = None,
) -> schemas.ResultFile | None:
    """Train, evaluate and save one trial in its folder, resuming from its latest checkpoint if there is one.

    Args:
        trial: Settings, variant and seed.
        folder: The run folder.
        device: Device to train on; "auto" selects one.
        on_progress: Called with the progress of training.
        ranks: Collective operations, if several processes train the trial together.
        model_cost: Size and cost of the model; computed by default.

    Returns:
        The content of result.json; None in processes other than the main one, which writes all files.
    """
    with record_opened_files():
        for file in trial.plugins:
            registry.load_plugin(file)
        task, dataset = get_task(trial.task), prepare_dataset(trial.data, trial.task)
        selected_device = ranks.select_device(devices.select_device(device))
        start_time = time.perf_counter()
        model, trainer = build_training(
            trial, dataset, folder, selected_device, on_progress, ranks=ranks, model_cost=model_cost
        )
        # Train, then score every split with the selected weights.
        training_result = trainer.run()
        known_evaluations = trainer.complete_evaluations
        del trainer  # frees the optimizer state: audits need memory for several copies of the model
        evaluations = evaluate_splits(trial, dataset, model, selected_device, known_evaluations, ranks)
        if not ranks.is_main_process:
            return None
        # Audit the scores before anything else runs the model.
        scoring_audits = []
        if not trial.is_search:
            scoring_audits = audit_trial_scores(trial, dataset, model, selected_device, evaluations)
            initial_hashes = schemas.read_record(folder / "start.json", schemas.StartFile).tensor_hashes
            scoring_audits += audit_trial_training(
                trial, dataset, model, selected_device, initial_hashes, training_result.chosen_step
            )
    opened_files: list[Path] = []
    if code_files := find_code_files(trial):
        opened_files = list_opened_files(code_files.values())
        scoring_audits.append(check_opened_files(opened_files, code_files.values(), dataset.corpus))
    result_files.write_scores(folder, evaluations, describe_scored_splits(trial, dataset, evaluations))
    task_result = task.write_outputs(trial, dataset, model, folder)
    if not trial.is_search:
        get_initial_model = cache(partial(build_initial_model, trial, dataset))
        trained_trial = analyses.TrainedTrial(task, trial, dataset, model, get_initial_model)
        analyses.write_analyses(trained_trial, folder, scoring_audits)
        model_io.save_model(folder, model, dataset.tokenizer, trial, dataset.label_names)
    # result.json is written last and marks the run as finished.
    seconds = time.perf_counter() - start_time
    result = result_files.build_result(
        trial,
        folder,
        training_result,
        evaluations,
        seconds,
        {**task_result, "opened_files": compute_file_digests(opened_files), "written_files": list_written_files()},
    )
    schemas.write_record(folder / "result.json", result, fsync=True, with_checksum=True)
    result_files.remove_checkpoints_of_finished_trial(folder)
    return result


def build_initial_model(trial: Trial, dataset: Dataset, *, with_dependencies: bool = True) -> TrialModel:
    """Build a trial's model at step 0, after training the models that its weights are copied from."""
    return get_task(trial.task).build_model(trial, dataset, run_trial if with_dependencies else None)


def build_training(
    trial: Trial,
    dataset: Dataset,
    folder: Path,
    device: torch.device,
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None,
    *,
    with_dependencies: bool = True,
    ranks: SingleProcess = SINGLE_PROCESS,
    model_cost: ModelCost | None = None,
) -> tuple[TrialModel, Trainer]:
    """Build the model at step 0 and its trainer, and write trial.json and start.json to the folder.

    Args:
        trial: Settings, variant and seed.
        dataset: The encoded corpus.
        folder: The run folder.
        device: Device to train on.
        on_progress: Called with the progress of training.
        with_dependencies: Train teachers and pretrained encoders first. Without them, a trial can be checked and its
            steps can be timed.
        ranks: Collective operations, if several processes train the trial together.
        model_cost: Size and cost of the model; computed by default.
    """
    task = get_task(trial.task)
    model = build_initial_model(trial, dataset, with_dependencies=with_dependencies)
    batches, objective = task.build_training_data(trial, dataset, run_trial if with_dependencies else None)
    # Examples that are evaluated during training; test splits only if the file monitors them.
    tracked_examples = {
        name: task.build_split_examples(trial, dataset, name)
        for name, split in dataset.corpus.splits.items()
        if split.role in ("train", "validation") or name in trial.data.monitor
    }
    trainer = Trainer(
        model,
        objective,
        batches,
        trial.training,
        trial.seed,
        folder,
        tracked_examples,
        device,
        on_progress,
        ranks,
        find_unseen_rows(trial, dataset),
    )
    trainer.passes_after_training = count_passes_after_training(trial, dataset, model, trainer)
    if ranks.world_size > 1:
        check_batch_can_be_split(model, "train on one process (h2h run)")
    if ranks.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        _claim_run_folder(trial, dataset, folder)
    # A resumed trial keeps its start.json; a new one records its initial state.
    if ranks.is_main_process and (folder / "start.json").is_file():
        verify_json_checksum(folder / "start.json", f"remove {folder} to restart the trial")
    elif ranks.is_main_process:
        start = schemas.StartFile(
            tensor_hashes=compute_tensor_hashes(model),
            declared_starts=list_differently_initialized_tensors(model),
            schedule_digest=batches.compute_digest(trainer.total_steps),
            steps=trainer.total_steps,
            steps_per_epoch=batches.steps_per_epoch,
            tokens_per_step=batches.tokens_per_step,
            vocab_size=dataset.tokenizer.vocab_size,
            num_classes=dataset.num_classes,
            **asdict(model_cost or compute_trial_model_cost(trial, dataset)),
            device=device.type,
            violates=sorted(model.violates) if isinstance(model, Transformer) else [],
            versions=collect_versions(),
        )
        schemas.write_record(folder / "start.json", start, with_checksum=True)
    model.to(device)
    return model, trainer


def _claim_run_folder(trial: Trial, dataset: Dataset, folder: Path) -> None:
    """Write trial.json to a new run folder; raise RunFolderError if the folder holds a different trial."""
    identity = compute_run_identity(trial, dataset.corpus.digest, with_data_files=False)
    trial_path = folder / "trial.json"
    if trial_path.is_file():
        verify_json_checksum(trial_path, f"remove {folder} to restart the trial")
        existing_identity = schemas.read_record(trial_path, schemas.TrialFile).identity
        if existing_identity != identity:
            raise RunFolderError(
                f"{folder}: holds a run of a different trial ({existing_identity}, this is {identity})"
            )
    else:
        trial_file = schemas.TrialFile(
            identity=identity,
            corpus_digest=dataset.corpus.digest,
            dependencies=describe_dependencies(trial),
            trial=trial,
        )
        schemas.write_record(trial_path, trial_file, with_checksum=True)
    (folder / "failure.json").unlink(missing_ok=True)
