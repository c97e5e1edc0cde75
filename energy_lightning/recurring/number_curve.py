"""A curve over batch sizes behind numbers of evaluations that were rounded up (floor 1).

Symbols as in `rounded`, r of `roughs`: f of all arms is a line, a smooth and a rough part over octaves of batch size.
Its posterior is Gaussian by expectation propagation (Minka, UAI 2001), with one site for all runs of an arm, whose
moments are sums over a grid of f and s. How often each of `spreads` occurs among the arms is learned from all of them
(empirical Bayes), and of `roughs` each counts by its evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energy_lightning.recurring.beliefs import Beliefs, Curve, Floats
from energy_lightning.recurring.rounded import Seen, numbers_of, over_spreads

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)  # of a standard normal variable
_LEAST = 1e-6  # precision of a site that says next to nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberPrior:
    """Standard deviations of log t, a length in octaves: see benchmarks/RESULTS.md for on what they were chosen.

    `trend`: mean slope of f an octave, as larger batches need no fewer epochs (Shallue et al., JMLR 20, 2019);
    `usual_spread`: about which `spreads` are likely, within `spread_octaves`, as strongly as one arm's runs would say;
    `sweeps`: of expectation propagation.
    """

    level: float = 2.0
    slope: float = 0.3
    trend: float = 0.1
    smooth: float = 0.4
    length_octaves: float = 3.0
    roughs: tuple[float, ...] = (0.02, 0.05, 0.1, 0.3)
    spreads: tuple[float, ...] = (0.02, 0.035, 0.06, 0.1, 0.17, 0.3, 0.5)
    usual_spread: float = 0.08
    spread_octaves: float = 0.87
    sweeps: int = 8

    def curve(self, rough: float, octaves: Floats) -> Floats:
        """(a, a) covariance of f."""
        line = {"level": self.level, "slope": self.slope}
        return Curve(**line, smooth=self.smooth, length_octaves=self.length_octaves, rough=rough).covariance(octaves)

    def usual(self) -> Floats:
        """(k,) chance of each spread."""
        apart = np.log2(np.array(self.spreads) / self.usual_spread) / self.spread_octaves
        chance: Floats = np.exp(-0.5 * apart**2)
        chance /= chance.sum()
        return chance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Under each of `roughs`: log `evidence` (r,), `share` (r, k) of each spread, `mean` (r, a) and `covariance` of f.

    Of tried arms the `chance` (r, m, g) of f, and `unspread`, to be multiplied by a spread's share and `Seen.likely`.
    """

    evidence: Floats
    share: Floats
    mean: Floats
    covariance: Floats
    chance: Floats
    unspread: Floats


def beliefs_of_number(seen: Seen, octaves: Floats, prior: NumberPrior) -> Beliefs:
    """Of log E[N] of all arms: the mixture over `roughs`, as one Gaussian."""
    fit = _fit(seen, octaves, prior)
    means, covariances, noise = _of_number(seen, fit, prior)
    weight = np.exp(fit.evidence - fit.evidence.max())
    weight /= weight.sum()
    mean: Floats = weight @ means
    apart = means - mean
    covariance = np.tensordot(weight, covariances + apart[:, :, None] * apart[:, None, :], axes=1)
    return Beliefs(expected=mean, covariance=covariance, noise=weight @ noise)


def _fit(seen: Seen, octaves: Floats, prior: NumberPrior) -> _Fit:
    """Expectation propagation, all of `roughs` at once."""
    arms, curve = seen.arms, np.stack([prior.curve(rough, octaves) for rough in prior.roughs])
    line = seen.middle + prior.trend * (octaves - octaves[arms].mean())  # about which f is a curve
    usual = prior.usual()
    share = np.tile(usual, (len(curve), 1))
    inverse = np.linalg.inv(curve[:, arms[:, None], arms])
    precision = pull = np.zeros((len(curve), len(arms)))  # of the sites
    f = seen.grid - line[arms][:, None]
    for sweep in range(prior.sweeps + 1):
        covariance = np.linalg.inv(inverse + precision[:, :, None] * np.eye(len(arms)))
        mean, variance = np.einsum("rmn,rn->rm", covariance, pull), np.diagonal(covariance, axis1=1, axis2=2)
        rest = 1.0 / np.maximum(1.0 / variance - precision, _LEAST)  # variance without the arm's own runs
        guess = rest * (mean / variance - pull)
        evidence, chance, unspread = seen.given(line[arms] + guess, rest, share)
        if sweep == prior.sweeps:
            break
        own_mean = (chance * f).sum(axis=2)
        own_variance = np.maximum((chance * (f - own_mean[..., None]) ** 2).sum(axis=2), 1e-7)
        wanted = np.maximum(1.0 / own_variance - 1.0 / rest, _LEAST)
        step = 0.8 if sweep else 1.0
        pull = pull + step * (own_mean * (wanted + 1.0 / rest) - guess / rest - pull)
        precision = precision + step * (wanted - precision)
        seen_so = share * np.tensordot(unspread, seen.likely, axes=([1, 2], [0, 2]))  # arms that have each spread
        share = (usual + seen_so) / (1.0 + len(arms))
    moved = guess**2 / rest - (guess / rest + pull) ** 2 / (1.0 / rest + precision)
    sites = evidence + 0.5 * (np.log1p(precision * rest) + moved)
    volume = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(inverse)[1]
    gain = curve[:, :, arms] @ inverse
    return _Fit(
        evidence=sites.sum(axis=1) + 0.5 * (volume + (mean * pull).sum(axis=1)),
        share=share,
        mean=line + np.einsum("ram,rm->ra", gain, mean),
        covariance=curve - gain @ (curve[:, arms] - covariance @ gain.transpose(0, 2, 1)),
        chance=chance,
        unspread=unspread,
    )


def _of_number(seen: Seen, fit: _Fit, prior: NumberPrior) -> tuple[Floats, Floats, Floats]:
    """From f to log E[N], its mean (r, a) and covariance (r, a, a), and the variance (r, a) of log N.

    The best line through each arm's own belief, and what is left of its own; an arm that was not tried has a normal f.
    """
    variance = np.diagonal(fit.covariance, axis1=1, axis2=2)
    others = np.setdiff1d(np.arange(fit.mean.shape[1]), seen.arms)
    f = fit.mean[:, others, None] + np.sqrt(variance[:, others, None]) * _NODES
    numbers, usual = np.stack(numbers_of(f, prior.spreads)), _WEIGHTS / _WEIGHTS.sum()  # (3, r, others, k, points)
    value, along, square, noise = (np.empty_like(fit.mean) for _ in range(4))
    for arms, points, chance, weighted in (
        (seen.arms, seen.grid, fit.chance, fit.unspread * over_spreads(fit.share, seen.numbers)),
        (others, f, usual, usual * (fit.share[:, None, None, :] @ numbers)[..., 0, :]),
    ):
        value[:, arms], square[:, arms], noise[:, arms] = weighted.sum(axis=-1)
        along[:, arms] = ((weighted[0] - value[:, arms, None] * chance) * points).sum(axis=-1)
    slope = along / variance
    own = np.maximum(square - value**2 - slope * along, 0.0)
    covariance = slope[:, :, None] * slope[:, None, :] * fit.covariance
    return value, covariance + own[:, :, None] * np.eye(own.shape[1]), noise
