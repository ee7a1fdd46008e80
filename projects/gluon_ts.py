"""GluonTS 0.13.7: its estimators, trained by its own trainer on the monthly prices of stocks that Matplotlib ships."""

from __future__ import annotations

import csv
import functools
from typing import Any, Callable, Mapping

import numpy as np

from projects.witness import Arrays, parameters

PACKAGE = "gluonts"
PAST, FUTURE, BATCH = 24, 6, 8


def load() -> None:
    """Imports the project."""
    import gluonts.mx  # noqa: F401


@functools.lru_cache(maxsize=None)
def prices() -> Any:
    """One row a company, without those that were not listed all the time; scaled to about one."""
    import matplotlib.cbook

    with open(matplotlib.cbook.get_sample_data("Stocks.csv", asfileobj=False), encoding="utf-8") as file:
        rows = list(csv.reader(line for line in file if not line.startswith("#")))
    months = [row[1:] for row in rows[1:] if any(row[1:])]  # dividends have rows of their own, without prices
    listed = [column for column in zip(*months) if all(column)]
    found = np.array(listed, dtype=np.float32)
    return found / found.mean(axis=1, keepdims=True)


def _series(**fields: Any) -> list[Mapping[str, Any]]:
    import pandas as pd

    start = pd.Period("1990-01", "M")
    return [{"start": start, "target": row, "feat_static_cat": np.array([number]), **fields}
            for number, row in enumerate(prices())]  # fmt: skip


def _trainer(steps: int, **options: Any) -> Any:
    from gluonts.mx import Trainer

    return Trainer(epochs=1, num_batches_per_epoch=steps, learning_rate=1e-3, **options)


def _fit(estimator: Any, series: list[Mapping[str, Any]]) -> Arrays:
    from gluonts.dataset.common import ListDataset

    one = np.ndim(series[0]["target"]) == 1
    found = estimator.train_model(ListDataset(series, freq="M", one_dim_target=one))
    return parameters([found.trained_net])


def _forecaster(name: str, hybridize: bool, options: Mapping[str, Any], steps: int) -> Arrays:
    """An estimator of single series by its name in gluonts.mx."""
    import gluonts.mx

    known = {"freq": "M", "prediction_length": FUTURE, "batch_size": BATCH, **options}
    known = {key: value for key, value in known.items() if value is not None}
    estimator = getattr(gluonts.mx, name)(trainer=_trainer(steps, hybridize=hybridize), **known)
    return _fit(estimator, _series())


def _many(name: str, options: Mapping[str, Any], steps: int) -> Arrays:
    """An estimator of all series together."""
    import gluonts.mx

    target = prices()
    counts = {option: len(target) for option in ("num_series", "target_dim") if option in options}
    known = {"freq": "M", "prediction_length": FUTURE, "batch_size": BATCH, **options, **counts}
    known = {key: value for key, value in known.items() if value is not None}
    estimator = getattr(gluonts.mx, name)(trainer=_trainer(steps), **known)
    return _fit(estimator, [{"start": _series()[0]["start"], "target": target}])


def _sparse_sales(steps: int) -> Arrays:
    """Renewal processes on a demand that is zero in most months."""
    import gluonts.mx
    from gluonts.dataset.common import ListDataset

    changes = np.diff(prices(), axis=1)
    sales = [np.where(row > np.quantile(row, 0.7), 1 + np.floor(20 * row), 0) for row in changes]
    start = _series()[0]["start"]
    estimator = gluonts.mx.DeepRenewalProcessEstimator(
        prediction_length=FUTURE, context_length=PAST, num_cells=16, num_layers=1, batch_size=BATCH,
        trainer=_trainer(steps))  # fmt: skip
    return parameters([estimator.train_model(
        ListDataset([{"start": start, "target": row} for row in sales], freq="M")).trained_net])  # fmt: skip


_FORECASTERS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "deepar_lstm": ("DeepAREstimator", True, {"context_length": PAST}),
    "deepar_gru": ("DeepAREstimator", True, {"context_length": PAST, "cell_type": "gru"}),
    "deepar_variational_dropout": (
        "DeepAREstimator", True, {"context_length": PAST, "dropoutcell_type": "VariationalDropoutCell"}),
    "deepstate": ("DeepStateEstimator", True, {"cardinality": [7], "past_length": PAST}),
    "deep_factor": ("DeepFactorEstimator", True, {"context_length": PAST}),
    "wavenet": ("WaveNetEstimator", True, {"num_bins": 64, "train_window_length": PAST, "dilation_depth": 4}),
    "tft": ("TemporalFusionTransformerEstimator", True, {"context_length": PAST, "num_instance_per_series": 4}),
    "mq_cnn": ("MQCNNEstimator", True, {"context_length": PAST}),
    "mq_rnn": ("MQRNNEstimator", True, {"context_length": PAST}),
    "n_beats": ("NBEATSEstimator", True, {"context_length": PAST, "num_stacks": 4, "widths": [64]}),
    "simple_feedforward": ("SimpleFeedForwardEstimator", True, {
        "freq": None, "context_length": PAST, "batch_normalization": True}),
    "transformer": ("TransformerEstimator", True, {"context_length": PAST}),
    "canonical_rnn": ("CanonicalRNNEstimator", True, {"context_length": PAST, "batch_size": None}),
    "gaussian_process": ("GaussianProcessEstimator", True, {"context_length": PAST, "cardinality": 7}),
}  # fmt: skip
_MANY: dict[str, tuple[str, dict[str, Any]]] = {
    "lstnet": ("LSTNetEstimator", {"freq": None, "context_length": PAST, "num_series": None, "skip_size": 4,
                                   "ar_window": 4, "channels": 16, "rnn_num_cells": 24, "rnn_num_layers": 1}),
    "gpvar": ("GPVAREstimator", {"context_length": PAST, "target_dim": None}),
    "deepvar": ("DeepVAREstimator", {"context_length": PAST, "target_dim": None}),
}  # fmt: skip

MODELS: dict[str, Callable[[int], Arrays]] = {
    **{name: functools.partial(_forecaster, *found) for name, found in _FORECASTERS.items()},
    **{name: functools.partial(_many, *found) for name, found in _MANY.items()},
    "deep_renewal": _sparse_sales,
}
