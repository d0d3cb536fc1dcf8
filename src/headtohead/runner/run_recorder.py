"""Record in an experiment's journal when its runs start and end, while the worker pool runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headtohead.execution.worker_pool import Job, OnJobsUpdate
from headtohead.experiment import schemas
from headtohead.experiment.journal import Journal


@dataclass
class RunRecorder:
    """Record in the journal of a running experiment when the jobs of its worker pool start and end."""

    journal: Journal

    def __post_init__(self) -> None:
        events = [event for event in self.journal.read() if isinstance(event, schemas.RunEvent)]
        self.recorded_statuses = {(event.variant, event.seed): event.status for event in events}

    def record_start(self, job: Job) -> None:
        """Record that a job was sent to a worker."""
        self._record(schemas.RunEvent(status="started", variant=job.trial.variant, seed=job.trial.seed))

    def record_ends(self, jobs: Sequence[Job]) -> None:
        """Record the end of jobs that have ended since the last call, and of finished runs without a recorded end."""
        for job in jobs:
            variant, seed = job.trial.variant, job.trial.seed
            if not job.is_over or self.recorded_statuses.get((variant, seed), "finished") == "finished":
                continue
            if job.state in ("finished", "kept"):
                self.journal.record_finished(variant, seed, job.folder)
                self.recorded_statuses[variant, seed] = "finished"
            elif self.recorded_statuses[variant, seed] == "started":
                status: Literal["lost", "failed"] = "lost" if job.state == "lost" else "failed"
                self._record(schemas.RunEvent(status=status, variant=variant, seed=seed, message=job.message))

    def wrap_callback(self, on_update: OnJobsUpdate) -> OnJobsUpdate:
        """Return a callback for the worker pool that records ended jobs, then calls `on_update`."""

        def record_and_update(jobs: Sequence[Job]) -> None:
            self.record_ends(jobs)
            on_update(jobs)

        return record_and_update

    def _record(self, event: schemas.RunEvent) -> None:
        self.journal.append(event)
        self.recorded_statuses[event.variant, event.seed] = event.status
