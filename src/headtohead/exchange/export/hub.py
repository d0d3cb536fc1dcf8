"""`h2h push`: upload an exported run to the Hugging Face hub, with the verdict on its variant in the model card."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headtohead.atomic_io import write_text
from headtohead.config.experiment import BASELINE
from headtohead.errors import ModelError, RequestError, RunFolderError
from headtohead.exchange.export.transformers_folder import (
    OWN_MODELING_FILE,
    ExportedModel,
    check_folder_is_empty,
    export_to_transformers,
)
from headtohead.experiment.findings_view import read_findings
from headtohead.saved_models import model_io
from headtohead.verdict.record import Verdict

NO_VERDICT = "There is no verdict: the experiment has no findings yet (`h2h report` writes them)."


def push_run(source: Path, repository: str, *, folder: Path | None = None, is_private: bool = False) -> str:
    """Export a run with its model card and upload it to the Hugging Face hub; return the address of the repository.

    With `folder`, write the files there and return its path instead of uploading them.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise RequestError(f"{repository}: hub repositories are written owner/name")
    if folder is not None:
        check_folder_is_empty(folder)
        write_hub_repository(source, folder, repository)
        return str(folder)
    with tempfile.TemporaryDirectory() as temporary:
        write_hub_repository(source, Path(temporary), repository)
        return _upload_folder(Path(temporary), repository, is_private)


def write_hub_repository(source: Path, folder: Path, repository: str) -> ExportedModel:
    """Write the files of a hub repository into a folder: the exported model and its model card."""
    exported = export_to_transformers(source, folder)
    write_text(folder / "README.md", render_model_card(source, exported, repository))
    return exported


def _upload_folder(folder: Path, repository: str, is_private: bool) -> str:
    """Upload a folder to the Hugging Face hub; return the address of the repository."""
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        address = api.create_repo(repository, private=is_private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload model by Head to Head")
    except (OSError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ModelError(f"{repository}: cannot be uploaded ({reason})") from error
    return str(address)


def read_run_verdicts(source: Path, variant: str) -> Sequence[Verdict] | None:
    """Return the verdicts for the model card on the hub: on the variant of a run, or all if it is a baseline run.

    None if the experiment has no findings.
    """
    try:
        verdicts = read_findings(source.resolve().parents[1]).verdicts
    except (RunFolderError, IndexError):
        return None
    return [verdict for verdict in verdicts if variant in (BASELINE, verdict.variant)]


def render_model_card(source: Path, exported: ExportedModel, repository: str) -> str:
    """Return the model card of a run on the hub in Markdown: its verdict, usage and settings."""
    saved = model_io.load_saved_model(source)
    trial, experiment = saved.trial, source.resolve().parents[1].name
    verdicts = read_run_verdicts(source, trial.variant)
    verdict_lines = [f"- {verdict.variant}: {verdict.outcome}. {verdict.summary}" for verdict in verdicts or ()]
    settings = "\n".join(f"- {name}: {value}" for name, value in trial.model.model_dump(mode="json").items())
    trust_argument = ", trust_remote_code=True" if exported.architecture == OWN_MODELING_FILE else ""
    num_parameters = sum(parameter.numel() for parameter in saved.model.parameters())
    auto_class = "AutoModelForSequenceClassification" if saved.label_names else "AutoModelForCausalLM"
    if not saved.label_names and not saved.target.is_causal:
        auto_class = "AutoModelForMaskedLM"
    return f"""---
library_name: transformers
pipeline_tag: {trial.spec.hub_tag}
tags: [headtohead]
---
# {repository.partition("/")[2]}

Variant `{trial.variant}` of the experiment `{experiment}`, seed {trial.seed}. {num_parameters:,} parameters, trained on
{Path(trial.data.source_name).name} for {trial.training.budget}. A small model for a comparison, not for production use.

## Verdict
{chr(10).join(verdict_lines) or NO_VERDICT}

A verdict holds for one corpus, size, budget and learning rate.

## Usage
```python
from transformers import {auto_class}, AutoTokenizer

model = {auto_class}.from_pretrained("{repository}"{trust_argument})
tokenizer = AutoTokenizer.from_pretrained("{repository}")
```

Exported from Head to Head (package headtohead) as {exported.architecture}. Largest difference of outputs on random
tokens: {exported.max_difference:.1e}.

## Settings
{settings}
"""
