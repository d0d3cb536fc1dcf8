"""Run the commands of `h2h versus` on a Ray cluster.

Each command is a Ray task that occupies one CPU, or one GPU if the cluster has GPUs. The machines need a shared file
system: commands run in the same working directory and write into the same comparison folder as on one machine.
"""

from __future__ import annotations

import dataclasses
import os
import threading

from headtohead.errors import RequestError
from headtohead.execution.ray.backend import RayCluster, connect_to_cluster
from headtohead.versus.command_runner import TERMINATION_TIMEOUT_SECONDS, CommandProcess, RunProcess, run_local_process
from headtohead.versus.outputs.run_record import ProcessStatus

POLL_SECONDS = 0.25


def build_ray_process_runner(backend: str) -> tuple[RunProcess, int]:
    """Return a function that runs processes on the cluster selected by `--backend`, and their maximum number."""
    import ray

    cluster = connect_to_cluster(backend, "auto")
    task = ray.remote(_run_process_on_machine).options(**_get_resources(cluster))

    def run_process(process: CommandProcess, stop_event: threading.Event) -> tuple[ProcessStatus, int | None]:
        result_ref = task.remote(process)
        try:
            while not ray.wait([result_ref], timeout=POLL_SECONDS)[0]:
                if stop_event.is_set():
                    ray.cancel(result_ref)
                    ray.wait([result_ref], timeout=2 * TERMINATION_TIMEOUT_SECONDS)
                    raise InterruptedError(process.arguments[0])
            status, exit_code = ray.get(result_ref)
        except ray.exceptions.RayTaskError as error:
            raise RequestError(str(error.cause)) from None
        except ray.exceptions.RayError as error:
            raise RequestError(
                f"a machine of the cluster was lost ({type(error).__name__}); continue with --resume"
            ) from None
        return status, exit_code

    return run_process, cluster.count_slots()


def _get_resources(cluster: RayCluster) -> dict[str, float]:
    """Return the resources of a Ray task for one command. A lost task is not retried: its folder is not empty."""
    return {"num_cpus": 1, "max_retries": 0, **({"num_gpus": 1} if cluster.has_gpus else {})}


def _run_process_on_machine(process: CommandProcess) -> tuple[ProcessStatus, int | None]:
    """Run a process on this machine of the cluster, on the GPU that Ray assigned."""
    for path in (process.working_directory, process.log_path.parent):
        if not path.is_dir():
            raise RequestError(
                f"{path} does not exist on the machine {os.uname().nodename}: --backend ray needs a shared file system"
            )
    environment = dict(process.environment)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        environment["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return run_local_process(dataclasses.replace(process, environment=environment), threading.Event())
