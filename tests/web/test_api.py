"""No API request causes a server error. Requests are generated from the OpenAPI schema and from mutations of it."""

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

from .conftest import HOSTILE, TEXT, make_folder, write_experiment, write_verdict

UNUSUAL_TEXTS = [
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
TEXTS = st.one_of(st.sampled_from(UNUSUAL_TEXTS), st.text(max_size=40), st.text(string.printable, max_size=40))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return a server whose training and estimates are disabled, so that only requests are tested."""
    folder = tmp_path_factory.mktemp("api")
    write_verdict(write_experiment(make_folder(folder / "runs") / "done", finished=4))
    write_experiment(folder / "runs" / "stopped")
    (folder / "mine.toml").write_text(TEXT)

    def refuse_to_launch(*_: Any) -> Any:
        raise training_process.ConflictError("not in this test")

    async def fail_to_estimate(self: CostEstimator, arguments: Any) -> Any:
        raise RequestError("not in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_process, "_launch_process", refuse_to_launch)
        patch.setattr(CostEstimator, "estimate_cost", fail_to_estimate)
        with TestClient(
            create_app(folder / "runs", experiment_files_folder=folder),
            base_url="http://localhost",
            raise_server_exceptions=False,
            follow_redirects=False,
        ) as client:
            yield client


def list_operations(api: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (method, path, operation) for each operation of the schema."""
    paths = api.get("/api/openapi.json").json()["paths"]
    return [(method.upper(), path, item) for path, by_method in paths.items() for method, item in by_method.items()]


def draw_values(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that the schema allows or nearly allows."""
    if "$ref" in schema:
        return draw_values(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return st.one_of([draw_values(item, defs) for item in schema["anyOf"]])
    json_type = schema.get("type")
    if json_type == "object" and "properties" in schema:
        return st.fixed_dictionaries(
            {}, optional={k: draw_values(v, defs) | JSON for k, v in schema["properties"].items()}
        )
    if json_type == "object":
        keys = st.sampled_from(
            ["training.budget", "seeds", "model.position", "plugins", "data.source", "a.b.c", "", "="]
        )
        return st.dictionaries(
            keys | TEXTS, TEXTS | st.sampled_from(["5", '"x"', "[[[", "{a=1}", "1e999", "/etc/passwd"])
        )
    plain = {"integer": st.integers(), "boolean": st.booleans(), "null": st.none(), "string": TEXTS}
    return plain.get(str(json_type), JSON)


def test_the_description_names_every_answer_that_is_given(api: TestClient) -> None:
    result = list_operations(api)
    assert {path for _, path, _ in result} >= {
        "/api/experiments",
        "/api/experiments/{name}",
        "/api/estimates",
        "/api/recipes",
    }
    for method, path, operation in result:
        assert {"404", "422", "413", "409"} <= set(operation["responses"]), (method, path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
def test_no_request_is_a_server_error(api: TestClient, data: st.DataObject) -> None:
    method, path, operation = data.draw(st.sampled_from(list_operations(api)))
    name = data.draw(TEXTS)
    address = path.replace(
        "{name}", quote(name.encode("utf-8", "surrogatepass"), safe=data.draw(st.sampled_from(["", "/%"])))
    )
    content: bytes | None = None
    if "requestBody" in operation:
        openapi = api.get("/api/openapi.json").json()
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = data.draw(draw_values(schema, openapi["components"]["schemas"]) | JSON)
        content = data.draw(st.just(json.dumps(body).encode()) | st.binary(max_size=30))
    content_type = data.draw(
        st.sampled_from(["application/json", "text/plain", "application/json; charset=utf-16", ""])
    )
    method = data.draw(st.sampled_from([method, method, method, "PUT", "DELETE", "HEAD", "PATCH"]))
    response = api.request(
        method, address, content=content, headers={"content-type": content_type} if content_type else {}
    )
    assert response.status_code < 500, (method, address, content, response.text[:500])
    if response.status_code >= 400 and method != "HEAD" and response.headers["content-type"] == "application/json":
        assert response.json()["detail"], "a reason is given"


PAGES = ["start/mine.toml", "start/{}", "experiments/{}/seeds", "experiments/{}/stop", "{}"]
FIELDS = st.sampled_from(["name", "do", "num_seeds", "seeds", "training.budget", "model.position"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(page=st.sampled_from(PAGES), name=TEXTS, fields=st.dictionaries(FIELDS | TEXTS, TEXTS))
def test_no_form_is_a_server_error(api: TestClient, page: str, name: str, fields: dict[str, str]) -> None:
    def quote_segment(text: str) -> str:
        return quote(text.encode("utf-8", "surrogatepass"), safe="")

    address = "/" + page.format(quote_segment(name))
    body = "&".join(f"{quote_segment(key)}={quote_segment(value)}" for key, value in {**fields, "do": "start"}.items())
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for response in (api.post(address, content=body, headers=headers), api.get(address)):
        assert response.status_code < 500, (address, body, response.text[:500])


def test_programs_read_what_people_read(client: TestClient, runs: Path) -> None:
    rows = client.get("/api/experiments").json()
    assert [row["name"] for row in rows] == ["done", "stopped"]
    assert rows[0]["verdicts"] == [{"variant": "alibi", "outcome": "helped"}]
    content = client.get("/api/experiments/done").json()
    assert content["settings"] == [
        {"variant": "alibi", "setting": "model.position", "baseline": "learned", "value": "alibi"}
    ]
    assert "speeches-decoder" in client.get("/api/recipes").json()
    assert client.get("/api/experiments/nothing").json() == {"detail": "no such experiment"}
    assert (
        client.post("/api/experiments/done/seeds", json={"num_seeds": 0}).json()["errors"][0]["location"]
        == "body.num_seeds"
    )
