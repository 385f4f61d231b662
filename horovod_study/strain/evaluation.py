"""What a run has reached: the error on the test set beside the floor, its progress, the line of `--json`, its end."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from horovod_study.comm import Backend
from horovod_study.config.run import LAPS, RunConfig
from horovod_study.strain.dataset import Dataset, test_rows
from horovod_study.strain.model import StressCNN
from horovod_study.text.progress import Line
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural


def evaluate(model: StressCNN, dataset: Dataset, backend: Backend, device: torch.device) -> dict[str, float]:
    """Return the test MSE (mean over both normalised targets) and the root mean square errors of G0 (MPa) and a.

    Each worker takes every workers-th test curve; the sums of squares are added up in float64, over all workers.
    """
    rows = torch.from_numpy(test_rows(np.arange(backend.rank, dataset.test_size, backend.workers)))
    curves, targets = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)
    squares = np.zeros(2)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for part in torch.split(rows, 512):
            errors = model(curves.index_select(0, part).to(device)).cpu() - targets.index_select(0, part)
            squares += errors.double().square().sum(dim=0).numpy()
    model.train(training)
    mean_squares = backend.sum(squares) / dataset.test_size
    g0_rmse_mpa, a_rmse = np.sqrt(mean_squares) * dataset.target_span
    return {"test_mse": float(mean_squares.mean()), "g0_rmse_mpa": float(g0_rmse_mpa), "a_rmse": float(a_rmse)}


def is_below_floor(test_mse: float, floor_mse: float | None, test_size: int) -> bool:
    """Return whether a test MSE over `test_size` curves is lower than can be, with room for the luck of small sets.

    The squared errors of curves scatter by about twice their mean, so three standard errors are 6/sqrt(test_size).
    The posterior mean, the best that any network can do on this data, has 0.93 of the Cramer-Rao bound (the known range
    of the targets helps a little); less than 0.9 is not skill but an error somewhere.
    """
    return floor_mse is not None and bool(test_mse < 0.9 * floor_mse * (1 - 6 / np.sqrt(test_size)))


def compared_to_floor(test_mse: float, floor_mse: float | None, test_size: int) -> str:
    """Return one line on where a test MSE is between the statistical floor and the rest; empty without a floor."""
    if not np.isfinite(test_mse):
        return "the test MSE is not a number: the training diverged; lower --lr, or raise --lr-warmup-steps"
    if not floor_mse:
        return ""
    if is_below_floor(test_mse, floor_mse, test_size):
        return (
            f"the test MSE is below what the noise of the test curves allows ({floor_mse:.2e}): a bug, for instance "
            "test curves among the training curves, or targets scaled otherwise; do not use this number, and report it"
        )
    return (
        f"efficiency {floor_mse / test_mse:.2f}: the noise of the test curves allows {floor_mse:.2e} (Cramer-Rao bound)"
    )


def printed(directory: Path, effective: Mapping[str, Any], totals: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `--json` prints of a finished run, from its record."""
    return {
        "run_dir": str(directory),
        **{
            name: effective[name]
            for name in ("backend", "transport", "reduction", "workers", "nodes", "batch", "parameters")
        },
        "path": effective.get("path"),
        "samples_per_s": totals["samples_per_s"],
        "step_ms_median": _ms(totals["step_s_median"]),
        "step_ms_p90": _ms(totals["step_s_p90"]),
        "sync_ms_median": _ms(totals["lap_medians_s"]["sync"]),
        "laps_ms": {name: _ms(value) for name, value in totals["lap_medians_s"].items()},
        "laps_share": {
            name: None if totals[f"{name}_s"] is None else totals[f"{name}_s"] / totals["step_s"]
            for name in (*LAPS, "residual")
        },
        **{name: totals[name] for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "epochs", "steps")},
        "floor_mse": effective["floor_mse"],
        "floor_text": compared_to_floor(totals["test_mse"], effective["floor_mse"], effective["test_samples"]),
        "steady": totals.get("steady"),
        **{name: totals[name] for name in ("target_reached", "train_s", "wall_s")},
        **{name: totals[name] for name in ("checkpoints", "checkpoint_s", "checkpoint_bytes")},
        "rows_lost": totals.get("rows_lost"),
        **{name: totals[name] for name in ("window_s", "rss_mb_max", "pss_mb_max", "parameter_sha256")},
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def summary(result: dict[str, Any]) -> str:
    """Return the closing table of a run as text."""
    lost = ", ".join(f"{rows:,} of rank {rank}" for rank, rows in enumerate(result["rows_lost"] or []) if rows)
    count, seconds, size = (result[name] for name in ("checkpoints", "checkpoint_s", "checkpoint_bytes"))
    kept, found, later = f"{count} checkpoint{'s' * (count > 1)}", result["steady"], ""
    if found and found["step"] != found["declared"]:
        more = plural(found["step"] - found["declared"], "step", ",")
        later = f"{more} more than the declared {found['declared']:,} are outside the window"
    return "\n".join(
        [
            "",
            f"  test MSE {result['test_mse']:.3e} after {result['epochs']:.3g} epochs"
            f"   (error of G0 {result['g0_rmse_mpa']:.1f} MPa, of a {result['a_rmse']:.2f}, root mean square)",
            *([f"  {result['floor_text']}"] if result["floor_text"] else []),
            f"  {result['samples_per_s']:,.0f} samples/s with {result['workers']} worker{'s' * (result['workers'] > 1)}"
            + (
                "   steps were not timed"
                if result["step_ms_median"] is None
                else f"   step {result['step_ms_median']:.2f} ms (median), {result['step_ms_p90']:.2f} ms (p90)"
            )
            + f"   {result['steps']:,} steps in {result['window_s']:.1f} s",
            *([f"  steady from step {found['step']:,} on: {later}"] if later else []),
            "",
            *_lap_lines(result["laps_share"], workers=result["workers"]),
            *([f"  step rows lost to a full disk: {lost}; times are those of the rows there are"] if lost else []),
            *([f"  {kept}, {size / 1e6:.1f} MB, took {seconds:.3f} s beside the timed window"] if count else []),
            f"  recorded in {os.path.relpath(result['run_dir'])}",
        ]
    )


def _lap_lines(shares: Mapping[str, float | None], *, workers: int) -> list[str]:
    if all(value is None for value in shares.values()):
        return []
    # What a step has not is left out. What it has and nobody sees is the wait for other workers.
    shares = {lap: share for lap, share in shares.items() if share is not None or (lap == "sync" and workers > 1)}
    names = {**{lap: lap for lap in LAPS}, "residual": "unexplained"}
    cells = [(names[name], "not known" if value is None else f"{100 * value:.1f} %") for name, value in shares.items()]
    heads, texts = zip(("share of the step", ""), *cells, strict=True)
    return [*to_lines(table_of(heads, [texts]), indent=2), ""]


class Progress(Line):
    """The progress of a training run."""

    def update(
        self, step: int, last_step: float, epoch: int, config: RunConfig, window_s: float, samples_per_s: float
    ) -> None:
        """Show where the run stands, if it is time to."""
        if not self.due():
            return
        if config.seconds:
            done, where = min(1.0, window_s / config.seconds), f"{window_s:.0f}/{config.seconds:g} s"
        else:
            done, where = step / last_step, f"step {step:,}/{last_step:,.0f}"
        left_s = window_s / done - window_s if done > 0 and window_s > 0 else math.nan
        speed = "" if math.isnan(samples_per_s) else f"  {samples_per_s:,.0f} samples/s"
        left = "" if math.isnan(left_s) else f"  {left_s:.0f} s left"
        self.show(f"  epoch {epoch + 1}  {where}  {100 * done:4.0f} %{speed}{left}")

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Keep one line per evaluation."""
        self.keep(
            f"  epoch {row['epoch']:.3g}: train MSE {row['train_mse']:.3e}, test MSE {row['test_mse']:.3e}, "
            f"G0 {row['g0_rmse_mpa']:.1f} MPa, a {row['a_rmse']:.2f}, {row['train_s']:.1f} s"
        )
