"""The API finds a reason for everything: whatever is sent, no answer is a server error. Requests are drawn from the
OpenAPI description, and from what is near it and wrong."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from headtohead.errors import RequestError
from headtohead.web import training_process
from headtohead.web.app import create_app
from headtohead.web.estimates import CostEstimator

from .conftest import HOSTILE, TEXT, folder_made, write_experiment, write_verdict

NASTY = [
    "",
    "..",
    "../..",
    "%00",
    "\0",
    "\n",
    "done",
    "stopped",
    "mine.toml",
    HOSTILE,
    "x" * 3000,
    "é",
    "\ud800",
    "\U0001d518",
    "nan",
]
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(max_size=40), st.text(string.printable, max_size=40))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server whose trainings and estimates are left out: what is asked is tried here, not what it starts."""
    place = tmp_path_factory.mktemp("api")
    write_verdict(write_experiment(folder_made(place / "runs") / "done", finished=4))
    write_experiment(place / "runs" / "stopped")
    (place / "mine.toml").write_text(TEXT)

    def refuse(*_: Any) -> Any:
        raise training_process.ConflictError("not in this test")

    async def later(self: CostEstimator, arguments: Any) -> Any:
        raise RequestError("not in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_process, "_launch_process", refuse)
        patch.setattr(CostEstimator, "estimate_cost", later)
        with TestClient(
            create_app(place / "runs", experiment_files_folder=place),
            base_url="http://localhost",
            raise_server_exceptions=False,
            follow_redirects=False,
        ) as client:
            yield client


def described(api: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    """(method, path, what it says of itself)"""
    paths = api.get("/api/openapi.json").json()["paths"]
    return [(method.upper(), path, one) for path, by_method in paths.items() for method, one in by_method.items()]


def values_for(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What the description allows, or nearly so."""
    if "$ref" in schema:
        return values_for(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return st.one_of([values_for(one, defs) for one in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return st.fixed_dictionaries(
            {}, optional={k: values_for(v, defs) | JSON for k, v in schema["properties"].items()}
        )
    if kind == "object":
        keys = st.sampled_from(
            ["training.steps", "seeds", "model.position", "plugins", "data.source", "a.b.c", "", "="]
        )
        return st.dictionaries(
            keys | TEXTS, TEXTS | st.sampled_from(["5", '"x"', "[[[", "{a=1}", "1e999", "/etc/passwd"])
        )
    plain = {"integer": st.integers(), "boolean": st.booleans(), "null": st.none(), "string": TEXTS}
    return plain.get(str(kind), JSON)


def test_the_description_names_every_answer_that_is_given(api: TestClient) -> None:
    found = described(api)
    assert {path for _, path, _ in found} >= {
        "/api/experiments",
        "/api/experiments/{name}",
        "/api/estimates",
        "/api/recipes",
    }
    for method, path, about in found:
        assert {"404", "422", "413", "409"} <= set(about["responses"]), (method, path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
def test_no_request_is_a_server_error(api: TestClient, data: st.DataObject) -> None:
    method, path, about = data.draw(st.sampled_from(described(api)))
    name = data.draw(TEXTS)
    address = path.replace(
        "{name}", quote(name.encode("utf-8", "surrogatepass"), safe=data.draw(st.sampled_from(["", "/%"])))
    )
    content: bytes | None = None
    if "requestBody" in about:
        openapi = api.get("/api/openapi.json").json()
        schema = about["requestBody"]["content"]["application/json"]["schema"]
        body = data.draw(values_for(schema, openapi["components"]["schemas"]) | JSON)
        content = data.draw(st.just(json.dumps(body).encode()) | st.binary(max_size=30))
    kind = data.draw(st.sampled_from(["application/json", "text/plain", "application/json; charset=utf-16", ""]))
    method = data.draw(st.sampled_from([method, method, method, "PUT", "DELETE", "HEAD", "PATCH"]))
    answer = api.request(method, address, content=content, headers={"content-type": kind} if kind else {})
    assert answer.status_code < 500, (method, address, content, answer.text[:500])
    if answer.status_code >= 400 and method != "HEAD" and answer.headers["content-type"] == "application/json":
        assert answer.json()["detail"], "a reason is given"


PAGES = ["start/mine.toml", "start/{}", "experiments/{}/seeds", "experiments/{}/stop", "{}"]
FIELDS = st.sampled_from(["name", "do", "num_seeds", "seeds", "training.steps", "model.position"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(page=st.sampled_from(PAGES), name=TEXTS, fields=st.dictionaries(FIELDS | TEXTS, TEXTS))
def test_no_form_is_a_server_error(api: TestClient, page: str, name: str, fields: dict[str, str]) -> None:
    def sent(text: str) -> str:
        return quote(text.encode("utf-8", "surrogatepass"), safe="")

    address = "/" + page.format(sent(name))
    body = "&".join(f"{sent(key)}={sent(value)}" for key, value in {**fields, "do": "start"}.items())
    kind = {"content-type": "application/x-www-form-urlencoded"}
    for answer in (api.post(address, content=body, headers=kind), api.get(address)):
        assert answer.status_code < 500, (address, body, answer.text[:500])


def test_programs_read_what_people_read(client: TestClient, runs: Path) -> None:
    rows = client.get("/api/experiments").json()
    assert [row["name"] for row in rows] == ["done", "stopped"]
    assert rows[0]["verdicts"] == [{"variant": "alibi", "outcome": "helped"}]
    found = client.get("/api/experiments/done").json()
    assert found["settings"] == [
        {"variant": "alibi", "setting": "model.position", "baseline": "learned", "value": "alibi"}
    ]
    assert "speeches-decoder" in client.get("/api/recipes").json()
    assert client.get("/api/experiments/nothing").json() == {"detail": "no such experiment"}
    assert (
        client.post("/api/experiments/done/seeds", json={"num_seeds": 0}).json()["faults"][0]["place"]
        == "body.num_seeds"
    )
