"""Distillation with other libraries: a plain loop around transformers' GPT-2, and TRL's GKDTrainer.

Both run the teacher at every step and compare all probabilities, (batch, length, vocab), of teacher and student.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .peer_training import IGNORE_INDEX, create_adam
from .workload import TensorBatch


def compute_divergence(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean divergence KL(teacher || student) over predicted positions."""
    is_predicted = labels != IGNORE_INDEX
    divergence = F.kl_div(
        student_logits.log_softmax(-1), teacher_logits.log_softmax(-1), reduction="none", log_target=True
    )
    mean: Tensor = divergence[is_predicted].sum() / is_predicted.sum()
    return mean


def build_plain_steps(
    student: nn.Module, teacher: nn.Module, batches: list[TensorBatch], lr: float
) -> Callable[[], list[float]]:
    """Return a function that trains the student on the batches and returns the losses."""
    optimizer = create_adam(student, lr)
    student.train()
    teacher.eval()

    def run_steps() -> list[float]:
        losses = []
        for input_ids, labels, attention_mask in batches:
            with torch.no_grad():
                teacher_logits = teacher(input_ids, attention_mask)
            loss = compute_divergence(student(input_ids, attention_mask), teacher_logits, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        return losses

    return run_steps


def list_rows(batches: list[TensorBatch]) -> list[dict[str, list[int]]]:
    """Return each row with its last label, as TRL expects it: its labels are the inputs, which TRL shifts."""
    rows = []
    for batch in batches:
        for input_ids, labels, _ in zip(*batch, strict=True):
            token_ids = [int(input_ids[0]), *labels[labels != IGNORE_INDEX].tolist()]
            rows.append({"input_ids": token_ids, "labels": [IGNORE_INDEX, *token_ids[1:]]})
    return rows


def pad_rows(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Return rows as a batch with an attention mask."""
    input_ids, labels = ([torch.tensor(row[name]) for row in rows] for name in ("input_ids", "labels"))
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return {
        "input_ids": pad(input_ids),
        "attention_mask": pad([torch.ones_like(ids) for ids in input_ids]),
        "labels": pad(labels, padding_value=IGNORE_INDEX),
    }


def build_trl_steps(
    student: nn.Module, teacher: nn.Module, batches: list[TensorBatch], lr: float, folder: Path
) -> Callable[[], object]:
    """Return a function that trains the student with TRL's GKDTrainer, on the given rows only (lmbda = 0)."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import datasets
    import transformers
    from tokenizers import Tokenizer, models
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    class SequentialTrainer(GKDTrainer):  # type: ignore[misc]
        """Reads the sequences in order, which gives the batches of the other contestants."""

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = GKDConfig(
        output_dir=str(folder),
        max_steps=len(batches),
        per_device_train_batch_size=len(batches[0][0]),
        learning_rate=lr,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        lmbda=0.0,
        beta=0.0,
        temperature=1.0,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>")), pad_token="<pad>", eos_token="<pad>"
    )
    trainer = SequentialTrainer(
        model=student,
        teacher_model=teacher,
        args=arguments,
        data_collator=pad_rows,
        train_dataset=datasets.Dataset.from_list(list_rows(batches)),
        processing_class=tokenizer,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer.train
