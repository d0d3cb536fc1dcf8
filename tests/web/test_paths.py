"""Files outside the runs folder are inaccessible, and names and texts are escaped."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headtohead.errors import RequestError
from headtohead.json_files import write_json
from headtohead.web.experiment_folders import ExperimentFolders, NameNotFoundError
from headtohead.web.live.experiment_state import ExperimentReader

from .conftest import HOSTILE, write_experiment, write_verdict

SECRET = "the secret of the neighbor"

ESCAPING_PATHS = [
    "..",
    "../outside",
    "..%2foutside",
    "%2e%2e%2foutside",
    "%2e%2e/outside",
    "..%252foutside",
    "%252e%252e%252foutside",
    "..%5coutside",
    "..%c0%afoutside",
    "%c0%ae%c0%ae%c0%afoutside",
    "....//outside",
    ".%00./outside",
    "done%00",
    "done/../../outside",
    "done%2f..%2f..%2foutside",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "file:%2f%2f%2fetc%2fpasswd",
    "~",
    "%EF%BC%8E%EF%BC%8E%2foutside",
    "..;/outside",
    ".",
    ".done.lock",
    "done\\..\\..\\outside",
]


@pytest.fixture
def outside(runs: Path) -> Path:
    """An experiment outside of RUNS, and links to it from inside."""
    experiment = write_experiment(runs.parent / "outside", question=SECRET)
    (experiment / "report.html").write_text(SECRET)
    (runs / "leaving").symlink_to(experiment, target_is_directory=True)
    (runs / "around").symlink_to(runs / "around")
    hollow = write_experiment(runs / "hollow", finished=0)
    (hollow / "report.html").symlink_to(experiment / "report.html")
    (hollow / "findings.json").symlink_to(experiment / "experiment.json")
    (hollow / "alibi").symlink_to(experiment / "alibi", target_is_directory=True)
    only_the_file = runs / "borrowed"
    only_the_file.mkdir()
    (only_the_file / "experiment.json").symlink_to(experiment / "experiment.json")
    return experiment


@pytest.mark.parametrize("spelling", ESCAPING_PATHS)
def test_no_spelling_leads_out(client: TestClient, outside: Path, spelling: str) -> None:
    request = [f"/experiments/{spelling}{after}" for after in ("", "/report", "/events")]
    for address in (*request, f"/static/{spelling}", f"/start/{spelling}", f"/{spelling}"):
        response = client.get(address)
        assert response.status_code in (200, 404, 405, 422), (address, response.status_code)
        assert SECRET not in response.text and "root:" not in response.text
    for action in ("stop", "resume"):
        assert client.post(f"/api/experiments/{spelling}/{action}").status_code in (404, 405, 422)


def test_links_that_leave_are_not_followed(client: TestClient, outside: Path, runs: Path) -> None:
    assert set(ExperimentFolders(runs.resolve()).list_experiments()) == {"done", "stopped", "hollow"}
    for name in ("leaving", "around", "borrowed"):
        assert client.get(f"/experiments/{name}").status_code == 404
    assert client.get("/experiments/hollow/report").status_code == 404
    page = client.get("/experiments/hollow")
    assert page.status_code == 200
    assert SECRET not in page.text and SECRET not in client.get("/").text
    trials = {
        trial.variant: trial.state
        for trial in ExperimentReader(runs.resolve(), "hollow").read_state().trials
        if trial.seed == 0
    }
    assert trials["alibi"] == "waiting", "a run that lies outside is none"


def test_a_link_inside_the_runs_is_an_experiment_like_any_other(runs: Path) -> None:
    (runs / "again").symlink_to(runs / "done", target_is_directory=True)
    assert ExperimentFolders(runs.resolve()).find_experiment("again") == (runs / "done").resolve()
    with pytest.raises(NameNotFoundError, match="no such experiment"):
        ExperimentFolders(runs.resolve()).find_experiment("../runs/done")


def test_an_experiment_or_a_file_in_the_place_of_the_runs_is_reported(runs: Path) -> None:
    with pytest.raises(RequestError, match="is a single experiment; give its parent folder"):
        ExperimentFolders.open_root(runs / "done")
    with pytest.raises(RequestError, match="is not a folder"):
        ExperimentFolders.open_root(runs / "done" / "experiment.json")
    assert ExperimentFolders.open_root(runs / "new").list_experiments() == {}


def test_scripts_in_names_questions_verdicts_and_messages_are_text(client: TestClient, runs: Path) -> None:
    name = HOSTILE.replace("/", "")
    folder = write_experiment(runs / name, question=HOSTILE, finished=2)
    write_json(folder / "baseline" / "seed-1" / "failure.json", {"message": HOSTILE})
    write_verdict(folder, sentence=HOSTILE)
    audit = dict.fromkeys(("name", "procedure", "observation", "interpretation", "failure_reason"), HOSTILE)
    audit |= {"passed": False, "is_blocking": True}
    write_json(folder / "alibi" / "seed-0" / "audits.json", {"audits": [audit]})
    for path in ("/", client.get("/").text.partition('<a href="/experiments/%3C')[2].partition('"')[0]):
        text = client.get(path if path == "/" else f"/experiments/%3C{path}").text
        assert "&lt;script&gt;alert(1)" in text
        assert "<script>alert" not in text
    assert client.get("/api/experiments").json()[0]["question"] == HOSTILE


def test_damaged_and_strange_files_are_no_server_error(client: TestClient, runs: Path) -> None:
    contents = [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"experiment": []}',
        '{"experiment": {"variants": 7, "seeds": "auto"}}',
        '{"experiment": {"question": 5, "variants": {"a": 1, "../..": {}, "": {}}, "seeds": -3, "primary": []}}',
        '{"experiment": {"seeds": 1000000000000}}',
        "[" * 100_000,
    ]
    for index, text in enumerate(contents):
        folder = runs / f"strange-{index}"
        folder.mkdir()
        for file in ("experiment.json", "findings.json", "corpus.json"):
            (folder / file).write_text(text)
        assert client.get(f"/experiments/strange-{index}").status_code == 200, text[:50]
        assert client.get(f"/api/experiments/strange-{index}").status_code == 200, text[:50]
    run = runs / "done" / "alibi" / "seed-0"
    (run / "metrics.jsonl").write_bytes(
        b'\xff\n{"step": 1}\n[]\n{"step": 5, "split": "test", "perplexity": NaN}\n{"cut of'
    )
    (run / "start.json").write_text('{"steps": "many"}')
    assert client.get("/api/experiments/done").status_code == 200
    assert client.get("/experiments/done").status_code == 200
    assert client.get("/").status_code == 200


def test_a_report_runs_no_script_but_ours(client: TestClient, runs: Path) -> None:
    (runs / "done" / "report.html").write_text("<p>report</p>")
    response = client.get("/experiments/done/report/content")
    assert response.text == "<p>report</p>"
    policy = response.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy and "script-src 'sha256-" in policy and "default-src 'none'" in policy
    assert client.get("/experiments/stopped/report").status_code == 404


def test_the_pdf_of_a_report_can_be_downloaded(client: TestClient, runs: Path) -> None:
    before = sorted(path.name for path in (runs / "done").iterdir())
    response = client.get("/experiments/done/report.pdf")
    assert response.status_code == 200
    assert response.content.startswith(b"%PDF")
    assert response.headers["content-disposition"] == "attachment; filename=report.pdf"
    assert sorted(path.name for path in (runs / "done").iterdir()) == before
    assert client.get("/experiments/stopped/report.pdf").status_code == 404
    (runs / "done" / "report.html").write_text("<p>report</p>")
    assert 'href="/experiments/done/report.pdf"' in client.get("/experiments/done").text
