"""Project keys, their convex hull and queries to the plane, before they are drawn.

Two-dimensional keys are drawn unchanged, three-dimensional ones from an angle at which no key hides another. In any
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

from headtohead.key_design.convex_solvers import KeyMatrix, Vector

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

    matrix: Float[np.ndarray, "head_dim two"]
    keys: PlanePoints
    arrow_start: tuple[float, float]
    """the origin, or the mean of the keys if they are far from it"""
    arrow_length: float
    hull_segments: tuple[LineSegment, ...]
    axis_segments: tuple[tuple[str, LineSegment], ...]
    axis_limits: tuple[tuple[float, float], tuple[float, float]]

    def compute_arrow(self, direction: Vector) -> LineSegment | None:
        """Return the arrow of a query, or None for the zero query or a direction along the line of sight."""
        norm = float(np.linalg.norm(direction))
        if norm == 0:
            return None
        offset = direction / norm @ self.matrix * self.arrow_length
        if np.linalg.norm(offset) < 0.05 * self.arrow_length:
            return None
        start_x, start_y = self.arrow_start
        return self.arrow_start, (start_x + float(offset[0]), start_y + float(offset[1]))


def project_keys(keys: KeyMatrix, queries: KeyMatrix, extra_points: KeyMatrix | None = None) -> KeyProjection | None:
    """Project keys to the plane; return None unless they have two or three dimensions.

    The axis limits are chosen so that query arrows and `extra_points` fit.
    """
    head_dim = keys.shape[1]
    if head_dim not in (2, 3):
        return None
    center = keys.mean(axis=0)
    spread = float(np.linalg.norm(keys - center, axis=1).max()) or 1.0
    origin = np.zeros(head_dim) if np.linalg.norm(center) <= MAX_ORIGIN_DISTANCE * spread else center
    projection = np.eye(2) if head_dim == 2 else _choose_projection_matrix(keys)
    max_distance = max(float(np.linalg.norm(keys - origin, axis=1).max()), 0.5 * spread)
    arrow_length = ARROW_LENGTH_RATIO * max_distance
    plane_keys = np.asarray(keys @ projection)
    start = origin @ projection
    hull_segments = tuple((to_pair(plane_keys[a]), to_pair(plane_keys[b])) for a, b in find_hull_edges(keys))
    axis_segments = tuple(
        (AXIS_NAMES[axis], (to_pair(start), to_pair(start + max_distance * projection[axis])))
        for axis in range(head_dim)
        if head_dim == 3
    )
    norms = np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-300)
    arrow_tips = start + arrow_length * (queries / norms) @ projection
    projected_extra_points = [] if extra_points is None else [extra_points @ projection]
    axis_points = [np.array(segment) for _, segment in axis_segments]
    drawn_points = np.vstack([plane_keys, start, arrow_tips, *projected_extra_points, *axis_points])
    return KeyProjection(
        matrix=projection,
        keys=plane_keys,
        arrow_start=to_pair(start),
        arrow_length=arrow_length,
        hull_segments=hull_segments,
        axis_segments=axis_segments,
        axis_limits=_compute_axis_limits(drawn_points),
    )


def _compute_axis_limits(points: PlanePoints) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the axis limits of a projection: a square that contains all points, so that angles are preserved."""
    low, high = points.min(axis=0), points.max(axis=0)
    half_width = 0.57 * float((high - low).max()) or 1.0
    center = (low + high) / 2
    return (float(center[0] - half_width), float(center[0] + half_width)), (
        float(center[1] - half_width),
        float(center[1] + half_width),
    )


def _choose_projection_matrix(keys: KeyMatrix) -> Float[np.ndarray, "head_dim two"]:
    """Choose the azimuth that maximizes the smallest distance between two projected keys."""
    best_projection, best_distance = None, -1.0
    for step in range(NUM_AZIMUTHS):
        projection = _build_projection_matrix(2 * math.pi * (step + 0.5) / NUM_AZIMUTHS)
        plane_keys = keys @ projection
        distances = np.linalg.norm(plane_keys[:, None] - plane_keys[None], axis=-1)
        np.fill_diagonal(distances, np.inf)
        if (nearest := float(distances.min())) > best_distance + 1e-9:
            best_projection, best_distance = projection, nearest
    assert best_projection is not None
    return best_projection


def _build_projection_matrix(azimuth: float) -> Float[np.ndarray, "head_dim two"]:
    """Return the projection matrix of a camera at an azimuth: its right and up directions."""
    right = [-math.sin(azimuth), math.cos(azimuth), 0.0]
    up = [
        -math.sin(CAMERA_ELEVATION) * math.cos(azimuth),
        -math.sin(CAMERA_ELEVATION) * math.sin(azimuth),
        math.cos(CAMERA_ELEVATION),
    ]
    return np.array([right, up]).T


def find_hull_edges(keys: KeyMatrix) -> list[tuple[int, int]]:
    """Return the pairs of keys to join by a line in a projection, the edges of their hull; empty if degenerate."""
    try:
        hull = ConvexHull(keys)
    except (QhullError, ValueError):
        return []
    if keys.shape[1] == 2:
        cycle = [*hull.vertices, hull.vertices[0]]
        return [(int(a), int(b)) for a, b in pairwise(cycle)]
    normals_by_edge: dict[tuple[int, int], list[Any]] = {}
    for corners, plane in zip(hull.simplices, hull.equations, strict=True):
        for a in range(3):
            first, second = sorted((int(corners[a]), int(corners[(a + 1) % 3])))
            normals_by_edge.setdefault((first, second), []).append(plane[:3])
    # Qhull triangulates faces: a segment between two coplanar triangles is not an edge.
    return [edge for edge, (normal_a, normal_b) in normals_by_edge.items() if normal_a @ normal_b < 1 - 1e-9]


def project_by_score(keys: KeyMatrix, query: Vector) -> PlanePoints:
    """Return plane coordinates with the score as height and the direction of largest spread as the horizontal axis."""
    norm = float(np.linalg.norm(query))
    query_direction = query / norm if norm else query
    centered_keys = keys - keys.mean(axis=0)
    residual = centered_keys - np.outer(centered_keys @ query_direction, query_direction)
    _, singular_values, axes = np.linalg.svd(residual, full_matrices=False)
    horizontal_coordinates = (
        residual @ axes[0] if len(singular_values) and singular_values[0] > 1e-12 else np.zeros(len(keys))
    )
    return np.column_stack([horizontal_coordinates, keys @ query])


def to_pair(point: Any) -> tuple[float, float]:
    """Return the two coordinates of a point as floats."""
    return float(point[0]), float(point[1])
