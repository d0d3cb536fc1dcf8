"""Only `headtohead.safe_open` opens files of run folders (PEP 578 audit hook)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, os, sys
from pathlib import Path

folder, mode = os.path.realpath(sys.argv[1]), sys.argv[2]
opened, foreign = 0, set()

def watch(event, arguments):
    global opened
    if event != "open" or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if not path.startswith(folder + os.sep):
        return
    opened += 1
    frame = sys._getframe(1)
    while frame is not None and "headtohead" not in frame.f_globals.get("__name__", ""):
        frame = frame.f_back
    module = frame.f_globals["__name__"] if frame else "?"
    if module != "headtohead.safe_open":
        foreign.add(f"{module}:{frame.f_lineno if frame else 0} {os.path.basename(path)}")

sys.addaudithook(watch)
if mode == "plain":
    Path(folder, "experiment.json").read_text()
if mode == "verify":
    from headtohead.report import write
    from headtohead.runner.verification.verify import verify_experiment
    verify_experiment(Path(folder), rescore=True, render_report=write)
if mode == "report":
    from headtohead.experiment import run_folder
    from headtohead.findings import compute
    from headtohead.report import write
    compute.write_findings(run_folder.open_experiment_runs(Path(folder)))
    write(Path(folder), ["html", "md", "csv"])
if mode == "serve":
    from starlette.testclient import TestClient
    from headtohead.web.app import create_app
    client = TestClient(create_app(Path(folder).parent), base_url="http://127.0.0.1:8000")
    name = os.path.basename(folder)
    pages = ("", "/report/content")
    paths = ("/", *(f"/experiments/{name}{page}" for page in pages), f"/api/experiments/{name}", "/playground")
    assert all(client.get(path).status_code == 200 for path in paths)
if mode == "model":
    from headtohead.saved_models.open_model import open_model
    open_model(Path(folder, "baseline", "seed-0"))
print(json.dumps([opened, sorted(foreign)]))
"""


def watch(folder: Path, mode: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", SCRIPT, str(folder), mode]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded, foreign = json.loads(result.stdout.splitlines()[-1])
    return loaded, foreign


def test_other_modules_open_no_files_of_run_folders(finished_runs, tmp_path):
    folder = Path(shutil.copytree(finished_runs, tmp_path / "runs"))
    for mode in ("report", "verify", "serve", "model"):
        loaded, foreign = watch(folder, mode)
        assert loaded > 0
        assert not foreign, f"{mode}: {foreign}"


def test_the_hook_notices_other_readers(finished_runs):
    assert watch(finished_runs, "plain")[1]
