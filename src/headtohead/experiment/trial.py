"""One trial: a pure function from (settings, seed, corpus) to a run folder."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save as pack

from headtohead import rng
from headtohead.atomic_io import append_line, check_seal, read_table, sha256, write_bytes, write_json
from headtohead.attention_analysis import trial_metrics
from headtohead.audit import model_audit
from headtohead.audit.data_checks import leakage
from headtohead.audit.model_checks import initialization
from headtohead.config import data as config_data
from headtohead.config import experiment, pretrained
from headtohead.data import batches, examples, splits, token_cache
from headtohead.data.batches import Schedule
from headtohead.data.examples import Examples
from headtohead.data.sft import Prompted, prompted_examples
from headtohead.data.sources import loading
from headtohead.data.sources.documents import Documents
from headtohead.data.splits import Corpus
from headtohead.data.tokenizers import Tokenizer
from headtohead.distillation import summarization, teacher
from headtohead.errors import RunFolderError
from headtohead.experiment import encoder_inputs, inference, length_generalization, model_io
from headtohead.experiment.run_folder import SCHEMA, identity_of
from headtohead.generation.generate import continue_ids
from headtohead.nn.custom_model import OwnModel
from headtohead.nn.flops import Count, count
from headtohead.nn.init import create, tensor_hashes
from headtohead.nn.parts import registry
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.classifier import FineTuned
from headtohead.pretrained.layer_dropping import Learner
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.training import devices
from headtohead.training.distillation_batches import Student
from headtohead.training.loop import EVALUATION_BATCH, Progress, Trained, Training, scores_of
from headtohead.training.objectives import Evaluation, Objective, objective_of
from headtohead.training.processes import ALONE, Alone, check_separable

TRAIN_EXAMPLES = 256
"""how many rows or blocks of the training text are scored along the way"""
SAMPLE_TOKENS = 30
AUDIT_ROWS = 8


@dataclass(frozen=True)
class Prepared:
    """A corpus as tokens: what all trials with the same data share."""

    corpus: Corpus
    tokenizer: Tokenizer | PretrainedTokenizer
    encoded: dict[str, Any]
    documents: Documents | None = None
    """with people's summaries, where that is what the texts are"""

    @property
    def classes(self) -> int | None:
        return len(self.corpus.label_names) if self.corpus.task == "classify" else None


def prepare(data: config_data.Data, task: experiment.Task) -> Prepared:
    """Read, split and tokenise, or map what was tokenised before; once a process for the same data."""
    return _prepare(data.model_dump_json(), task)


@lru_cache(maxsize=4)
def _prepare(data_json: str, task: experiment.Task) -> Prepared:
    data = config_data.Data.model_validate(json.loads(data_json))
    if task == "finetune":
        texts = loading.load(data, "classify")
        pretrained = encoder_inputs.read_tokenizer(data.tokens)
        return Prepared(texts, pretrained, encoder_inputs.encode(texts, pretrained, data.tokens))
    if task == "distil" and data.tokens.kind == "pretrained":
        return Prepared(*summarization.prepare(data))
    kind: splits.Task = "classify" if task == "classify" else "language-model"
    found = token_cache.tokenised(data, kind)
    return Prepared(found.corpus, found.tokenizer, found.encoded)


def initial_model(trial: experiment.Trial, prepared: Prepared) -> Transformer | OwnModel | FineTuned | Learner:
    """The trial's model at step 0."""
    vocab = prepared.tokenizer.vocab_size
    if isinstance(trial.model, pretrained.Pretrained):
        return create(trial.model, vocab, prepared.classes, seed=trial.seed)
    shown = batches.word_counts(prepared.encoded["train"], vocab)
    return create(trial.model, vocab, prepared.classes, seed=trial.seed, frequencies=shown)


def run_trial(
    trial: experiment.Trial,
    folder: Path,
    *,
    device: str = "auto",
    tell: Callable[[Progress], None] = lambda progress: None,
    ranks: Alone = ALONE,
    sizes: Count | None = None,
) -> dict[str, Any]:
    """Train, test and save one trial in its folder; continues what is there. Gives the result as it is written. Of
    several processes that train it together, the first one writes, and the others give nothing."""
    for file in trial.use:
        registry.use(file)
    prepared = prepare(trial.data, trial.task)
    where = ranks.place(devices.choose(device))
    began = time.perf_counter()
    model, training = begin(trial, prepared, folder, where, tell, ranks=ranks, sizes=sizes)
    trained = training.run()
    found = evaluate_splits(trial, prepared, model, where, training.scored, ranks)
    if not ranks.is_first:
        return {}
    _write_scores(folder, found)
    more = _summaries(trial, prepared, model, folder)
    if not trial.choosing:
        _audit(trial, prepared, model, folder)
        _probe(trial, prepared, model, folder)
        _heads(trial, prepared, model, folder)
        _lengths(trial, prepared, model, folder)
        model_io.save(folder, model, prepared.tokenizer, trial, prepared.corpus.label_names)
    result = _result(trial, folder, trained, found, time.perf_counter() - began) | more
    write_json(folder / "result.json", result, durable=True, sealed=True)
    sweep(folder)
    return result


def begin(
    trial: experiment.Trial,
    prepared: Prepared,
    folder: Path,
    device: torch.device,
    tell: Callable[[Progress], None] = lambda progress: None,
    *,
    taught: bool = True,
    ranks: Alone = ALONE,
    sizes: Count | None = None,
) -> tuple[Transformer | OwnModel | FineTuned | Learner, Training]:
    """The model at step 0 and its training, in a folder that belongs to this trial and no other. Without `taught`, a
    teacher's work is not done: people's texts stand in for it. `sizes` are counted unless they are given."""
    vocab = prepared.tokenizer.vocab_size
    model = initial_model(trial, prepared)
    schedule, objective = lesson(trial, prepared, taught=taught)
    followed = {
        name: _examples(prepared, name, trial)
        for name, split in prepared.corpus.splits.items()
        if split.role in ("train", "validation") or name in trial.data.watch
    }
    training = Training(
        model,
        objective,
        schedule,
        trial.training,
        trial.seed,
        folder,
        followed,
        device,
        tell,
        ranks,
        _unseen(prepared, trial),
    )
    if ranks.size > 1:
        check_separable(model)
    if ranks.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        _claim(trial, prepared, folder)
    if ranks.is_first and (folder / "start.json").is_file():
        check_seal(folder / "start.json", f"remove {folder} to start the trial anew")
    elif ranks.is_first:
        sizes = sizes or sizes_of(trial, prepared)
        start = {
            "schema": SCHEMA,
            "tensors": tensor_hashes(model),
            "schedule": schedule.digest(training.steps),
            "steps": training.steps,
            "steps_per_epoch": schedule.steps_per_epoch,
            "vocabulary": vocab,
            "classes": prepared.classes,
            **asdict(sizes),
            "device": device.type,
            "breaks": sorted(model.breaks) if isinstance(model, Transformer) else [],
            "versions": versions(),
        }
        write_json(folder / "start.json", start, sealed=True)
    model.to(device)
    return model, training


def sizes_of(trial: experiment.Trial, prepared: Prepared) -> Count:
    """What the trial's model is and costs."""
    return count(trial.model, prepared.tokenizer.vocab_size, prepared.classes, batch=trial.training.batch)


def lesson(trial: experiment.Trial, prepared: Prepared, *, taught: bool = True) -> tuple[Schedule, Objective]:
    """What is learned from: batches, and what is minimised."""
    if trial.task == "distil":
        found = teacher.lesson_of(trial, prepared, taught=taught)
        return found.schedule(trial, prepared.tokenizer), found.objective
    context, tokenizer = trial.model.context, prepared.tokenizer
    schedule = Schedule(
        prepared.encoded["train"], trial.goal, trial.training, trial.data, context, trial.seed, tokenizer
    )
    return schedule, _objective(trial)


def _claim(trial: experiment.Trial, prepared: Prepared, folder: Path) -> None:
    identity = identity_of(trial, prepared.corpus.digest)
    path = folder / "trial.json"
    if path.is_file():
        check_seal(path, f"remove {folder} to start the trial anew")
        there = read_table(path).get("identity")
        if there != identity:
            raise RunFolderError(f"{folder}: holds a run of a different trial ({there}, this is {identity})")
    else:
        dumped = trial.model_dump(mode="json")
        about = {"schema": SCHEMA, "identity": identity, "corpus": prepared.corpus.digest, "trial": dumped}
        write_json(path, about, sealed=True)
    (folder / "failure.json").unlink(missing_ok=True)


def _unseen(prepared: Prepared, trial: experiment.Trial) -> dict[str, tuple[str, NDArray[np.intp]]]:
    """Of the held-out texts that are plotted along the way, the rows that do not stand in train, where some do."""
    found = {}
    for name in trial.data.watch:
        encoded = prepared.encoded[name]
        if not isinstance(encoded, batches.Rows):
            continue
        rows = np.flatnonzero(leakage.unseen_rows(prepared.corpus, name))
        if 0 < len(rows) < len(encoded):
            found[f"{name}, unseen rows"] = name, rows
    return found


def _examples(prepared: Prepared, name: str, trial: experiment.Trial) -> Examples:
    encoded = prepared.encoded[name]
    if isinstance(encoded, Prompted):
        found: Examples = prompted_examples(encoded, trial.model.context, prepared.tokenizer.pad_id or 0)
    else:
        found = examples.examples(encoded, trial.goal, trial.model.context, prepared.tokenizer)
    # Scoring all of train would cost more than training: an even sample of it shows the curve.
    return found.sample(TRAIN_EXAMPLES) if name == "train" else found


def evaluate_splits(
    trial: experiment.Trial,
    prepared: Prepared,
    model: Any,
    device: torch.device,
    scored: Mapping[str, Evaluation] = MappingProxyType({}),
    ranks: Alone = ALONE,
) -> dict[str, Evaluation]:
    """Every split once, with the weights that were chosen; a search scores validation data only. This is the only
    place where test data is read whole. What was `scored` with these weights already is not scored again."""
    objective = _objective(trial)
    return {
        name: scored.get(name)
        or ranks.evaluate(model, objective, _examples(prepared, name, trial).batches(EVALUATION_BATCH), device)
        for name, split in prepared.corpus.splits.items()
        if split.role == "validation" or not trial.choosing
    }


def _objective(trial: experiment.Trial) -> Objective:
    """What is measured, and minimised where nobody teaches."""
    return Student() if trial.task == "distil" else objective_of(trial.goal)


def _write_scores(folder: Path, found: dict[str, Evaluation]) -> None:
    arrays: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    for name, evaluation in found.items():
        arrays |= {f"{name}.{column}": values for column, values in evaluation.columns.items()}
    write_bytes(folder / "scores.safetensors", pack(arrays))


def _audit(trial: experiment.Trial, prepared: Prepared, model: Any, folder: Path) -> None:
    """Audit the trained model. Once a variant is enough: another seed is the same network with other numbers."""
    if trial.seed != 0:
        return
    tokenizer, task = prepared.tokenizer, trial.goal
    batch = next(_examples(prepared, "train", trial).batches(AUDIT_ROWS))
    initial = initial_model(trial, prepared)
    found = [
        *initialization.audit_start(initial, batch, task=task, vocab=tokenizer.vocab_size, classes=prepared.classes),
        *model_audit.audit_model(
            model.cpu(),
            task=task,
            vocab=tokenizer.vocab_size,
            context=trial.model.context,
            classes=prepared.classes,
            pad_id=tokenizer.pad_id,
        ),
    ]
    write_json(folder / "audits.json", {"schema": SCHEMA, "audits": [finding.as_row() for finding in found]})


def _probe(trial: experiment.Trial, prepared: Prepared, model: Any, folder: Path) -> None:
    """Try the probe texts: samples for prompts, a score or a class for sentences, maps of the first of them."""
    tokenizer = prepared.tokenizer
    model.eval().cpu()
    loaded = model_io.Saved(model, tokenizer, trial.goal, prepared.corpus.label_names, trial, folder)
    samples = []
    for prompt in trial.probe.prompts if trial.goal == "language-model" else ():
        for sample in range(trial.probe.samples):
            seed = rng.key(trial.seed, "sample", sample) if sample else trial.seed
            made = continue_ids(model, tokenizer.encode(prompt), SAMPLE_TOKENS, seed=seed, stop_id=tokenizer.stop_id)
            samples.append({"prompt": prompt, "text": tokenizer.decode(made)})
    sentences = {}
    for name, text in trial.probe.sentences.items():
        sentences[name] = inference.predict(loaded, text) if trial.goal == "classify" else inference.score(loaded, text)
    write_json(folder / "probes.json", {"samples": samples, "sentences": sentences})
    texts = [*trial.probe.sentences.values(), *trial.probe.prompts]
    if texts and isinstance(model, Transformer):
        _write_maps(trial, prepared, model, texts[0], folder)


def _summaries(trial: experiment.Trial, prepared: Prepared, model: Any, folder: Path) -> dict[str, Any]:
    """What a student writes about the held-out documents, measured; and how long one takes, once a variant."""
    if prepared.documents is None or trial.teacher is None or trial.choosing:
        return {}
    model.eval().cpu()
    how, longest = teacher.chosen_strategy(trial.teacher), trial.teacher.max_new_tokens
    prompts = teacher.questions(trial.data, prepared, prepared.tokenizer, "test")
    made = summarization.write(model, prepared.tokenizer, prompts, how, longest)
    (folder / summarization.FILE).unlink(missing_ok=True)
    for document, one in zip(prepared.documents.splits["test"], made, strict=True):
        append_line(folder / summarization.FILE, summarization.line_of(document, one.text, one.ended))
    if trial.seed != 0:
        return {}
    return {"seconds_per_summary": summarization.seconds_each(model, prepared.tokenizer, prompts, how, longest)}


def _heads(trial: experiment.Trial, prepared: Prepared, model: Any, folder: Path) -> None:
    """What each head does, on validation text where there is some: nothing is chosen by it."""
    if isinstance(model, Transformer):
        chosen = [split.name for split in prepared.corpus.splits.values() if split.role == "validation"]
        (name, *_) = [*chosen, *(split.name for split in prepared.corpus.held_out()), "train"]
        trial_metrics.write(folder, model, _examples(prepared, name, trial), prepared.tokenizer, name)


def _lengths(trial: experiment.Trial, prepared: Prepared, model: Any, folder: Path) -> None:
    """What the probe asks about other lengths of input. Costs are measured once a variant."""
    tested, measured = trial.probe.contexts, trial.probe.costs if trial.seed == 0 else ()
    if not tested and not measured:
        return
    held_out = {split.name: prepared.encoded[split.name] for split in prepared.corpus.held_out()}
    found = {
        "schema": SCHEMA,
        "contexts": length_generalization.test_at(model, trial.goal, prepared.tokenizer, held_out, tested),
        "costs": length_generalization.costs_at(trial.model, prepared.tokenizer.vocab_size, prepared.classes, measured),
    }
    write_json(folder / "lengths.json", found)


def _write_maps(trial: experiment.Trial, prepared: Prepared, model: Transformer, text: str, folder: Path) -> None:
    """Attention before and after training on one text, for the report."""
    ids = prepared.tokenizer.encode(text)[: trial.model.context]
    before = initial_model(trial, prepared).eval()
    arrays = {}
    with torch.no_grad():
        for when, one in (("before", before), ("after", model)):
            for layer, maps in enumerate(one(torch.tensor([ids]), maps=True).maps or ()):
                arrays[f"{when}.{layer}"] = maps[0].to(torch.float32).numpy()
    write_bytes(folder / "maps.safetensors", pack(arrays))
    write_json(folder / "maps.json", {"text": text, "tokens": [prepared.tokenizer.token(i) for i in ids]})


def _result(
    trial: experiment.Trial, folder: Path, trained: Trained, found: dict[str, Evaluation], seconds: float
) -> dict[str, Any]:
    metric = objective_of(trial.goal).metric
    kept = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    sums = {
        str(p.relative_to(folder)): sha256(p)
        for p in kept
        if not p.is_relative_to(folder / "own" / "__pycache__")
        and not p.relative_to(folder).parts[0].startswith(("checkpoint-", "best-"))
        and p.name not in ("result.json", "failure.json")
    }
    trained_row = {k: (None if v != v else v) for k, v in asdict(trained).items()}
    return {
        "schema": SCHEMA,
        "variant": trial.variant,
        "seed": trial.seed,
        "metric": metric,
        "scores": {name: scores_of(evaluation, metric) for name, evaluation in found.items()},
        "trained": trained_row,
        "trial_seconds": round(seconds, 3),
        "sha256": sums,
    }


def sweep(folder: Path) -> None:
    """The checkpoints have done their work once the result is there."""
    for rest in folder.glob("checkpoint-*"):
        shutil.rmtree(rest, ignore_errors=True)
    for weights in folder.glob("best-*.safetensors"):
        weights.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    return {
        "headtohead": metadata.version("headtohead"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def estimate(trial: experiment.Trial, folder: Path, *, steps: int = 3) -> float:
    """Seconds that a trial will take, from a few real steps and one evaluation of the followed texts."""
    prepared = prepare(trial.data, trial.task)
    model, training = begin(trial, prepared, folder, devices.choose("auto"), taught=False)
    model.train()
    before = devices.threads(1)  # as in a worker
    training._step(0)
    began = time.perf_counter()
    for step in range(steps):
        training._step(step)
    one_step = (time.perf_counter() - began) / steps
    devices.threads(before)
    examples = sum(e.count / e.stride for e in training.followed.values())
    evaluations = 2 + training.steps // training.evaluate_every
    # An evaluation is a forward pass: about a third of a step's work for each row.
    return training.steps * one_step + evaluations * examples / trial.training.batch * one_step / 3
