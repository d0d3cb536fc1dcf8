"""The three small programs that every question of design by hand comes down to. All are convex, so that an answer is
the answer, and each says how far off it can be.

nearest     the point of a convex hull that is nearest to the origin: how far a key stands out, and a proof when it
            does not. Wolfe, Finding the nearest point in a polytope, Mathematical Programming 11 (1976)
lowest      the query that is best where no target can be met: Newton's method on log-sum-exp
shortest    the shortest query that reaches a wanted precision, with a lower bound from the dual program (Boyd and
            Vandenberghe, Convex Optimization, 2004, chapter 5)

Written here and not handed to a general solver, because a query near the limit is long: the solvers of scipy stop at
absolute tolerances of 1e-7 or so, where a key that stands out by 1e-8 cannot be told from one that does not. The rows
are taken to be of size about 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Rows = Float[np.ndarray, "key head_dim"]
OfKeys = Float[np.ndarray, " key"]
Vector = Float[np.ndarray, " head_dim"]

ROUNDING = 1e-14
SETTLED = 1e-24
"""a step of Newton's method that would gain less than half of this is the last"""
MOST_STEPS = 500
MOST_PRICES = 100
EPSILON = float(np.finfo(float).eps)


def logsumexp(scores: OfKeys) -> float:
    """As scipy's, which takes twenty times as long over so few numbers."""
    highest = scores.max()
    return float(highest + np.log(np.exp(scores - highest).sum()))


def softmax(scores: OfKeys) -> OfKeys:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


@dataclass(frozen=True, eq=False)
class Nearest:
    """The point of the hull nearest to the origin, how it is mixed from the rows, and two bounds on its distance."""

    point: Vector
    shares: OfKeys
    at_least: float
    at_most: float


def nearest(rows: Rows) -> Nearest:
    """Wolfe's method: grow a small set of corners whose flat is nearest to the origin.

    `at_least` is how far the hull lies beyond a plane, measured on all rows, and so holds whatever the method did.
    """
    members = [int(np.argmin(np.linalg.norm(rows, axis=1)))]
    shares, point = np.ones(1), rows[members[0]]
    for _ in range(MOST_STEPS):
        distance = float(np.linalg.norm(point))
        if distance <= ROUNDING:
            break
        along = rows @ (point / distance)
        entering = int(np.argmin(along))
        if distance - along[entering] <= ROUNDING or entering in members:
            break
        grown, grown_shares, nearer = _within(rows, [*members, entering], np.append(shares, 0.0))
        if np.linalg.norm(nearer) >= distance:
            break  # rounding has the last word
        members, shares, point = grown, grown_shares, nearer
    all_shares = np.zeros(len(rows))
    all_shares[members] = shares / shares.sum()
    distance = float(np.linalg.norm(point))
    at_least = float((rows @ (point / distance)).min()) if distance > 0 else 0.0
    return Nearest(point, all_shares, max(at_least, 0.0), distance)


def _within(rows: Rows, members: list[int], shares: OfKeys) -> tuple[list[int], OfKeys, Vector]:
    """The nearest point of the members' flat, without those members that would get a share below 0."""
    while True:
        flat, point = _nearest_of_flat(rows[members])
        outside = flat <= ROUNDING
        if not outside.any() or len(members) == 1:
            return members, flat, point
        steps = np.full(len(members), np.inf)
        steps[outside] = shares[outside] / np.maximum(shares[outside] - flat[outside], ROUNDING)
        first = int(np.argmin(steps))
        shares = shares + min(1.0, steps[first]) * (flat - shares)
        kept = [at for at in range(len(members)) if at != first and shares[at] > ROUNDING]
        members, shares = [members[at] for at in kept], shares[kept]


def _nearest_of_flat(corners: Rows) -> tuple[OfKeys, Vector]:
    """The nearest point of the flat through the corners. Twice, because the first result is only as orthogonal to the
    flat as its own rounding errors, and what matters later is its direction."""
    sides = (corners[1:] - corners[0]).T
    if sides.shape[1] == 0:
        return np.ones(1), corners[0]
    first = np.linalg.lstsq(sides, -corners[0], rcond=None)[0]
    point = corners[0] + sides @ first
    second = np.linalg.lstsq(sides, -point, rcond=None)[0]
    others = first + second
    return np.concatenate(([1 - others.sum()], others)), point + sides @ second


def lowest(rows: Rows) -> Vector:
    """The shortest vector that makes log-sum-exp(rows @ vector) lowest. There is one if the origin lies inside the
    rows' hull, not on its rim; whoever calls sees to that."""
    vector = np.zeros(rows.shape[1])
    for _ in range(MOST_STEPS):
        value = logsumexp(rows @ vector)
        slope, turns, bends = _shape(rows, rows @ vector)
        along = turns @ slope
        # The slope is a mean of rows of size 1: what is smaller than their rounding has no direction.
        used = (bends > ROUNDING * max(float(bends.max()), ROUNDING)) & (np.abs(along) > 4 * EPSILON)
        step = -turns[used].T @ (along[used] / bends[used] ** 2)
        gain = -float(slope @ step)
        size, least = 1.0, 4 * EPSILON * (1 + abs(value))
        while logsumexp(rows @ (vector + size * step)) > value - 0.25 * size * gain + least:
            size /= 2
        vector = vector + size * step
        if gain <= SETTLED:
            break
    return vector


def _shape(rows: Rows, scores: OfKeys) -> tuple[Vector, Rows, OfKeys]:
    """Slope and curvature of log-sum-exp: the curvature as axes and the roots of its size along them, which a singular
    value decomposition gives with twice the digits that the matrix itself would."""
    weights = softmax(scores)
    slope = weights @ rows
    _, bends, turns = np.linalg.svd(np.sqrt(weights)[:, None] * (rows - slope), full_matrices=False)
    return slope, turns, bends


@dataclass(frozen=True, eq=False)
class Shortest:
    """A vector that keeps log-sum-exp below the limit, and a length below which none does."""

    vector: Vector
    at_least: float


def shortest(rows: Rows, offsets: OfKeys, limit: float, start: Vector, price: float) -> Shortest:
    """The shortest vector with log-sum-exp(offsets + rows @ vector) <= limit; there must be one.

    For each price of exceeding the limit, |vector|^2 / 2 + price log-sum-exp has one lowest point, which Newton's
    method finds. The right price is the one at which the limit is just met; it is found by Newton's method too, kept
    between the highest price known to be too low and the lowest known to be enough.
    """
    if logsumexp(offsets) <= limit:
        return Shortest(np.zeros(rows.shape[1]), 0.0)
    vector, low, high = start, 0.0, math.inf
    best: Vector | None = None
    for _ in range(MOST_PRICES):
        vector, slope, turn = _at_price(rows, offsets, vector, price)
        excess = logsumexp(offsets + rows @ vector) - limit
        hair = 1e-12 + 4 * EPSILON * float(np.linalg.norm(vector))
        if excess > 0:
            low = price
        else:
            high, best = price, vector
        if (best is not None and -4 * hair <= excess <= 0) or high - low <= 1e-14 * price:
            break
        new = _next_price(price, excess + 2 * hair, float(slope @ turn), low, high)
        vector, price = vector - (new - price) * turn, new
    found = vector if best is None else best
    return Shortest(found, length_needed(rows, offsets, softmax(offsets + rows @ found), limit))


def length_needed(rows: Rows, offsets: OfKeys, weights: OfKeys, limit: float) -> float:
    """A length below which no vector keeps the limit. For any weights w, log-sum-exp(o + rows @ v) is at least
    w @ (o - log w) + w @ rows @ v (Gibbs), of which the last term is at least -|w @ rows| |v|. All weights give a
    bound; those of the shortest vector give its own length."""
    used = weights > 0
    free = float(weights[used] @ (offsets[used] - np.log(weights[used]))) - limit
    return max(0.0, free / max(float(np.linalg.norm(weights @ rows)), EPSILON))


def _next_price(price: float, excess: float, gain: float, low: float, high: float) -> float:
    wanted = price + excess / max(gain, 1e-300)
    if low < wanted < high and wanted < 10 * price:
        return wanted
    return 10 * price if high == math.inf else (low + high) / 2


def _at_price(rows: Rows, offsets: OfKeys, vector: Vector, price: float) -> tuple[Vector, Vector, Vector]:
    """The lowest point at this price, the slope of log-sum-exp there, and how the point goes as the price falls."""
    for _ in range(MOST_STEPS):
        slope, turns, bends = _shape(rows, offsets + rows @ vector)
        left = vector + price * slope
        step = -_solved(left, turns, bends, price)
        gain = -float(left @ step)
        if gain <= (4 * EPSILON * (price + float(np.linalg.norm(vector)))) ** 2:
            break  # the slope is the difference of two vectors of that size: the rest is rounding
        size = 1.0
        if gain > 1e-8:
            value = _priced(rows, offsets, vector, price)
            least = EPSILON * (1 + abs(value))
            while _priced(rows, offsets, vector + size * step, price) > value - 0.25 * size * gain + least:
                size /= 2
        vector = vector + size * step
        if np.abs(rows @ step).max() < 1e-7:
            break  # Newton's method doubles the digits: after this step there are 14
    return vector, slope, _solved(slope, turns, bends, price)


def _priced(rows: Rows, offsets: OfKeys, vector: Vector, price: float) -> float:
    return float(vector @ vector) / 2 + price * logsumexp(offsets + rows @ vector)


def _solved(right: Vector, turns: Rows, bends: OfKeys, price: float) -> Vector:
    """(identity + price curvature)^-1 right."""
    along = turns @ right
    return np.asarray(right - turns.T @ along + turns.T @ (along / (1 + price * bends**2)))
