"""The pseudo-Huber loss of relative errors, for least squares: small errors count squared, outliers linearly.

    rho(r) = bend^2 (sqrt(1 + (r / bend)^2) - 1)        r (n,): ln(predicted / measured) in units of the usual error

Source: Charbonnier et al., IEEE Transactions on Image Processing 6 (1997).
"""

from __future__ import annotations

import numpy as np

from energy_lightning.predict.columns import Floats

_BEND = 1.5


def bent(relative: Floats) -> Floats:
    """(n,) residuals whose squares are twice the loss of `relative` (n,)."""
    return np.asarray(relative * np.sqrt(2.0 / (1.0 + np.sqrt(1.0 + (relative / _BEND) ** 2))))


def bent_slope(relative: Floats) -> Floats:
    """(n,) derivative of `bent`."""
    root = np.sqrt(1.0 + (relative / _BEND) ** 2)
    return np.asarray(1.0 / (root * np.sqrt(2.0 / (1.0 + root))))
