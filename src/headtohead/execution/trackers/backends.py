"""Log to TensorBoard, Weights & Biases or trackio through one protocol. Packages are imported on first use."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from headtohead.execution.trackers.tracker_process import LOGS_FOLDER

WANDB_PROJECT = "headtohead"
VERDICTS_RUN = "verdicts"
Metrics = dict[str, float]


class TrackerBackend(Protocol):
    """A tracker. Runs are named by their path in the experiment folder, for example baseline/seed-0."""

    def start_run(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        """Open a run. `is_resumed` is True if it was logged to before."""

    def log_metrics(self, run: str, step: int, metrics: Metrics) -> None:
        """Log a step's metrics."""

    def finish_run(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        """Log the final scores and close the run."""

    def flush(self) -> None:
        """Write everything logged so far to disk."""

    def log_verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        """Log the verdicts as a separate run."""

    def close(self) -> None:
        """Close all runs."""


class TensorBoardBackend:
    """Write event files to logs/tensorboard/RUN, without tensorflow or torch."""

    def __init__(self, folder: Path, experiment: str, run_id_salt: str) -> None:
        self.folder = folder / LOGS_FOLDER / "tensorboard"
        self.event_writers: dict[str, Any] = {}

    def start_run(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        if not is_resumed:
            self._write_text(run, "settings", _render_markdown_table(settings), 0)

    def log_metrics(self, run: str, step: int, metrics: Metrics) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary_values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._append_event(run, Summary(value=summary_values), step)

    def finish_run(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        self.log_metrics(run, step, {name: value for name, value in summary.items() if not isinstance(value, str)})
        self._write_text(run, "result", _render_markdown_table(summary), step)
        self.event_writers.pop(run).close()

    def flush(self) -> None:
        for writer in self.event_writers.values():
            writer.flush()

    def log_verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        for row in rows:
            self._write_text(VERDICTS_RUN, row["variant"], row["summary"], row["seeds"])
            self.log_metrics(VERDICTS_RUN, row["seeds"], _extract_verdict_metrics(row))

    def close(self) -> None:
        for writer in self.event_writers.values():
            writer.close()

    def _write_text(self, run: str, tag: str, text: str, step: int) -> None:
        """Write a text summary, which TensorBoard shows in its text tab."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        self._append_event(run, Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]), step)

    def _append_event(self, run: str, summary: Any, step: int) -> None:
        """Append a summary to a run's event file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if run not in self.event_writers:
            self.event_writers[run] = EventFileWriter(str(self.folder / run))
        self.event_writers[run].add_event(Event(wall_time=time.time(), step=step, summary=summary))


class WandbBackend:
    """Log to Weights & Biases, online or with WANDB_MODE=offline. An experiment is a group."""

    def __init__(self, folder: Path, experiment: str, run_id_salt: str) -> None:
        self.folder, self.experiment, self.run_id_salt = folder / LOGS_FOLDER, experiment, run_id_salt
        self.open_runs: dict[str, Any] = {}
        """W&B runs by name"""

    def start_run(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        """Create or resume the W&B run. Its id is derived from the run's name, so that a resumed trial continues it."""
        import wandb

        wandb_settings = wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
        )
        wandb_run = wandb.init(
            project=None if "WANDB_PROJECT" in os.environ else WANDB_PROJECT,
            group=self.experiment,
            job_type=run.rpartition("/")[0] or run,
            name=f"{self.experiment}/{run}",
            id=hashlib.sha256(f"{self.run_id_salt}/{run}".encode()).hexdigest()[:16],
            resume="allow",
            config=dict(settings),
            dir=None if "WANDB_DIR" in os.environ else self.folder,
            reinit="create_new",
            settings=wandb_settings,
        )
        wandb_run.define_metric("step")
        wandb_run.define_metric("*", step_metric="step")
        self.open_runs[run] = wandb_run

    def log_metrics(self, run: str, step: int, metrics: Metrics) -> None:
        # Logged as a metric: the step argument of wandb must increase with every call.
        self.open_runs[run].log({"step": step, **metrics})

    def finish_run(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        wandb_run = self.open_runs.pop(run)
        wandb_run.summary.update(dict(summary))
        wandb_run.finish(exit_code=1 if "failure" in summary else 0)

    def flush(self) -> None:
        """Do nothing: wandb writes continuously in its own process."""

    def log_verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        """Log the verdicts as the summary of a separate run."""
        self.start_run(VERDICTS_RUN, {}, is_resumed=is_resumed)
        summary = {f"{row['variant']}/{name}": row[name] for row in rows for name in ("outcome", "summary", "seeds")}
        for row in rows:
            summary |= _extract_verdict_metrics(row)
        self.finish_run(VERDICTS_RUN, 0, summary)

    def close(self) -> None:
        for wandb_run in self.open_runs.values():
            wandb_run.finish()


class TrackioBackend:
    """Log to trackio's local database, which `trackio show` displays. An experiment is a project, a variant a
    group.

    trackio supports one open run at a time, so metrics are buffered until the next flush.
    """

    def __init__(self, folder: Path, experiment: str, run_id_salt: str) -> None:
        """Prepare to buffer the metrics of each run, because trackio supports one open run at a time."""
        self.experiment = experiment
        self.run_settings: dict[str, tuple[dict[str, Any], bool]] = {}
        """by run: its settings, and whether trackio has logged it before"""
        self.buffered_metrics: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        """by run: (step, metrics) that have not been sent yet"""

    def start_run(self, run: str, settings: Mapping[str, Any], *, is_resumed: bool) -> None:
        self.run_settings[run] = dict(settings), is_resumed

    def log_metrics(self, run: str, step: int, metrics: Mapping[str, Any]) -> None:
        self.buffered_metrics.setdefault(run, []).append((step, dict(metrics)))

    def finish_run(self, run: str, step: int, summary: Mapping[str, Any]) -> None:
        """Log the summary: numbers as metrics, strings as Markdown."""
        import trackio

        metrics = {name: value for name, value in summary.items() if not isinstance(value, str)}
        markdown = {name: trackio.Markdown(value) for name, value in summary.items() if isinstance(value, str)}
        self.log_metrics(run, step, {**metrics, **markdown})

    def flush(self) -> None:
        """Send every run's buffered metrics. trackio supports one open run at a time."""
        import trackio

        for run, logged_metrics in self.buffered_metrics.items():
            settings, is_resumed = self.run_settings[run]
            trackio_run = trackio.init(
                project=self.experiment,
                name=run,
                group=run.rpartition("/")[0] or run,
                config=settings,
                resume="allow" if is_resumed else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            for step, metrics in logged_metrics:
                trackio_run.log(metrics, step=step)
            trackio_run.finish()
            self.run_settings[run] = settings, True
        self.buffered_metrics.clear()

    def log_verdicts(self, rows: list[dict[str, Any]], *, is_resumed: bool) -> None:
        """Log the verdicts to a separate run, by number of seeds."""
        self.start_run(VERDICTS_RUN, {}, is_resumed=is_resumed)
        for row in rows:
            self.finish_run(
                VERDICTS_RUN, row["seeds"], {row["variant"]: row["summary"], **_extract_verdict_metrics(row)}
            )

    def close(self) -> None:
        self.flush()


BACKENDS: dict[str, Any] = {"tensorboard": TensorBoardBackend, "wandb": WandbBackend, "trackio": TrackioBackend}


def _extract_verdict_metrics(verdict: dict[str, Any]) -> Metrics:
    """Return a verdict's effect and interval bounds as metrics to log; unknown values are omitted."""
    low, high = verdict["interval"]
    metrics = {"effect": verdict["effect"], "low": low, "high": high}
    return {f"{verdict['variant']}/{name}": value for name, value in metrics.items() if value is not None}


def _render_markdown_table(settings: Mapping[str, Any]) -> str:
    """Return settings as a Markdown table for TensorBoard's text tab."""
    rows = [f"| {name} | {value} |" for name, value in settings.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
