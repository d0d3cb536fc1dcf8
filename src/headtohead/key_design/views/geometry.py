"""Where the keys, their hull and the query lie on paper: two dimensions as they are, three from a side on which no key
hides another, and any number seen so that the query points up and height is the score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import ConvexHull, QhullError

KeyMatrix = Float[np.ndarray, "key head_dim"]
PlanePoints = Float[np.ndarray, "key two"]
Vector = Float[np.ndarray, " head_dim"]
LineSegment = tuple[tuple[float, float], tuple[float, float]]

CAMERA_ELEVATION = math.radians(18)
NUM_AZIMUTHS = 36
ARROW_LENGTH_RATIO = 0.62
"""how long an arrow is drawn, against the farthest key: short of the keys, whose names stand beside them"""
MAX_ORIGIN_DISTANCE = 3.0
"""keys so many of their own sizes away from the origin are drawn without it"""
AXIS_NAMES = ("x", "y", "z")


@dataclass(frozen=True, eq=False)
class KeyProjection:
    """A flat picture of keys: a way to flatten points, and what is drawn beside them."""

    turn: Float[np.ndarray, "head_dim two"]
    keys: PlanePoints
    start: tuple[float, float]
    """where arrows begin: the origin, or the middle of keys that are far from it"""
    reach: float
    """how long an arrow is drawn"""
    hull_segments: tuple[LineSegment, ...]
    axis_segments: tuple[tuple[str, LineSegment], ...]
    axis_limits: tuple[tuple[float, float], tuple[float, float]]

    def compute_arrow(self, direction: Vector) -> LineSegment | None:
        """From the start along a direction; none for the direction 0, or one that points at the reader."""
        size = float(np.linalg.norm(direction))
        if size == 0:
            return None
        flat = direction / size @ self.turn * self.reach
        if np.linalg.norm(flat) < 0.05 * self.reach:
            return None
        return self.start, (self.start[0] + float(flat[0]), self.start[1] + float(flat[1]))


def project_keys(keys: KeyMatrix, queries: KeyMatrix, extra_points: KeyMatrix | None = None) -> KeyProjection | None:
    """The keys on paper; none where they have one dimension or more than three. Arrows for the queries, and `more`
    points, must fit in as well."""
    dims = keys.shape[1]
    if dims not in (2, 3):
        return None
    middle = keys.mean(axis=0)
    spread = float(np.linalg.norm(keys - middle, axis=1).max()) or 1.0
    begin = np.zeros(dims) if np.linalg.norm(middle) <= MAX_ORIGIN_DISTANCE * spread else middle
    turn = np.eye(2) if dims == 2 else _choose_projection_matrix(keys)
    far = max(float(np.linalg.norm(keys - begin, axis=1).max()), 0.5 * spread)
    reach = ARROW_LENGTH_RATIO * far
    flat = np.asarray(keys @ turn)
    start = begin @ turn
    edges = tuple(_build_segment(flat, pair) for pair in find_hull_edges(keys))
    axes = tuple(
        (AXIS_NAMES[at], (_convert_to_pair(start), _convert_to_pair(start + far * turn[at])))
        for at in range(dims)
        if dims == 3
    )
    sizes = np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-300)
    tips = start + reach * (queries / sizes) @ turn
    seen = np.vstack(
        [flat, start, tips, *([] if extra_points is None else [extra_points @ turn]), *(np.array(e) for _, e in axes)]
    )
    return KeyProjection(turn, flat, _convert_to_pair(start), reach, edges, axes, _compute_axis_limits(seen))


def _compute_axis_limits(points: PlanePoints) -> tuple[tuple[float, float], tuple[float, float]]:
    """A square around all of it, so that angles are what they are."""
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.57 * float((high - low).max()) or 1.0
    middle = (low + high) / 2
    return (float(middle[0] - half), float(middle[0] + half)), (float(middle[1] - half), float(middle[1] + half))


def _choose_projection_matrix(keys: KeyMatrix) -> Float[np.ndarray, "head_dim two"]:
    """From slightly above, and from the side on which the two nearest keys are farthest apart on paper."""
    best, widest = None, -1.0
    for step in range(NUM_AZIMUTHS):
        turn = _build_projection_matrix(2 * math.pi * (step + 0.5) / NUM_AZIMUTHS)
        flat = keys @ turn
        apart = np.linalg.norm(flat[:, None] - flat[None], axis=-1) + np.diag(np.full(len(keys), np.inf))
        if (nearest := float(apart.min())) > widest + 1e-9:
            best, widest = turn, nearest
    assert best is not None
    return best


def _build_projection_matrix(azimuth: float) -> Float[np.ndarray, "head_dim two"]:
    """Paper's right and up, as seen from this side."""
    right = [-math.sin(azimuth), math.cos(azimuth), 0.0]
    up = [
        -math.sin(CAMERA_ELEVATION) * math.cos(azimuth),
        -math.sin(CAMERA_ELEVATION) * math.sin(azimuth),
        math.cos(CAMERA_ELEVATION),
    ]
    return np.array([right, up]).T


def find_hull_edges(keys: KeyMatrix) -> list[tuple[int, int]]:
    """The pairs of keys joined by an edge of the hull; none where the keys have no volume."""
    try:
        hull = ConvexHull(keys)
    except (QhullError, ValueError):
        return []
    if keys.shape[1] == 2:
        around = [*hull.vertices, hull.vertices[0]]
        return [(int(a), int(b)) for a, b in pairwise(around)]
    normals: dict[tuple[int, int], list[Any]] = {}
    for corners, plane in zip(hull.simplices, hull.equations, strict=True):
        for a in range(3):
            pair = sorted((int(corners[a]), int(corners[(a + 1) % 3])))
            normals.setdefault((pair[0], pair[1]), []).append(plane[:3])
    # Qhull cuts flat sides into triangles: a line between two of one plane is no edge.
    return [pair for pair, (one, other) in normals.items() if one @ other < 1 - 1e-9]


def project_by_score(keys: KeyMatrix, query: Vector) -> PlanePoints:
    """Each key's place when the query points up: its score as the height, and beside it what spreads the keys most."""
    size = float(np.linalg.norm(query))
    unit = query / size if size else query
    moved = keys - keys.mean(axis=0)
    beside = moved - np.outer(moved @ unit, unit)
    _, sizes, turns = np.linalg.svd(beside, full_matrices=False)
    aside = beside @ turns[0] if len(sizes) and sizes[0] > 1e-12 else np.zeros(len(keys))
    return np.column_stack([aside, keys @ query])


def _build_segment(points: PlanePoints, pair: tuple[int, int]) -> LineSegment:
    return _convert_to_pair(points[pair[0]]), _convert_to_pair(points[pair[1]])


def _convert_to_pair(point: Any) -> tuple[float, float]:
    return float(point[0]), float(point[1])
