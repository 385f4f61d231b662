"""The data set on disk and its batches."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.wording import Golden

from horovod_study.cli import main
from horovod_study.errors import DataError
from horovod_study.strain import dataset, material, room
from horovod_study.text.numbers import amount


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small"
    dataset.generate(path, 1000, seed=7)
    return path


def test_what_is_on_disk_is_what_the_generator_makes(small: Path) -> None:
    opened = dataset.open_dataset(small)
    curves, targets = material.generate(7, 0, 1000)

    assert np.array_equal(opened.curves, curves)
    assert np.array_equal(opened.targets, targets)
    assert (opened.size, opened.train_size, opened.test_size) == (1000, 750, 250)
    assert isinstance(opened.curves, np.memmap)
    assert opened.sidecar.spec == "shear-exp v1"


@pytest.mark.slow
def test_several_threads_write_the_same_bytes(tmp_path: Path) -> None:
    size = 2 * dataset.BLOCK_ROWS + 17
    seen: list[tuple[int, int]] = []
    dataset.generate(tmp_path / "one", size, seed=2)
    dataset.generate(
        tmp_path / "two", size, seed=2, threads=2, on_progress=lambda done, total: seen.append((done, total))
    )

    for name in (dataset.CURVES, dataset.TARGETS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    one, two = (json.loads((tmp_path / name / dataset.SIDECAR).read_text()) for name in ("one", "two"))
    assert one == two, "hashes and floor as well"
    assert list((tmp_path / "one").iterdir()) and sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]
    assert seen[-1] == (size, size) and len(seen) == 3


def test_check_accepts_a_good_one(small: Path) -> None:
    facts = dataset.check(small)

    assert (facts["size"], facts["train"], facts["test"], facts["seed"]) == (1000, 750, 250, 7)
    assert (facts["kind"], facts["blocks"], facts["bytes"]) == ("generated", 1, 2_420_000)
    assert facts["target_bounds"] == [[1000, 3000], [25, 45]]
    assert facts["floor_recomputed"] and facts["floor_in_sidecar"]


def test_the_floor_is_that_of_the_test_curves(small: Path) -> None:
    opened = dataset.open_dataset(small)
    test = dataset.test_rows(np.arange(250))
    sigmas = material.noise_levels_mpa(7, 0, 1000)[test]
    expected = material.bounds(opened.curves[test, 0], opened.targets[test], sigmas).mean(axis=0)

    assert opened.floor is not None
    assert [opened.floor["g0_mse"], opened.floor["a_mse"]] == pytest.approx(expected, rel=1e-12)
    assert opened.floor["mse"] == pytest.approx(expected.mean(), rel=1e-12)
    assert dataset.check(small)["floor"] == pytest.approx(opened.floor, rel=1e-12)


@pytest.mark.slow
@given(size=st.integers(1, 1200), noise_max_mpa=st.sampled_from([0.0, 0.5, 1.0, 2.5]), block_rows=st.integers(1, 700))
@settings(max_examples=examples(15))
def test_every_size_is_generated_and_checks(
    size: int, noise_max_mpa: float, block_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Blocks and pieces may end anywhere: bytes, hashes and floor come out right."""
    path = tmp_path_factory.mktemp("any") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "BLOCK_ROWS", block_rows)
        dataset.generate(path, size, seed=3, noise_max_mpa=noise_max_mpa)
    facts = dataset.check(path, threads=2)

    assert np.array_equal(
        dataset.open_dataset(path).curves, material.generate(3, 0, size, noise_max_mpa=noise_max_mpa)[0]
    )
    assert facts["train"] + facts["test"] == size and facts["blocks"] == -(-size // block_rows)
    assert (facts["floor"] is None) == (size < 4)
    if noise_max_mpa == 0 and size >= 4:
        assert facts["floor"]["mse"] == 0


def rewrite(path: Path, **changes: object) -> None:
    """Change keys of a side-car; None removes one."""
    sidecar = {**json.loads((path / dataset.SIDECAR).read_text()), **changes}
    kept = {name: value for name, value in sidecar.items() if value is not None}
    (path / dataset.SIDECAR).write_text(json.dumps(kept))


def test_an_old_sidecar_still_opens(small: Path) -> None:
    """The first ones had neither kind nor target_bounds nor floor, and bounds under another name."""
    rewrite(small, kind=None, target_bounds=None, floor=None, bounds={"g0_mpa": [1000, 3000], "a": [25, 45]})
    opened = dataset.open_dataset(small)
    facts = dataset.check(small)

    assert opened.floor is None and opened.sidecar.kind == "generated"
    assert opened.target_bounds.tolist() == [[1000, 3000], [25, 45]] and opened.target_span.tolist() == [2000, 20]
    assert not facts["floor_in_sidecar"] and 2e-5 < facts["floor"]["mse"] < 2e-4


def test_check_complains_of_a_floor_that_is_not_the_data_s(small: Path) -> None:
    stored = dataset.open_dataset(small).floor
    assert stored is not None
    rewrite(small, floor={**stored, "a_mse": stored["a_mse"] * 1.01})

    with pytest.raises(
        DataError, match=r"dataset\.json: floor a_mse is 0\.0001.*, the test curves on disk have 0\.0001"
    ):
        dataset.check(small)


def test_check_complains_of_other_bounds(small: Path, golden: Golden) -> None:
    rewrite(small, target_bounds=[[1000, 3000], [20, 45]])

    with golden.raises(DataError, match=r"target_bounds.*20.*v1"):
        dataset.check(small)


@pytest.mark.parametrize("bounds", [[[0, 1]], [[1, 0], [0, 1]], [["a", 1], [0, 1]], [[0, 1], [0, float("inf")]]])
def test_absurd_bounds_do_not_open(small: Path, bounds: object, golden: Golden) -> None:
    rewrite(small, target_bounds=bounds)

    with golden.raises(DataError):
        dataset.open_dataset(small)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", ""), ("{", "JSON"), ('{"spec": "shear-exp v1"}', "size is missing")],
)
def test_a_broken_sidecar_is_named(small: Path, text: str, message: str, golden: Golden) -> None:
    (small / dataset.SIDECAR).write_text(text)

    with golden.raises(DataError, match=message or None):
        dataset.open_dataset(small)


def test_hashes_that_do_not_cover_the_rows(small: Path, golden: Golden) -> None:
    rewrite(small, sha256={dataset.CURVES: [], dataset.TARGETS: []})

    with golden.raises(DataError, match=r"1 hashes.*curves\.npy"):
        dataset.check(small)


# ------------------------------------------------------------------------------------------------------- imported


BOUNDS = np.array([[500.0, 4000.0], [10.0, 60.0]])


def write(path: Path, curves: np.ndarray, targets: np.ndarray, **options: object) -> None:
    """Import with what the tests do not care about filled in."""
    settings = {"target_bounds": BOUNDS, "provenance": {"source": "coupons.csv"}, **options}
    dataset.write_imported(path, lambda low, high: curves[low:high], targets, **settings)  # type: ignore[arg-type]


def test_an_imported_set_comes_back(tmp_path: Path) -> None:
    curves, targets = material.generate(9, 0, 30)
    known = material.floor(np.ones(2), 7, target_bounds=BOUNDS, estimated=True)
    seen: list[tuple[int, int]] = []
    write(tmp_path / "own", curves, targets, floor=known, on_progress=lambda done, total: seen.append((done, total)))
    opened = dataset.open_dataset(tmp_path / "own")
    facts = dataset.check(tmp_path / "own")

    assert np.array_equal(opened.curves, curves) and np.array_equal(opened.targets, targets)
    assert opened.sidecar.kind == facts["kind"] == "imported" and opened.floor == known == facts["floor"]
    assert opened.target_span.tolist() == [3500, 50]
    assert opened.sidecar.provenance == facts["provenance"] == {"source": "coupons.csv"}
    assert not facts["floor_recomputed"] and facts["seed"] is None
    assert (facts["train"], facts["test"], seen) == (23, 7, [(30, 30)])


def test_imported_targets_may_lie_outside_the_bounds_of_the_training_curves(tmp_path: Path) -> None:
    curves, targets = material.generate(9, 0, 8)
    targets[3] = (1.2, -0.1)
    write(tmp_path / "own", curves, targets)

    assert dataset.check(tmp_path / "own")["size"] == 8


def test_the_digest_of_an_imported_set_knows_the_bounds(tmp_path: Path) -> None:
    curves, targets = material.generate(9, 0, 8)
    write(tmp_path / "one", curves, targets)
    write(tmp_path / "two", curves, targets, target_bounds=BOUNDS * 2)

    assert dataset.open_dataset(tmp_path / "one").digest() != dataset.open_dataset(tmp_path / "two").digest()


def test_what_is_wrong_with_an_import_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    curves, targets = material.generate(9, 0, 12)
    back = curves.copy()
    back[5, 0, 100] = 0.0
    unknown = targets.copy()
    unknown[3, 1] = np.nan
    wrong: list[tuple[np.ndarray, np.ndarray, dict[str, object], str]] = [
        (back, targets, {}, "curve 5 has strain that does not increase; correct it and import again"),
        (curves, unknown, {}, "curve 3 has a target that is not finite; correct it"),
        (curves, targets, {"target_bounds": BOUNDS[:, ::-1]}, "with low < high"),
    ]
    for values, labels, options, message in wrong:
        with pytest.raises(DataError, match=message):
            write(tmp_path / "x", values, labels, **options)
        assert list(tmp_path.iterdir()) == [], message


def test_check_stops_at_the_first_damaged_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(dataset, "BLOCK_ROWS", 10)
    dataset.generate(tmp_path / "x", 1000, seed=1)
    with (tmp_path / "x" / dataset.CURVES).open("r+b") as stream:
        stream.seek(128 + 13 * 603 * 4 + 804)
        stream.write(b"\x00\x00\x80\x3f")
    seen: list[int] = []
    read: list[int] = []
    real = dataset._check_block

    def counted(opened: dataset.Dataset, low: int, high: int) -> object:
        read.append(low)
        if low > 10:
            threading.Event().wait(0.05)  # slower than the complaint about block 1 travels
        return real(opened, low, high)

    monkeypatch.setattr(dataset, "_check_block", counted)
    with golden.raises(DataError, match=r"curves 10\.\.19"):
        dataset.check(tmp_path / "x", threads=1, on_progress=lambda done, total: seen.append(done))
    assert seen == [10]
    assert len(read) < 50, "what was queued is not read any more"


def test_check_finds_one_changed_value(small: Path, golden: Golden) -> None:
    with (small / dataset.CURVES).open("r+b") as stream:
        stream.seek(-201 * 4 - 40, 2)  # a stress of the last curve
        stream.write(b"\x00\x00\x80\x3f")

    with golden.raises(DataError, match=r"curves\.npy.*curves 0\.\.999"):
        dataset.check(small)


def test_a_truncated_file_is_named(small: Path, golden: Golden) -> None:
    path = small / dataset.CURVES
    whole = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(whole - 1000)

    with golden.raises(DataError, match=r"curves\.npy.*greater than file size"):
        dataset.open_dataset(small)


def test_a_file_longer_than_its_head_tells_is_named(small: Path) -> None:
    with (small / dataset.CURVES).open("ab") as stream:
        stream.write(bytes(1000))

    with pytest.raises(DataError, match=r"curves\.npy: has 2,413,128 bytes, its head tells of 2,412,128; "):
        dataset.open_dataset(small)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provenance": {}}, "generated sets have no provenance"),
        ({"kind": "imported", "spec": "imported v1", "provenance": {}}, "imported sets have no noise_max_mpa"),
    ],
)
def test_a_sidecar_of_two_kinds_is_refused(small: Path, changes: dict[str, object], message: str) -> None:
    rewrite(small, **changes)

    with pytest.raises(DataError, match=message):
        dataset.open_dataset(small)


def test_another_version_is_refused(small: Path, golden: Golden) -> None:
    sidecar = json.loads((small / dataset.SIDECAR).read_text())
    (small / dataset.SIDECAR).write_text(json.dumps({**sidecar, "spec": "shear-exp v2"}))

    with golden.raises(DataError, match="v2.*v1"):
        dataset.open_dataset(small)


def test_a_header_that_contradicts_the_sidecar_is_refused(small: Path, golden: Golden) -> None:
    np.save(small / dataset.TARGETS, np.zeros((1000, 2), np.float64)[:500])

    with golden.raises(DataError, match=r"targets\.npy.*float64.*500.*float32"):
        dataset.open_dataset(small)


def test_missing_and_foreign_paths(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(DataError):
        dataset.open_dataset(tmp_path / "nothing")
    with golden.raises(DataError, match=r"dataset\.json"):
        dataset.open_dataset(tmp_path)
    (tmp_path / "file").write_text("x")
    with golden.raises(DataError):
        dataset.open_dataset(tmp_path / "file")


def test_nothing_is_overwritten(small: Path, golden: Golden) -> None:
    before = (small / dataset.CURVES).read_bytes()

    with golden.raises(DataError, match="--out"):
        dataset.generate(small, 10, seed=1)
    assert (small / dataset.CURVES).read_bytes() == before


def test_a_small_disk_is_noticed_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10**6))

    with golden.raises(DataError, match="1,000,000 curves.*2,468,400,000 bytes"):
        dataset.generate(tmp_path / "big", 10**6, seed=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("meminfo", "doubts"), [(100e6, True), (1e6, True), (16e9, False), (None, False)])
def test_a_set_that_does_not_fit_the_page_cache_is_a_doubt(
    monkeypatch: pytest.MonkeyPatch, meminfo: float | None, doubts: bool, golden: Golden
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: meminfo if meminfo is None else int(meminfo))

    doubt = dataset.page_cache_doubt(10**6)
    assert (doubt is not None) == doubts
    if meminfo == 1e6:
        assert doubt is not None
        golden(doubt, "1,000,000 curves", "2.42 GB", "1 MB")


def test_the_free_memory_of_this_machine_is_plausible() -> None:
    free = room.available_bytes()

    assert free is None or 10**6 < free < 10**14


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed -1, .* a whole number from 0 to"),
        ({"seed": 2**64}, "seed 18446744073709551616"),
        ({"seed": 1, "noise_max_mpa": -1.0}, r"noise_max_mpa -1\.0"),
        ({"seed": 1, "noise_max_mpa": float("nan")}, "noise_max_mpa"),
    ],
)
def test_absurd_options(tmp_path: Path, options: dict[str, float], message: str, golden: Golden) -> None:
    with golden.raises(DataError, match=message):
        dataset.generate(tmp_path / "x", 10, **options)  # type: ignore[arg-type]


def test_noise_levels_that_print_alike_have_places_of_their_own() -> None:
    assert dataset.cached_path(10, 1, 1.0).name == "shear-exp-v1-10-seed1-noise1"
    assert dataset.cached_path(10, 1, 0.1234567) != dataset.cached_path(10, 1, 0.1234568)


@pytest.mark.parametrize(
    ("count", "text"), [(2_420_000_000, "2.42 GB"), (80_000_000, "80 MB"), (1500, "1.5 kB"), (7, "7 bytes")]
)
def test_amounts_of_bytes(count: int, text: str) -> None:
    assert amount(count) == text


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells proportional memory")
def test_a_second_worker_shares_the_pages(tmp_path: Path) -> None:
    """Two processes that have touched every row hold them once; copies of the arrays would be held twice."""
    path = tmp_path / "shared"
    dataset.generate(path, 20_000, seed=1)
    megabytes = 20_000 * 603 * 4 / 1e6
    program = f"""
import re, sys
from pathlib import Path
from horovod_study.strain import dataset

opened = dataset.open_dataset(Path({str(path)!r}))
total = sum(float(opened.curves[low : low + 500].sum()) for low in range(0, 20_000, 500))
print("ready", flush=True)
sys.stdin.readline()
of_curves = re.search("curves.npy\\n(.*?)VmFlags", Path("/proc/self/smaps").read_text(), re.DOTALL)[1]
values = {{name: int(re.search(f"^{{name}}: +([0-9]+) kB", of_curves, re.MULTILINE)[1]) * 1024 / 1e6
          for name in ("Rss", "Pss", "Private_Dirty", "Anonymous")}}
print(*values.values(), flush=True)
sys.stdin.readline()
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = []
    try:
        for each in workers:
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        for each in workers:
            assert each.stdin is not None and each.stdout is not None
            each.stdin.write("\n")
            each.stdin.flush()
            told.append([float(word) for word in each.stdout.readline().split()])
    finally:
        for each in workers:
            each.communicate()

    for rss, pss, private_dirty, anonymous in told:
        assert rss == pytest.approx(megabytes, rel=0.02), "every row was touched"
        assert pss == pytest.approx(megabytes / 2, rel=0.02), "and is shared with the other"
        assert private_dirty == anonymous == 0, "reading copies nothing"


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dataset, "_write_block", full)
    with golden.raises(DataError):
        dataset.generate(tmp_path / "x", 100, seed=1)
    assert list(tmp_path.iterdir()) == []


def test_ensure_generates_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOROVOD_STUDY_DATA", str(tmp_path))
    assert not dataset.path_of("300", seed=4).exists()
    path = dataset.ensure("300", seed=4)
    made = (path / dataset.CURVES).stat().st_mtime_ns

    assert dataset.ensure("300", seed=4) == path
    assert (path / dataset.CURVES).stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("text", "size"), [("100000", 100000), ("1e6", 10**6), ("100_000", 100000), ("data/x", None), ("/a", None)]
)
def test_parse_size(text: str, size: int | None) -> None:
    assert dataset.parse_size(text) == size


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "1e30", "1e999"])
def test_absurd_sizes(text: str, golden: Golden) -> None:
    with golden.raises(DataError):
        dataset.parse_size(text)


@given(size=st.integers(1, 5000))
def test_the_split_covers_everything_once(size: int) -> None:
    test = dataset.test_rows(np.arange(size // 4))
    train = dataset.train_rows(np.arange(size - size // 4))

    assert sorted([*test, *train]) == list(range(size))
    assert (test % 4 == 3).all() and (train % 4 != 3).all()


@given(
    batch=st.integers(1, 40),
    workers=st.integers(1, 6),
    train_size=st.integers(300, 1200),
    epoch=st.integers(0, 5),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=examples(60))
def test_workers_share_the_global_batches_of_one(
    batch: int, workers: int, train_size: int, epoch: int, seed: int
) -> None:
    """Split among workers, each step visits the same curves as one worker with the global batch."""
    one = dataset.Batches(train_size, batch=batch * workers, rank=0, workers=1, seed=seed)
    many = [dataset.Batches(train_size, batch=batch, rank=rank, workers=workers, seed=seed) for rank in range(workers)]

    joined = np.concatenate([each.epoch(epoch) for each in many], axis=1)
    assert {each.steps_per_epoch for each in many} == {one.steps_per_epoch}
    assert np.array_equal(joined, one.epoch(epoch))
    assert len(np.unique(joined)) == joined.size, "no curve twice in an epoch"
    assert (joined % 4 != 3).all(), "no test curve in training"


def test_epochs_differ_and_seeds_differ() -> None:
    batches = dataset.Batches(300, batch=10, rank=0, workers=1, seed=1)
    other = dataset.Batches(300, batch=10, rank=0, workers=1, seed=2)

    assert not np.array_equal(batches.epoch(0), batches.epoch(1))
    assert not np.array_equal(batches.epoch(0), other.epoch(0))
    assert np.array_equal(batches.epoch(3), batches.epoch(3))


def test_a_batch_larger_than_the_training_set(golden: Golden) -> None:
    with golden.raises(DataError, match="batch 75.*4 workers = 300 curves.*299"):
        dataset.Batches(299, batch=75, rank=0, workers=4, seed=1)


# --------------------------------------------------------------------------------------------- on the command line


def test_clean_is_the_plain_word_for_no_noise(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden
) -> None:
    assert main(["strain", "data", "generate", "--size", "40", "--clean", "--out", str(tmp_path / "a")]) == 0
    assert main(["strain", "data", "generate", "--size", "40", "--noise-max", "0", "--out", str(tmp_path / "b")]) == 0
    golden.line(capsys.readouterr().err, "40 curves", "seed 1")
    assert dataset.open_dataset(tmp_path / "a").sidecar == dataset.open_dataset(tmp_path / "b").sidecar

    assert (
        main(
            ["strain", "data", "generate", "--size", "40", "--clean", "--noise-max", "2", "--out", str(tmp_path / "c")]
        )
        == 2
    )
    golden(capsys.readouterr().err, "--clean", "--noise-max 2.0")
    assert not (tmp_path / "c").exists()


def test_check_prints_the_floor(capsys: pytest.CaptureFixture[str], small: Path) -> None:
    assert main(["strain", "data", "check", str(small)]) == 0
    lines = capsys.readouterr().out.splitlines()
    floor_line = next(k for k, line in enumerate(lines) if line.startswith("  floor"))

    assert lines[0] == f"{small}: good"
    assert re.fullmatch(
        r"  floor    test MSE \d\.\d{3}e-05 \(Cramer-Rao bound from the test curves on disk\)",
        lines[floor_line],
    )
    assert re.fullmatch(r" +G0 \d\.\d{3}e-05, root \d\.\d\d MPa", lines[floor_line + 1])
    assert {line[2:10].strip() for line in lines[1:]} >= {"made by", "split", "files", "layout", "targets", "digest"}

    assert main(["strain", "data", "check", str(small), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["floor"] == dataset.open_dataset(small).floor and facts["floor_recomputed"] is True


def test_check_says_where_no_floor_is_known(capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden) -> None:
    write(tmp_path / "own", *material.generate(9, 0, 8))

    assert main(["strain", "data", "check", str(tmp_path / "own")]) == 0
    out = capsys.readouterr().out
    assert '  made by  import of {"source": "coupons.csv"}\n' in out
    golden(out, "G0 500", "4000 MPa", "10", "60")


def test_generating_more_than_the_memory_warns(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 2_000_000)

    assert main(["strain", "data", "generate", "--size", "1000", "--out", str(tmp_path / "x")]) == 0
    golden.line(capsys.readouterr().err, "1,000 curves", "2.42 MB")
