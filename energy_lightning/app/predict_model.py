"""The model file of a predictor: YAML with settings, formula, accuracy, and the table that it was fitted to.

Constants are there for people to read; a predictor that is loaded is fitted again to the file's own table, which takes
well under a second and gives the same constants, so predictions, intervals and warnings are those of the first fit.
A formula that was searched for is taken from the file (`found`): searching again would take long.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from energy_lightning.app.predict_table import ENERGY, numbers_of
from energy_lightning.predict import (
    EnergyLens,
    FineTuningEnergy,
    FormulaSearch,
    PredictionError,
    PredictionWarning,
    mape_pct,
)
from energy_lightning.predict.lens import OPTIONAL as LENS_OPTIONAL
from energy_lightning.predict.lens import REQUIRED as LENS_REQUIRED
from energy_lightning.predict.proxies import OPTIONAL as RUN_OPTIONAL
from energy_lightning.predict.proxies import REQUIRED as RUN_REQUIRED
from energy_lightning.types import ConfigError

TRAINING, INFERENCE = "training", "inference"
REQUIRED = {TRAINING: RUN_REQUIRED, INFERENCE: LENS_REQUIRED}
COLUMNS = {
    TRAINING: (*RUN_REQUIRED, *RUN_OPTIONAL, "num_heads", "time_s"),
    INFERENCE: (*LENS_REQUIRED, *LENS_OPTIONAL),
}
SETTINGS = {TRAINING: ("law", "correction"), INFERENCE: ("form", "method", "consider_published", "seed")}
FORMULA = "formula"  # the method that searches for one
_VERSION = 2  # of the file: 2 may hold `found`
_FOLDS = 5
_HELD_W = 100.0  # GPU-seconds become the energies of a GPU that draws always this; any constant will do
_HEAD = """\
# Written by `energy-lightning fit`. Use it with `energy-lightning predict {kind} model_file=THIS_FILE ...`.
# formula and accuracy are for reading; predictions come from a fit to the table below, which may be edited, and of a
# formula that was searched for from its terms under `found`.
"""


@dataclass(frozen=True, eq=False)
class EnergyModel:
    """A predictor together with its table.

    Attributes:
        kind: "training" or "inference".
        settings: of the estimator.
        table: a DataFrame of its columns and energy_j; time_s (of the run) too where hours can be predicted.
        emulated: the energies are an emulated GPU's.
        found: what an earlier search found on the same table, or None.
    """

    kind: str
    settings: dict[str, Any]
    table: Any
    emulated: bool
    found: dict[str, Any] | None = None

    def _estimator(self) -> Any:
        if self.kind == TRAINING:
            return FineTuningEnergy(**self.settings)
        settings = {name: value for name, value in self.settings.items() if name != "consider_published"}
        if settings.get("method") != FORMULA:
            return EnergyLens(**settings)
        if settings.get("form", "additive") != "additive":
            raise ConfigError(f"method=formula goes with form=additive, got form={settings['form']}")
        consider = self.settings.get("consider_published", True)
        if not isinstance(consider, bool):
            raise ConfigError(f"consider_published must be true or false, got {consider!r}")
        return FormulaSearch(consider_published=consider, seed=settings.get("seed", 0))

    def inputs(self, table: Any) -> Any:
        """The columns of `table` that the estimator looks at."""
        return table[[name for name in COLUMNS[self.kind] if name in table.columns and name != "time_s"]]

    @property
    def energy_j(self) -> Any:
        """(n,) as fitted to, joules over all GPUs."""
        return self.table[ENERGY].to_numpy(dtype=float)

    @cached_property
    def explaining(self) -> Any:
        """The estimator fitted to all columns; for training with the speed-ups, where the table has them.

        Raises ConfigError where a formula is to be searched for and the library is not there.
        """
        estimator, inputs = self._estimator(), self.inputs(self.table)
        if self.found is not None and isinstance(estimator, FormulaSearch):
            return estimator.use(self.found, inputs, self.energy_j)
        try:
            return estimator.fit(inputs, self.energy_j)
        except ImportError as error:
            raise ConfigError(f"method=formula: {error}") from error

    @cached_property
    def predicting(self) -> Any:
        """The estimator for new configurations, whose speed-up nobody has measured: communication has prices."""
        if self.kind == INFERENCE or "speedup" not in self.table.columns:
            return self.explaining
        return self._estimator().fit(self.inputs(self.table).drop(columns="speedup"), self.energy_j)

    @cached_property
    def timing(self) -> Any | None:
        """The training law fitted to GPU-seconds, or None where the table has no column time_s."""
        if self.kind == INFERENCE or "time_s" not in self.table.columns:
            return None
        held_j = self.table["time_s"].to_numpy(dtype=float) * self.table["num_gpus"].to_numpy(dtype=float) * _HELD_W
        return self._estimator().fit(self.inputs(self.table).drop(columns="speedup", errors="ignore"), held_j)

    def time_s(self, table: Any) -> Any:
        """(n,) predicted seconds of training runs, NaN where the model has no times."""
        if self.timing is None:
            return np.full(len(table), np.nan)
        gpu_s = self.timing.predict(self.inputs(table)) / _HELD_W
        return gpu_s / table["num_gpus"].to_numpy(dtype=float)

    def apart_j(self, seed: int = 0) -> Any:
        """(n,) joules that each row is predicted by a fit to other rows, in 5 folds; NaN with fewer than 15.

        NaN too for a GPU model's only row. A search has its own folds, where it was compared with EnergyLens.
        """
        n = len(self.table)
        if isinstance(self.explaining, FormulaSearch) and (known := self.explaining.apart_j(self.energy_j)) is not None:
            return known
        if n < 3 * _FOLDS:
            return np.full(n, np.nan)
        folds = np.random.default_rng(seed).permutation(n) % _FOLDS
        inputs, result = self.inputs(self.table).drop(columns="speedup", errors="ignore"), np.empty(n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PredictionWarning)  # the fit to all rows has told what there is to tell
            for fold in range(_FOLDS):
                learn, rest = inputs[folds != fold], folds == fold
                fitted = self._estimator().fit(learn, self.energy_j[folds != fold])
                if "gpu_model" in learn:  # one that has no other run cannot be predicted by others
                    unknown = rest & ~inputs["gpu_model"].isin(learn["gpu_model"]).to_numpy()
                    result[unknown], rest = np.nan, rest & ~unknown
                if rest.any():
                    result[rest] = fitted.predict(inputs[rest])
        return result

    def words(self) -> str:
        """The formula (inference) or the law's summary (training)."""
        return str(self.explaining.formula() if self.kind == INFERENCE else self.explaining.summary())

    def save(self, path: Path, **accuracy: float) -> Path:
        """Write the file; returns `path`."""
        import yaml

        class _Dumper(yaml.SafeDumper):
            pass

        _Dumper.add_representer(
            str,
            lambda dumper, text: dumper.represent_scalar(
                "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
            ),
        )
        content = {
            "version": _VERSION,
            "kind": self.kind,
            "emulated": self.emulated,
            "settings": self.settings,
            "accuracy": {"rows": len(self.table)} | {name: round(value, 3) for name, value in accuracy.items()},
            "formula": "\n".join(line.rstrip() for line in self.words().splitlines()) + "\n",
            **({"found": self.explaining.found()} if isinstance(self.explaining, FormulaSearch) else {}),
            "table": self.table.to_csv(index=False),
        }
        text = yaml.dump(
            content,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            width=120,
            default_flow_style=None,  # a list of numbers on a line
        )
        path.write_text(_HEAD.format(kind=self.kind) + text, encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path, kind: str) -> EnergyModel:
        """Read a file that `save` wrote.

        Raises:
            ConfigError: no such file, not a model file, one of the other kind, or one of a newer version.
            PredictionError: its table has energies that are no numbers.
        """
        import pandas

        file = Path(path)
        if not file.is_file():
            raise ConfigError(f"no model file {file}; write one with `energy-lightning fit kind={kind} csv=FILE`")
        content = _content_of(file)
        try:
            found, settings, emulated = content["kind"], dict(content["settings"]), bool(content["emulated"])
            table = pandas.read_csv(io.StringIO(content["table"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _no_model(file, error) from error
        if found != kind:
            raise ConfigError(f"{file} is a model of {found}, not of {kind}: use `energy-lightning predict {found}`")
        if ENERGY not in table.columns:
            raise ConfigError(f"{file}: its table has no column {ENERGY}; fit again")
        numbers_of(table, ENERGY)
        chosen = {name: settings[name] for name in SETTINGS[kind] if name in settings}
        return cls(kind, chosen, table, emulated, content.get("found"))


def _content_of(file: Path) -> dict[str, Any]:
    """What a model file holds. ConfigError where that is nothing of ours, or of a newer version."""
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _no_model(file, error) from error
    if not isinstance(content, dict):
        raise _no_model(file, "it holds no settings")
    version = content.get("version", 1)
    if not isinstance(version, int) or version > _VERSION:
        raise ConfigError(
            f"{file} is of version {version}, this energy_lightning knows {_VERSION}: update it, or fit again"
        )
    return content


def _no_model(file: Path, why: object) -> ConfigError:
    reason = " ".join(str(why).split())[:200]
    return ConfigError(f"{file} is no model file ({reason}); write one with `energy-lightning fit`")


def fitted_model(kind: str, table: Any, energy_j: Any, settings: dict[str, Any], *, emulated: bool) -> EnergyModel:
    """A model of the columns of `table` that its kind knows, fitted.

    Raises:
        ConfigError: an unknown kind. PredictionError: what the estimators raise.
    """
    if kind not in COLUMNS:
        raise ConfigError(f"unknown kind={kind}; choose one of {', '.join(COLUMNS)}")
    methods = ("robust", "published", FORMULA)
    if kind == INFERENCE and settings["method"] not in methods:
        raise ConfigError(f"unknown method={settings['method']}; choose one of {', '.join(methods)}")
    kept = table[[name for name in COLUMNS[kind] if name in table.columns]]
    for name in {"speedup", "time_s"} & set(kept.columns):
        kept = kept.assign(**{name: numbers_of(kept, name, may_miss=name == "speedup")})
    if "time_s" in kept and not (kept["time_s"] > 0.0).all():
        raise PredictionError("column time_s must be > 0 in every row; drop failed runs, or the column")
    chosen = {name: settings[name] for name in SETTINGS[kind] if name in settings}
    if chosen.get("method") != FORMULA:
        chosen.pop("consider_published", None)  # nothing is searched for
    model = EnergyModel(kind, chosen, kept.assign(**{ENERGY: energy_j}), emulated)
    _ = model.explaining  # refuses what cannot be fitted, before anything is written
    return model


def accuracy_of(model: EnergyModel, apart_j: Any) -> dict[str, float]:
    """Mean absolute percentage errors: of the fitted rows, and of rows apart from the fit where there are enough."""
    fitted = mape_pct(model.energy_j, model.explaining.predict(model.inputs(model.table)))
    accuracy = {"mape_of_fitted_rows_pct": fitted}
    if np.isfinite(apart_j).all():
        accuracy["mape_of_rows_apart_pct"] = mape_pct(model.energy_j, apart_j)
    return accuracy
