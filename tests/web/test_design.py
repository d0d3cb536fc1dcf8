"""Key design over HTTP: solutions of the library, and an error message for every invalid input."""

import json
import math

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from headtohead.key_design import query_design
from headtohead.web.pages.design import EXAMPLE_KEYS, MAX_COORDINATE, MAX_KEYS

TRIANGLE = [[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0], [0.5, 0.0]]
VALUES = [1.0, 2.0, 3.0, 4.0]


def test_select_and_average_give_what_the_library_gives(client: TestClient) -> None:
    content = client.post("/api/design/select", json={"keys": TRIANGLE, "values": VALUES, "key": 0}).json()
    selecting_query = query_design.find_selecting_query(TRIANGLE, 0, values=[[value] for value in VALUES])
    assert {name: content[name] for name in selecting_query.to_dict()} == selecting_query.to_dict()
    assert content["weights"][0] >= 0.999
    assert content["heading"] == "Select key 0: exact in the limit"
    assert content["facts"]["norm of the query"] == f"{selecting_query.norm:.4g}"
    request = {"keys": TRIANGLE, "indices": [1, 2], "precision": 0.9}
    content = client.post("/api/design/average", json=request).json()
    assert content["query"] == query_design.find_averaging_query(TRIANGLE, [1, 2], precision=0.9).query.tolist()
    assert content["weights"][1] == pytest.approx(0.45, abs=1e-6)


def test_where_no_query_does_it_the_answer_says_why_and_how_near(client: TestClient) -> None:
    content = client.post("/api/design/select", json={"keys": TRIANGLE, "key": 3}).json()
    assert not content["exact"]
    assert "Key 3 is not a vertex of the convex hull" in content["reason"]
    assert f"with weight {content['weights'][3]:.4g}" in content["reason"]
    assert sum(c * x for c, (x, _) in zip(content["certificate"], TRIANGLE, strict=True)) == pytest.approx(0, abs=1e-12)
    square = {"keys": EXAMPLE_KEYS["square"], "indices": [0, 2]}
    assert "not a face of the convex hull" in client.post("/api/design/average", json=square).json()["reason"]


def test_identity_gives_a_query_for_each_key(client: TestClient) -> None:
    content = client.post("/api/design/identity", json={"keys": EXAMPLE_KEYS["square"]}).json()
    assert content["exact"]
    assert len(content["query"]) == 4
    assert all(content["weights"][at][at] >= 0.999 for at in range(4))
    assert not client.post("/api/design/identity", json={"keys": TRIANGLE}).json()["exact"]


@pytest.mark.parametrize(
    ("verb", "body", "words"),
    [
        ("select", '{"keys": [[NaN, 0]], "key": 0}', "body.keys.0.0: Input should be a finite number"),
        ("select", '{"keys": [[1e400, 0]], "key": 0}', "body.keys.0.0: Input should be a finite number"),
        ("select", f'{{"keys": [[{MAX_COORDINATE + 1}, 0]], "key": 0}}', "less than or equal to 1000"),
        ("select", f'{{"keys": [[1{"0" * 400}, 0]], "key": 0}}', "body.keys.0.0"),
        ("select", '{"keys": [[1e-200, 0], [0, 0]], "key": 0}', "must be 0 or at least 1e-06 in absolute value"),
        ("select", '{"keys": [["1", 0]], "key": 0}', "body.keys.0.0: Input should be a valid number"),
        ("select", '{"keys": [[true, 0]], "key": 0}', "body.keys.0.0: Input should be a valid number"),
        ("select", '{"keys": [[1, 2, 3]], "key": 0}', "body.keys.0"),
        ("select", '{"keys": [], "key": 0}', "at least 1 item"),
        ("select", json.dumps({"keys": [[1, at] for at in range(MAX_KEYS + 1)], "key": 0}), "at most 16 items"),
        ("select", '{"keys": [[1, 2]], "key": 1}', "there is no key 1; there is 1 key"),
        ("select", '{"keys": [[1, 2]], "key": -1}', "body.key: Input should be greater than or equal to 0"),
        ("select", '{"keys": [[1, 2]]}', "body.key: Field required"),
        ("select", '{"keys": [[1, 2]], "key": 0, "values": [1, 2]}', "2 values for 1 keys"),
        ("select", '{"keys": [[1, 2]], "key": 0, "precision": 1}', "body.precision"),
        ("select", '{"keys": [[1, 2]], "key": 0, "other": 1}', "body.other: Extra inputs are not permitted"),
        ("average", '{"keys": [[1, 2]], "indices": []}', "body.indices: List should have at least 1 item"),
        ("average", '{"keys": [[1, 2], [2, 1]], "indices": [1, 1]}', "average: key 1 is given twice"),
        ("identity", '{"keys": 5}', "body.keys: Input should be a valid list"),
        ("identity", "[", "body"),
    ],
)
def test_what_cannot_be_taken_is_reported(client: TestClient, verb: str, body: str, words: str) -> None:
    response = client.post(f"/api/design/{verb}", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert words in response.json()["detail"]


COORDINATE = st.one_of(
    st.sampled_from(
        [
            0.0,
            1.0,
            -1.0,
            1e-6,
            -1e-6,
            1e-6 + 1e-20,
            MAX_COORDINATE,
            -MAX_COORDINATE,
            math.nextafter(MAX_COORDINATE, 0),
            1 / 3,
        ]
    ),
    st.floats(-3, 3).filter(lambda x: x == 0 or abs(x) >= 1e-6),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    keys=st.lists(st.tuples(COORDINATE, COORDINATE), min_size=1, max_size=MAX_KEYS),
    precision=st.sampled_from([None, 0.01, 0.5, 0.999, 1 - 1e-9]),
)
@example(keys=[(math.cos(at), math.sin(at)) for at in range(MAX_KEYS)], precision=1 - 1e-9)
def test_every_question_within_the_bounds_has_an_answer(
    client: TestClient, keys: list[tuple[float, float]], precision: float | None
) -> None:
    """Coincident, collinear and maximally distant points are valid input."""
    body = {"keys": keys, "precision": precision}
    for verb, more in (("identity", {}), ("average", {"indices": list(range(0, len(keys), 2))})):
        response = client.post(f"/api/design/{verb}", json={**body, **more})
        assert response.status_code == 200, response.text
        assert response.json()["reason"]


def test_nothing_is_asked_by_get_or_from_elsewhere(client: TestClient) -> None:
    for verb in ("select", "average", "identity"):
        assert client.get(f"/api/design/{verb}").status_code == 405
    foreign = {"origin": "http://example.org", "sec-fetch-site": "cross-site"}
    assert client.post("/api/design/identity", json={"keys": TRIANGLE}, headers=foreign).status_code == 403


def test_the_page_is_there(client: TestClient) -> None:
    text = client.get("/design").text
    assert '<a href="/design" aria-current="page">Design</a>' in text
    assert "/static/design.js" in text
    assert client.get("/static/design.js").headers["content-type"].startswith("text/javascript")
