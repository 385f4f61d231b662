"""Files of curves in every layout, written from the same generated curves."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from horovod_study.workload import material


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
    strain, stress = [], []
    for curve in channels:
        data = curve[2] == 1
        strain.append(curve[0, data].astype(np.float64))
        stress.append(curve[1, data].astype(np.float64))
    targets = (material.TARGET_BOUNDS[:, 0] + material.TARGET_SPAN * normalised).astype(np.float64).round(3)
    names = [f"P{k + 1:02d}" for k in range(count)]
    return Tests(names=names, strain=strain, stress=stress, targets=targets, channels=channels)


def number(value: float, decimal: str = ".") -> str:
    return repr(float(value)).replace(".", decimal)


def write_long(
    path: Path,
    tests: Tests,
    *,
    header: str = "specimen,strain [1],stress [MPa],G0,a",
    delimiter: str = ",",
    decimal: str = ".",
    newline: str = "\n",
    bom: bool = False,
    quoted: bool = False,
    end: str = "",
    targets: bool = True,
) -> Path:
    quote = '"' if quoted else ""
    lines = [header.replace(",", delimiter)]
    for k, name in enumerate(tests.names):
        tail = [number(value, decimal) for value in tests.targets[k]] if targets else []
        for strain, stress in zip(tests.strain[k], tests.stress[k], strict=True):
            cells = [name, number(strain, decimal), number(stress, decimal), *tail]
            lines.append(delimiter.join(f"{quote}{cell}{quote}" for cell in cells))
    text = newline.join(lines) + newline + end
    path.write_bytes(text.encode("utf-8-sig" if bom else "utf-8"))
    return path


def write_targets(path: Path, tests: Tests, *, name: str = "specimen") -> Path:
    rows = [f"{each},{g0!r},{a!r}" for each, (g0, a) in zip(tests.names, tests.targets.tolist(), strict=True)]
    path.write_text("\n".join([f"{name},G0,a", *rows]) + "\n")
    return path


def write_folder(folder: Path, tests: Tests, *, info: bool = True) -> Path:
    folder.mkdir()
    for k, name in enumerate(tests.names):
        rows = [f"{number(x)},{number(y)}" for x, y in zip(tests.strain[k], tests.stress[k], strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["Strain [-],Stress_MPa", *rows]) + "\n")
    if info:
        write_targets(folder / "info.csv", tests, name="test_id")
    return folder


def write_wide(path: Path, tests: Tests) -> Path:
    names = [f"{name}_strain [1],{name}_stress [MPa]" for name in tests.names]
    lines = [",".join(names)]
    for j in range(max(map(len, tests.strain))):
        cells = []
        for strain, stress in zip(tests.strain, tests.stress, strict=True):
            cells += [number(strain[j]), number(stress[j])] if j < len(strain) else ["", ""]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def machine_text(strain: np.ndarray, stress: np.ndarray, *, german: bool = False) -> str:
    """An export as testing machines write it: preamble, names, units, quotes, strain in percent, time."""
    decimal, delimiter = (",", ";") if german else (".", ",")
    names = ["Zeit", "Dehnung", "Schubspannung"] if german else ["Time", "Shear strain", "Shear stress"]
    lines = [
        delimiter.join(['"Results Table 1"', ""]),
        delimiter.join(['"Width"', '"' + number(12.5, decimal) + '"', '"mm"']),
        delimiter.join(['"Test rate"', '"' + number(0.5, decimal) + '"', '"mm/min"']),
        "",
        delimiter.join(names),
        delimiter.join(["(s)", "(%)", "(MPa)"]),
    ]
    for k, (x, y) in enumerate(zip(strain, stress, strict=True)):
        cells = [number(k / 10, decimal), f"{100 * x:.8f}".replace(".", decimal), f"{y:.6f}".replace(".", decimal)]
        lines.append(delimiter.join(f'"{cell}"' for cell in cells))
    return "\r\n".join(lines) + "\r\n"


def write_machine(folder: Path, tests: Tests, *, german: bool = False) -> Path:
    folder.mkdir()
    for k, name in enumerate(tests.names):
        text = machine_text(tests.strain[k], tests.stress[k], german=german)
        (folder / f"{name}.csv").write_bytes(text.encode("utf-8-sig"))
    return folder


def padded(values: list[np.ndarray], *, left: bool) -> np.ndarray:
    longest = max(map(len, values))
    out = np.zeros((len(values), longest))
    for row, value in zip(out, values, strict=True):
        row[longest - len(value) if left else 0 :][: len(value)] = value
    return out


def write_npz(path: Path, tests: Tests, *, kind: str = "flag") -> Path:
    lengths = np.array([len(strain) for strain in tests.strain])
    common = {"targets": tests.targets, "ids": np.array(tests.names)}
    if kind == "ragged":
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        arrays = {
            "strain": np.concatenate(tests.strain),
            "stress": np.concatenate(tests.stress),
            "offsets": offsets,
        }
    else:
        left = kind == "flag"
        arrays = {"strain": padded(tests.strain, left=left), "stress": padded(tests.stress, left=left)}
        if left:
            arrays["flag"] = padded([np.ones(n) for n in lengths], left=True)
        else:
            arrays["length"] = lengths
    save = np.savez_compressed if kind == "length" else np.savez
    save(path, **arrays, **common)
    return path


def write_pair(folder: Path, tests: Tests, *, dtype: str = "f8", order: str = "C") -> Path:
    """The pair of files of the original data, without a suffix."""
    folder.mkdir()
    for name, array in (("prepared_data.train", tests.channels), ("parameter.train", tests.targets)):
        with open(folder / name, "wb") as stream:
            np.save(stream, array.astype(dtype, order=order))
    return folder


def write_split(path: Path, tests: Tests) -> Path:
    """A data set split already, targets normalised, with a pickled dictionary beside the arrays."""
    test = np.arange(len(tests.names)) % 4 == 3
    normalised = (tests.targets - material.TARGET_BOUNDS[:, 0]) / material.TARGET_SPAN
    np.savez(
        path,
        X_train=tests.channels[~test], X_test=tests.channels[test],
        Y_train=normalised[~test], Y_test=normalised[test],
        meta=np.array({"y_max": 1}, dtype=object),
    )  # fmt: skip
    return path


def write_parquet(path: Path, tests: Tests, *, lists: bool) -> Path:
    if lists:
        columns = {
            "specimen": tests.names,
            "strain": [each.tolist() for each in tests.strain],
            "stress": [each.tolist() for each in tests.stress],
            "G0": tests.targets[:, 0],
            "a": tests.targets[:, 1],
        }
    else:
        lengths = [len(each) for each in tests.strain]
        columns = {
            "specimen": np.repeat(tests.names, lengths),
            "strain": np.concatenate(tests.strain),
            "stress": np.concatenate(tests.stress),
            "G0": np.repeat(tests.targets[:, 0], lengths),
            "a": np.repeat(tests.targets[:, 1], lengths),
        }
    pq.write_table(pa.table(columns), path)
    return path


def cut_short(path: Path, by: int = 1000) -> Path:
    """Remove the last bytes of a file."""
    path.write_bytes(path.read_bytes()[:-by])
    return path


def member_bytes(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)
