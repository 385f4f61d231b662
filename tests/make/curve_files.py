"""Files of curves in every form, written from the same generated curves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from horovod_study.strain import material


@dataclass(frozen=True, kw_only=True)
class Tests:
    """Some curves, ragged, with their parameters; all values are exact as float32."""

    names: list[str]
    strain: list[np.ndarray]  # ratio
    stress: list[np.ndarray]  # MPa
    targets: np.ndarray  # (N, 2): G0 in MPa, a
    channels: np.ndarray  # (N, 3, 201), what every import must give


def generated(count: int = 8, *, seed: int = 5, noise_max_mpa: float = 0.5) -> Tests:
    channels, normalised = material.generate(seed, 0, count, noise_max_mpa=noise_max_mpa)
    data = [curve[:2, curve[2] == 1].astype(np.float64) for curve in channels]
    targets = (material.TARGET_BOUNDS[:, 0] + material.TARGET_SPAN * normalised).astype(np.float64).round(3)
    names = [f"P{k + 1:02d}" for k in range(count)]
    return Tests(
        names=names,
        strain=[each[0] for each in data],
        stress=[each[1] for each in data],
        targets=targets,
        channels=channels,
    )


def long(tests: Tests, *, labels: bool = True) -> pd.DataFrame:
    """A table with a row a point."""
    lengths = [len(each) for each in tests.strain]
    table = pd.DataFrame(
        {
            "specimen": np.repeat(tests.names, lengths),
            "strain [1]": np.concatenate(tests.strain),
            "stress [MPa]": np.concatenate(tests.stress),
        }
    )
    if labels:
        table[["G0", "a"]] = np.repeat(tests.targets, lengths, axis=0)
    return table


def write_long(path: Path, tests: Tests, *, labels: bool = True) -> Path:
    long(tests, labels=labels).to_csv(path, index=False)
    return path


def write_wide(path: Path, tests: Tests) -> Path:
    columns: dict[str, pd.Series] = {}
    for name, strain, stress in zip(tests.names, tests.strain, tests.stress, strict=True):
        columns |= {f"{name}_strain [1]": pd.Series(strain), f"{name}_stress [MPa]": pd.Series(stress)}
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def write_targets(path: Path, tests: Tests) -> Path:
    pd.DataFrame({"test_id": tests.names, "G0 (MPa)": tests.targets[:, 0], "a": tests.targets[:, 1]}).to_csv(
        path, index=False
    )
    return path


def write_pair(
    folder: Path, tests: Tests, *, dtype: str = "f8", order: Literal["C", "F"] = "C", channels: object = None
) -> Path:
    """The pair of files of the original data, without a suffix."""
    folder.mkdir()
    arrays = {
        "prepared_data.train": tests.channels if channels is None else channels,
        "parameter.train": tests.targets,
    }
    for name, array in arrays.items():
        with open(folder / name, "wb") as stream:
            np.save(stream, np.asarray(array).astype(dtype, order=order))
    return folder
