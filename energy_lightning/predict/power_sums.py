"""Sums of products of powers: the readable formulas that a search may find, their fit and their text.

    E = sum_k c_k * prod_j x_j^p_kj,   c_k > 0        joules; x_j the columns of a table

    symbol    shape     meaning
    n, t      -         rows, terms
    logs      (n,)      natural logarithm of a column
    target    (n,)      ln E

Positive factors make every term a part of the energy that `explain` can show, and no prediction negative. EnergyLens's
prefill, decode and overhead are such terms but for its eps. Fit: least squares of ln(predicted / measured) whose loss
bends for outliers (`loss`), analytic gradient, exponents drawn weakly to 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import leastsq

from energy_lightning.predict.columns import Columns, Floats, PredictionError
from energy_lightning.predict.loss import bent, bent_slope

_SCALE = 0.07  # relative error beyond which the loss bends, as in `fitting`
_EXPONENT_DEVIATION, _FACTOR_DEVIATION = 1.5, 10.0
_MOST_EXPONENT = 4.0
_NEW_SHARE = np.log(0.05)  # of the energy: where a term that was just added starts
_MOST_EVALUATIONS = 40

Structure = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Term:
    """exp(log_factor) * prod x^exponents[x]."""

    log_factor: float
    exponents: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PowerSum:
    """A formula: one term or more."""

    terms: tuple[Term, ...]

    @property
    def num_constants(self) -> int:
        """A factor and the exponents of each term: what makes the formula long."""
        return sum(1 + len(term.exponents) for term in self.terms)

    @property
    def structure(self) -> Structure:
        """Which columns stand in which term; equal for formulas that differ in constants or order only."""
        return tuple(sorted(tuple(sorted(term.exponents)) for term in self.terms))

    def log_terms(self, logs: Columns, num_rows: int) -> Floats:
        """(t, n): logarithm of each term."""
        result = np.empty((len(self.terms), num_rows))
        for row, term in zip(result, self.terms, strict=True):
            row[:] = term.log_factor + sum(power * logs[name] for name, power in term.exponents.items())
        return result

    def log_energy(self, logs: Columns, num_rows: int) -> Floats:
        """ln E, (n,)."""
        return np.asarray(np.logaddexp.reduce(self.log_terms(logs, num_rows), axis=0))

    def fitted(self, logs: Columns, target: Floats, *, most_evaluations: int = _MOST_EVALUATIONS) -> PowerSum:
        """The same structure with the constants that fit best, from its own as the start."""
        means = {name: float(logs[name].mean()) for name in {name for term in self.terms for name in term.exponents}}
        fit = _Fit.of(self, {name: logs[name] - mean for name, mean in means.items()}, target)
        start = np.array([value for term in self.terms for value in _constants(term, means)])
        found = leastsq(  # what least_squares(method="lm") calls, without its bookkeeping: half of the time here
            fit.residuals,
            start,
            Dfun=fit.jacobian,
            col_deriv=True,
            full_output=True,
            maxfev=most_evaluations,
            diag=np.ones(len(start)),
            ftol=1e-5,
            xtol=1e-5,
            gtol=1e-5,
        )
        return self._with(found[0])._shifted({name: -mean for name, mean in means.items()})

    def _with(self, constants: Floats) -> PowerSum:
        terms, at = [], 0
        for term in self.terms:
            powers = constants[at + 1 : at + 1 + len(term.exponents)].tolist()
            terms.append(Term(float(constants[at]), dict(zip(term.exponents, powers, strict=True))))
            at += 1 + len(term.exponents)
        return PowerSum(tuple(terms))

    def _shifted(self, shifts: Mapping[str, float]) -> PowerSum:
        """Of logarithms that are higher by `shifts`."""
        moved = (
            Term(t.log_factor + sum(p * shifts[name] for name, p in t.exponents.items()), t.exponents)
            for t in self.terms
        )
        return PowerSum(tuple(moved))

    def scaled(self, log_factor: float) -> PowerSum:
        """exp(log_factor) times this."""
        return PowerSum(tuple(Term(term.log_factor + log_factor, term.exponents) for term in self.terms))

    def neighbours(self, names: list[str], logs: Columns, target: Floats) -> Iterator[PowerSum]:
        """Structures one step away: a column less or more in a term, a term less or more."""
        for i, term in enumerate(self.terms):
            others = self.terms[:i] + self.terms[i + 1 :]
            if others:
                yield PowerSum(others)
            for name in names:
                powers = {key: power for key, power in term.exponents.items() if key != name}
                if name not in term.exponents:
                    powers = {**term.exponents, name: 0.0}
                shift = term.exponents.get(name, 0.0) * float(logs[name].mean())
                yield PowerSum((*others, Term(term.log_factor + shift, powers)))
        small = float(target.mean()) + _NEW_SHARE
        yield PowerSum((*self.terms, Term(small, {})))
        for name in names:
            yield PowerSum((*self.terms, Term(small - float(logs[name].mean()), {name: 1.0})))

    def text(self, *, digits: int = 3) -> str:
        """The formula, joules: columns in alphabetical order, terms by their columns."""
        parts = []
        for term in sorted(self.terms, key=lambda each: sorted(each.exponents)):
            powers = [f"{name}^{power:.{digits}g}" for name, power in sorted(term.exponents.items())]
            parts.append(" * ".join([f"{np.exp(term.log_factor):.{digits}g}", *powers]))
        return "\n  + ".join(parts)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Residuals of one structure by its K constants (each term's factor, then its exponents), and their derivatives.

    Attributes:
        by: (K, n), derivative of the constant's term by the constant: 1, or the centred logarithm of a column.
        term_of: (K,), the constant's term. first: (t,), each term's first constant.
        target: (n,). middle, deviations: (K,), where constants are drawn to, and how weakly.
    """

    by: Floats
    term_of: NDArray[np.intp]
    first: NDArray[np.intp]
    target: Floats
    middle: Floats
    deviations: Floats

    @classmethod
    def of(cls, formula: PowerSum, centred: Columns, target: Floats) -> _Fit:
        """Of the structure of `formula`, for centred logarithms."""
        ones, level = np.ones(len(target)), float(target.mean())
        sizes = np.array([1 + len(term.exponents) for term in formula.terms])
        first = np.cumsum(sizes) - sizes
        middle, deviations = np.zeros(sizes.sum()), np.full(sizes.sum(), _EXPONENT_DEVIATION)
        middle[first], deviations[first] = level, _FACTOR_DEVIATION
        by = np.stack([row for term in formula.terms for row in (ones, *(centred[name] for name in term.exponents))])
        return cls(by, np.repeat(np.arange(len(sizes)), sizes), first, target, middle, deviations)

    def residuals(self, constants: Floats) -> Floats:
        """(n + K,): of the rows, bent for outliers, then of what draws the constants."""
        off, _ = self._off(constants)
        return np.concatenate([bent(off), (constants - self.middle) / self.deviations])

    def jacobian(self, constants: Floats) -> Floats:
        """(K, n + K)."""
        off, shares = self._off(constants)
        slope = bent_slope(off) / _SCALE
        return np.hstack([(shares * slope)[self.term_of] * self.by, np.diag(1.0 / self.deviations)])

    def _off(self, constants: Floats) -> tuple[Floats, Floats]:
        """(n,) ln(predicted / measured) in units of the scale, and (t, n) each term's share of the prediction."""
        log_terms = np.add.reduceat(constants[:, None] * self.by, self.first, axis=0)
        most = log_terms.max(axis=0)
        terms = np.exp(log_terms - most)
        total = terms.sum(axis=0)
        return (most + np.log(total) - self.target) / _SCALE, terms / total


def _constants(term: Term, means: Mapping[str, float]) -> list[float]:
    """Factor and exponents for centred logarithms, within what a fit can start from."""
    powers = {name: float(np.clip(p, -_MOST_EXPONENT, _MOST_EXPONENT)) for name, p in term.exponents.items()}
    return [term.log_factor + sum(power * means[name] for name, power in term.exponents.items()), *powers.values()]


def power_sum(text: str) -> PowerSum | None:
    """The power sum of a formula over names of logarithms, or None where it is none.

    Knows numbers, names, + - *, exp; exp(a + b * x) is a product of powers of what x is the logarithm of. Names outside
    exp, sums inside exp of an exp, and factors <= 0 make it no power sum. Nothing is executed.

    Raises:
        PredictionError: anything else in the text.
    """
    found = _read(ast.parse(text, mode="eval").body, text)
    if found.logs or found.nested or any(factor <= 0.0 for factor, _ in found.exponentials):
        return None
    terms = [Term(float(np.log(factor)), dict(powers)) for factor, powers in found.exponentials]
    if found.constant > 0.0:
        terms.append(Term(float(np.log(found.constant)), {}))
    elif found.constant < 0.0:
        return None
    return PowerSum(tuple(terms)) if terms else None


@dataclass(frozen=True, slots=True)
class _Read:
    """constant + sum of logs + sum of exponentials (factor, powers); nested: something that none of these can hold."""

    constant: float
    logs: Mapping[str, float]
    exponentials: tuple[tuple[float, Mapping[str, float]], ...] = ()
    nested: bool = False

    def plus(self, other: _Read) -> _Read:
        logs = dict(self.logs)
        for name, power in other.logs.items():
            logs[name] = logs.get(name, 0.0) + power
        exponentials = self.exponentials + other.exponentials
        return _Read(self.constant + other.constant, logs, exponentials, self.nested or other.nested)

    def times(self, factor: float) -> _Read:
        logs = {name: factor * power for name, power in self.logs.items()}
        exponentials = tuple((factor * each, powers) for each, powers in self.exponentials)
        return _Read(factor * self.constant, logs, exponentials, self.nested)

    def exp(self) -> _Read:
        factor = float(np.exp(np.clip(self.constant, -300.0, 300.0)))
        if not self.logs:
            return _Read(factor, {}, nested=self.nested or bool(self.exponentials))
        return _Read(0.0, {}, ((factor, self.logs),), self.nested or bool(self.exponentials))


def _read(node: ast.AST, text: str) -> _Read:
    match node:
        case ast.Constant(value=float() | int() as value):
            return _Read(float(value), {})
        case ast.Name(id=name):
            return _Read(0.0, {name: 1.0})
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _read(operand, text).times(-1.0)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _read(left, text).plus(_read(right, text))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _read(left, text).plus(_read(right, text).times(-1.0))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _read(left, text), _read(right, text)
            for one, other in ((first, second), (second, first)):
                if not one.logs and not one.exponentials:
                    return other.times(one.constant)
            return _Read(0.0, {}, nested=True)
        case ast.Call(func=ast.Name(id="exp"), args=[argument], keywords=[]):
            return _read(argument, text).exp()
        case _:
            raise PredictionError(f"a formula may hold numbers, columns, + - *, and exp, got {text!r}")
