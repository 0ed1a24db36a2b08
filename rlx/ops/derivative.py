"""
Gradients by complex steps: what the meanings of gradient operations are computed with.

f(x + ih) = f(x) + ih f'(x) + O(h^2), so that the imaginary part holds the derivative to the last
digit for a small h (Squire and Trapp, 1998). Functions must be written for complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.ops.record import Array

STEP = 1e-30


def pulled_back(function: Callable[[Array], Array], x: Array, upstream: Array, mixed: int) -> Array:
    """
    Return the gradient of sum(function(x) * upstream) by x.

    Only elements of the last `mixed` axes of x may act on each other: the axes before them are the
    first ones of the function's value too, and are stepped all at once.
    """
    import numpy as np

    lead = x.ndim - mixed
    result = np.zeros(x.shape, np.float64)
    for place in np.ndindex(x.shape[lead:]):
        stepped = x.astype(np.complex128)
        stepped[(..., *place)] += 1j * STEP
        derivative = np.imag(function(stepped)) / STEP
        result[(..., *place)] = (derivative * upstream).sum(axis=tuple(range(lead, upstream.ndim)))
    return result
