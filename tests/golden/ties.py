"""Detects synthetic cases that f32 arithmetic could decide differently: those are not golden."""

import numpy as np


def near_tie(scores: np.ndarray, counts: list[int], margin: float = 2e-5) -> bool:
    """Whether f32 arithmetic could select differently: a *different* value within `margin` of the last one kept.

    Equal values (max pooling makes them) are safe: equal in f64 is equal in f32, and the lower position wins."""
    for row, count in zip(scores, counts):
        row = np.asarray(row, dtype=np.float64)
        if count <= 0 or count >= len(row):
            continue
        cut = np.sort(row)[::-1][count - 1]
        others = row[row != cut]
        if len(others) and np.abs(others - cut).min() < margin * max(abs(cut), 1e-12):
            return True
    return False


def any_near_tie(scores: np.ndarray, margin: float = 2e-6) -> bool:
    """Whether any two different values in a row are closer than `margin`: for methods whose order matters, not only the
    cut."""
    for row in scores:
        values = np.unique(np.asarray(row, dtype=np.float64))
        if len(values) > 1 and (np.diff(values) < margin * np.abs(values[1:])).any():
            return True
    return False
