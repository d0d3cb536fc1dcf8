"""Project keys, their convex hull and queries to the plane.

Two-dimensional keys are drawn as they are, three-dimensional ones from an angle at which no key hides another. In any
dimension, `project_by_score` uses the score as height.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import ConvexHull, QhullError

from headtohead.key_design.solvers import KeyMatrix, Vector

PlanePoints = Float[np.ndarray, "key two"]
LineSegment = tuple[tuple[float, float], tuple[float, float]]

CAMERA_ELEVATION = math.radians(18)
NUM_AZIMUTHS = 36
ARROW_LENGTH_RATIO = 0.62
"""arrow length relative to the farthest key; shorter than 1 so that arrows do not cover key labels"""
MAX_ORIGIN_DISTANCE = 3.0
"""keys farther from the origin than this multiple of their spread are drawn without it"""
AXIS_NAMES = ("x", "y", "z")


@dataclass(frozen=True, eq=False)
class KeyProjection:
    """A projection to the plane, and what is drawn with it."""

    turn: Float[np.ndarray, "head_dim two"]
    keys: PlanePoints
    start: tuple[float, float]
    """start of arrows: the origin, or the mean of the keys if they are far from it"""
    reach: float
    """length of arrows"""
    hull_segments: tuple[LineSegment, ...]
    axis_segments: tuple[tuple[str, LineSegment], ...]
    axis_limits: tuple[tuple[float, float], tuple[float, float]]

    def compute_arrow(self, direction: Vector) -> LineSegment | None:
        """Return an arrow along a direction, or None for the zero vector or a direction along the line of sight."""
        norm = float(np.linalg.norm(direction))
        if norm == 0:
            return None
        offset = direction / norm @ self.turn * self.reach
        if np.linalg.norm(offset) < 0.05 * self.reach:
            return None
        return self.start, (self.start[0] + float(offset[0]), self.start[1] + float(offset[1]))


def project_keys(keys: KeyMatrix, queries: KeyMatrix, extra_points: KeyMatrix | None = None) -> KeyProjection | None:
    """Project keys to the plane; return None unless they have two or three dimensions.

    The axis limits are chosen so that query arrows and `extra_points` fit.
    """
    dims = keys.shape[1]
    if dims not in (2, 3):
        return None
    center = keys.mean(axis=0)
    spread = float(np.linalg.norm(keys - center, axis=1).max()) or 1.0
    origin = np.zeros(dims) if np.linalg.norm(center) <= MAX_ORIGIN_DISTANCE * spread else center
    projection = np.eye(2) if dims == 2 else _choose_projection_matrix(keys)
    max_distance = max(float(np.linalg.norm(keys - origin, axis=1).max()), 0.5 * spread)
    reach = ARROW_LENGTH_RATIO * max_distance
    plane_keys = np.asarray(keys @ projection)
    start = origin @ projection
    edges = tuple((to_pair(plane_keys[a]), to_pair(plane_keys[b])) for a, b in find_hull_edges(keys))
    axes = tuple(
        (AXIS_NAMES[axis], (to_pair(start), to_pair(start + max_distance * projection[axis])))
        for axis in range(dims)
        if dims == 3
    )
    norms = np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-300)
    arrow_tips = start + reach * (queries / norms) @ projection
    extra = [] if extra_points is None else [extra_points @ projection]
    points = np.vstack([plane_keys, start, arrow_tips, *extra, *(np.array(segment) for _, segment in axes)])
    return KeyProjection(projection, plane_keys, to_pair(start), reach, edges, axes, _compute_axis_limits(points))


def _compute_axis_limits(points: PlanePoints) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return axis limits for a square that contains all points, so that angles are preserved."""
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.57 * float((high - low).max()) or 1.0
    center = (low + high) / 2
    return (float(center[0] - half), float(center[0] + half)), (float(center[1] - half), float(center[1] + half))


def _choose_projection_matrix(keys: KeyMatrix) -> Float[np.ndarray, "head_dim two"]:
    """Choose the azimuth that maximizes the smallest distance between two projected keys."""
    best, best_distance = None, -1.0
    for step in range(NUM_AZIMUTHS):
        projection = _build_projection_matrix(2 * math.pi * (step + 0.5) / NUM_AZIMUTHS)
        plane_keys = keys @ projection
        distances = np.linalg.norm(plane_keys[:, None] - plane_keys[None], axis=-1)
        np.fill_diagonal(distances, np.inf)
        if (nearest := float(distances.min())) > best_distance + 1e-9:
            best, best_distance = projection, nearest
    assert best is not None
    return best


def _build_projection_matrix(azimuth: float) -> Float[np.ndarray, "head_dim two"]:
    """Return the right and up directions of the camera."""
    right = [-math.sin(azimuth), math.cos(azimuth), 0.0]
    up = [
        -math.sin(CAMERA_ELEVATION) * math.cos(azimuth),
        -math.sin(CAMERA_ELEVATION) * math.sin(azimuth),
        math.cos(CAMERA_ELEVATION),
    ]
    return np.array([right, up]).T


def find_hull_edges(keys: KeyMatrix) -> list[tuple[int, int]]:
    """Return the pairs of keys joined by a convex-hull edge; empty if the keys are degenerate."""
    try:
        hull = ConvexHull(keys)
    except (QhullError, ValueError):
        return []
    if keys.shape[1] == 2:
        cycle = [*hull.vertices, hull.vertices[0]]
        return [(int(a), int(b)) for a, b in pairwise(cycle)]
    normals: dict[tuple[int, int], list[Any]] = {}
    for corners, plane in zip(hull.simplices, hull.equations, strict=True):
        for a in range(3):
            pair = sorted((int(corners[a]), int(corners[(a + 1) % 3])))
            normals.setdefault((pair[0], pair[1]), []).append(plane[:3])
    # Qhull triangulates faces: a segment between two coplanar triangles is not an edge.
    return [pair for pair, (first, second) in normals.items() if first @ second < 1 - 1e-9]


def project_by_score(keys: KeyMatrix, query: Vector) -> PlanePoints:
    """Return plane coordinates with the score as height and the direction of largest spread as the horizontal axis."""
    norm = float(np.linalg.norm(query))
    unit = query / norm if norm else query
    centered = keys - keys.mean(axis=0)
    residual = centered - np.outer(centered @ unit, unit)
    _, singular_values, axes = np.linalg.svd(residual, full_matrices=False)
    horizontal = residual @ axes[0] if len(singular_values) and singular_values[0] > 1e-12 else np.zeros(len(keys))
    return np.column_stack([horizontal, keys @ query])


def to_pair(point: Any) -> tuple[float, float]:
    """Return the two coordinates of a point as floats."""
    return float(point[0]), float(point[1])
