"""The recorder: flat memory, small rows, and a full disk that is never silent."""

import errno
import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LAUNCHERS
from make.wording import Golden
from test_clock import Given
from test_records import columns, fill_disk, record

from horovod_study import records
from horovod_study.config.run import LAPS, ORDINARY_LAPS
from horovod_study.errors import RecordError
from horovod_study.files import write_file
from horovod_study.measure.clock import LapClock, Milestones, Unstamped
from horovod_study.measure.recorder import DRAIN_STEPS, MAX_PENDING, Recorder
from horovod_study.strain.graphs import RING
from horovod_study.train import main

SMALL = ("--dataset", "2000", "--batch", "25", "--warmup-steps", "5", "--steps", "300")
LOSS = torch.tensor(0.5)


def make_steps(recorder: Recorder, clock: LapClock, first: int, count: int) -> None:
    for step in range(first, first + count):
        clock.begin()
        for lap in ORDINARY_LAPS:
            clock.lap(lap)
        recorder.add(step, 0, LOSS)
    recorder.drain(clock)


def ticking() -> LapClock:
    """Return a clock whose every stamp is a second after the one before, and that was started."""
    moments = iter(range(10**9))
    clock = LapClock(lambda: float(next(moments)))
    clock.start()
    return clock


@pytest.fixture
def open_writer(tmp_path: Path) -> Iterator[Callable[[int], records.StepWriter]]:
    """Begin the rows of a rank in tmp_path."""
    writers: list[records.StepWriter] = []

    def begin(rank: int = 0) -> records.StepWriter:
        writers.append(records.StepWriter(tmp_path, rank))
        return writers[-1]

    yield begin
    for each in writers:
        each.close()


# ---------------------------------------------------------------------------------------------------- totals


def test_totals_are_read_back_from_the_rows(tmp_path: Path, open_writer: Any) -> None:
    writer = open_writer()
    recorder = Recorder(writer, batch=75)
    rng = np.random.default_rng(1)
    moments = np.cumsum(rng.random(1 + 6 * 1000))
    source = iter(moments)
    clock = LapClock(lambda: float(next(source)))
    clock.start()
    for first in range(0, 1000, 50):
        make_steps(recorder, clock, first, 50)
    gaps = np.diff(moments).reshape(1000, 6)[300:]
    found = recorder.summary(300)

    assert found["rows"] == 700
    assert recorder.timed("step").tolist() == list(range(1000))
    assert recorder.timed("step_s")[300:] == pytest.approx(gaps.sum(axis=1))
    for place, name in enumerate(("residual", *ORDINARY_LAPS)):
        assert found["mean"][f"{name}_s"] == pytest.approx(gaps[:, place].mean())
        assert found["median"][f"{name}_s"] == pytest.approx(np.median(gaps[:, place]))
    assert found["step_s_p90"] == pytest.approx(np.quantile(gaps.sum(axis=1), 0.9))
    assert found["mean"]["sync_host_s"] is None, "one clock"


def test_what_was_not_timed_is_not_known(tmp_path: Path, open_writer: Any) -> None:
    recorder = Recorder(open_writer(), batch=75)
    clock = Unstamped()
    clock.start()
    make_steps(recorder, clock, 0, 20)
    found = recorder.summary(5)

    assert set(found["mean"].values()) == set(found["median"].values()) == {found["step_s_p90"]} == {None}
    assert 0 < recorder.recent_step_s < 1, "the speed is that of the window"
    rows = records.read_steps(tmp_path, 0)
    assert rows.column("loss").to_pylist() == [0.5] * 20
    assert all(rows.column(f"{name}_s").null_count == 20 for name in ("begin", *LAPS, "residual", "step"))


def test_a_lap_that_a_part_of_the_rows_does_not_know_has_no_mean(tmp_path: Path, open_writer: Any) -> None:
    """A run may be resumed in another timer mode."""
    recorder = Recorder(open_writer(), batch=75)
    clock = Unstamped()
    clock.start()
    make_steps(recorder, clock, 0, 10)
    make_steps(recorder, ticking(), 10, 10)

    assert recorder.summary(9)["mean"]["step_s"] is None
    assert recorder.summary(10)["mean"]["step_s"] == 6
    assert recorder.summary(99) == {**recorder.summary(99), "rows": 0, "step_s_p90": None}


# ---------------------------------------------------------------------------------------------------- a million steps


@pytest.mark.slow
def test_a_million_steps_cost_no_memory_and_few_bytes(tmp_path: Path) -> None:
    program = f"""
        import resource, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_recorder import Recorder, LapClock, Path, make_steps, records

        peak_mb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        recorder = Recorder(records.StepWriter(Path({str(tmp_path)!r}), 0), batch=75)
        clock = LapClock()
        clock.start()
        for first in range(0, 10_240, 512):
            make_steps(recorder, clock, first, 512)
        recorder.summary(0)
        before_mb = peak_mb()
        for first in range(10_240, 1_024_000, 512):
            make_steps(recorder, clock, first, 512)
        found = recorder.summary(100)
        print(peak_mb() - before_mb, found["rows"])
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    grown_mb, rows = map(float, done.stdout.split())

    assert rows == 1_024_000 - 100
    assert grown_mb < 50
    assert (tmp_path / "steps-00000.arrows").stat().st_size / 1_024_000 < 100


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 7, 20, 100, 511, 512])
def test_rows_that_come_slowly_are_small_too_and_always_readable(
    tmp_path: Path, open_writer: Any, together: int
) -> None:
    writer = open_writer()
    made = 0
    while made < 1200:
        writer.append(columns(together, made))
        made += together
        if made % 3 == 0:
            assert records.read_steps(tmp_path, 0).column("step").to_pylist() == list(range(made)), "nothing is kept"
    writer.close()
    table = records.read_steps(tmp_path, 0)

    assert table.column("step").to_pylist() == list(range(made))
    assert table.column("sync_s").to_pylist() == [1e-3] * made
    assert records.read_step_column(writer.path, "step").tolist() == list(range(made))
    assert writer.path.stat().st_size / made < 100


def test_a_process_that_dies_while_batches_are_joined_keeps_its_rows(
    tmp_path: Path, open_writer: Any, monkeypatch: Any
) -> None:
    """The joined batch is written over the small ones; what is left of them behind it is a torn batch."""
    writer = open_writer()
    for first in range(0, 500, 20):
        writer.append(columns(20, first))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "ftruncate", die)
    with pytest.raises(KeyboardInterrupt):
        writer.append(columns(20, 500))

    assert records.read_steps(tmp_path, 0).column("step").to_pylist() == list(range(500))


def test_a_column_is_read_up_to_a_torn_batch(tmp_path: Path, open_writer: Any, golden: Golden) -> None:
    writer = open_writer()
    assert records.read_step_column(writer.path, "step_s").tolist() == []
    for first in (0, 10):
        writer.append({name: values for name, values in columns(10, first).items() if name != "sync_s"})
    os.truncate(writer.path, writer.path.stat().st_size - 5)

    assert records.read_step_column(writer.path, "step").tolist() == list(range(10))
    assert np.isnan(records.read_step_column(writer.path, "sync_s")).all()
    with golden.raises(RecordError):
        records.read_step_column(tmp_path / "none", "step")


# --------------------------------------------------------------------------------------- a device that is behind


def test_in_the_loop_only_what_the_device_has_made_is_read_and_no_row_is_lost_or_doubled(
    tmp_path: Path, open_writer: Any
) -> None:
    device = Given()
    recorder, clock = Recorder(open_writer(), batch=75), ticking()
    recorder.follow(torch.device("cpu"), Milestones(every=8, make=device.event))
    rng = np.random.default_rng(1)
    ring = torch.zeros(2 * MAX_PENDING)  # as captured steps have it
    written = 0
    for step in range(10_000):
        clock.begin()
        clock.lap("compute")
        ring[step % len(ring)] = step
        device.given = step + 1
        recorder.add(step, step // 3000, ring[step % len(ring)], ring[step % len(ring)])
        if step % 100 == 99:
            device.done = max(device.done, min(step + 1, int(rng.integers(step - 400, step + 60))))
            recorder.drain_made(clock)
            assert device.waits == 0
            assert 0 <= device.done - (step + 1 - len(recorder)) < 8, "all that was made, up to the last milestone"
            written += 1
    recorder.drain(clock)
    rows = records.read_steps(tmp_path, 0).to_pandas()

    assert written > 50 and len(recorder) == 0
    assert list(rows["step"]) == list(range(10_000))
    assert list(rows["loss"]) == list(range(10_000)), "each read before its place was written again"
    assert list(rows["epoch"]) == [step // 3000 for step in range(10_000)]
    assert recorder.epoch_loss() == pytest.approx(np.mean(np.arange(9000, 10_000)))


def test_a_device_that_falls_far_behind_is_waited_for_before_losses_are_written_over(open_writer: Any) -> None:
    device = Given()
    recorder, clock = Recorder(open_writer(), batch=75), ticking()
    recorder.follow(torch.device("cpu"), Milestones(make=device.event))
    most = 0
    for step in range(4 * MAX_PENDING):
        clock.begin()
        clock.lap("compute")
        device.given = step + 1
        recorder.add(step, 0, LOSS)
        if step % DRAIN_STEPS == 0:
            recorder.drain_made(clock)
        most = max(most, len(recorder))

    assert device.waits > 0
    assert MAX_PENDING <= most <= MAX_PENDING + DRAIN_STEPS < RING, "the loss of the oldest is still in its place"


def test_a_loss_that_is_no_number_is_found_late_but_by_its_step(open_writer: Any) -> None:
    device = Given()
    recorder, clock = Recorder(open_writer(), batch=75), ticking()
    recorder.follow(torch.device("cpu"), Milestones(every=8, make=device.event))
    found = []
    for step in range(200):
        clock.begin()
        clock.lap("compute")
        device.given = step + 1
        recorder.add(step, 0, torch.tensor(float("nan") if step >= 70 else step + 1.0))
        device.done = step - 50
        if step % 10 == 9:
            recorder.drain_made(clock)
            found.append(recorder.broken_step)

    assert found == [None] * 12 + [70] * 8


def test_a_cpu_is_never_behind(open_writer: Any) -> None:
    recorder, clock = Recorder(open_writer(), batch=75), ticking()
    recorder.follow(torch.device("cpu"))
    for step in range(7):
        clock.begin()
        clock.lap("forward")
        recorder.add(step, 0, LOSS)
    recorder.drain_made(clock)

    assert len(recorder) == 0 and recorder.timed("step").tolist() == list(range(7))


# ---------------------------------------------------------------------------------------------------- a full disk


def test_rows_without_room_end_the_run_or_are_counted(
    tmp_path: Path, open_writer: Any, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    for rank, disk_full in enumerate(("end", "go-on")):
        writer = open_writer(rank)
        recorder, clock = Recorder(writer, batch=75, rank=rank, disk_full=disk_full), ticking()
        make_steps(recorder, clock, 0, 30)
        fill_disk(writer)
        if disk_full == "end":
            with golden.raises(records.NoRoom):
                make_steps(recorder, clock, 30, 30)
            continue
        for first in (30, 60, 90):
            make_steps(recorder, clock, first, 30)
        assert (recorder.lost_from, recorder.rows_lost) == (30, 90)
    said = capsys.readouterr().err

    assert said.count("warning") == 1
    golden(said, "rank 1", tmp_path, "/steps-00001.arrows", "step 30")


def test_a_disk_that_is_full_for_one_batch_leaves_the_rows_before_readable(
    tmp_path: Path, open_writer: Any, monkeypatch: Any
) -> None:
    writer = open_writer()
    writer.append(columns(20))
    whole = os.pwrite

    def half(file: int, content: Any, at: int) -> int:
        if at > writer._end:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(file, content[: len(content) // 2], at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(records.NoRoom):
        writer.append(columns(20, 20))
    monkeypatch.undo()

    assert records.read_steps(tmp_path, 0).num_rows == 20
    writer.append(columns(20, 20))
    assert records.read_steps(tmp_path, 0).num_rows == 40


def train_with_little_room(out: Path, *options: str) -> tuple[int, str, str]:
    """Train in a process that can make no file larger than 20 kB."""
    done = subprocess.run(
        [sys.executable, "-m", "horovod_study.train", *SMALL, "--system-interval-s", "0", "--out", str(out), *options],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_run_whose_rows_find_no_room_ends_or_goes_on_as_configured(
    tmp_path: Path, capsys: Any, golden: Golden
) -> None:
    main([*SMALL, "--steps", "5", "--out", str(tmp_path / "data")])  # makes the data set, which is larger
    code, _, said = train_with_little_room(tmp_path / "end")

    assert code == 2
    assert "step rows cannot be written (File too large); free space and run again" in said
    assert [line for line in said.splitlines() if line.startswith("error:")] == [said.splitlines()[-1]]
    record_of_end = records.read_run(tmp_path / "end")
    assert record_of_end.status == "failed"
    golden(record_of_end.reason)
    code, out, said = train_with_little_room(tmp_path / "on", "--disk-full", "go-on", "--json")
    rows = records.read_steps(tmp_path / "on", 0).num_rows
    final = records.read_run(tmp_path / "on")

    assert code == 0, said
    assert rows < 305
    golden.line(said, rows)
    assert ".pt: cannot be written (File too large)" in said
    golden.line(said, 305 - rows, "rank 0")
    assert (final.status, final.totals["rows_lost"], final.totals["steps"]) == ("done", [305 - rows], 300)
    assert json.loads(out)["rows_lost"] == [305 - rows]


@pytest.mark.slow
@pytest.mark.horovod
def test_ranks_stop_their_rows_together_and_train_on(tmp_path: Path) -> None:
    """The room that is left on the disk of a rank is for the end of the run."""
    program = tmp_path / "patched.py"
    program.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_records import fill_disk\nfrom horovod_study import records, train\n"
        "append = records.StepWriter.append\n"
        "def full_after(writer, columns):\n"
        "    if columns['step'][0] >= 40 and train.detect(os.environ).rank == 1:\n"
        "        fill_disk(writer)\n"
        "    append(writer, columns)\n"
        "records.StepWriter.append = full_after\n"
        "sys.exit(train.main())\n"
    )
    line = [str(part).format(workers=2) for part in LAUNCHERS["mpirun"]]
    options = ("--dataset", "4000", "--warmup-steps", "0", "--steps", "100", "--disk-full", "go-on")
    done = subprocess.run(
        [*line, str(program), *options, "--system-interval-s", "0", "--out", str(tmp_path / "r")],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    rows = [records.read_steps(tmp_path / "r", rank).num_rows for rank in (0, 1)]
    final = records.read_run(tmp_path / "r")

    assert done.returncode == 0, done.stderr
    assert (final.status, final.totals["steps"]) == ("done", 100)
    assert rows[1] == 40 and 40 < rows[0] < 100, "rank 0 stops at the end of the stretch"
    assert final.totals["rows_lost"] == [100 - each for each in rows]
    assert done.stderr.count("training goes on, the rows from step 40 on are lost") == 1
    lost = f"step rows lost to a full disk: {100 - rows[0]} of rank 0, 60 of rank 1; times are those of the rows there"
    assert lost in done.stdout


def test_the_end_of_a_run_is_told_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    records.create_run(run, record())
    reserve = run / records.RESERVE
    assert reserve.stat().st_size == records.RESERVE_BYTES
    write, wanted = write_file, [records.RESERVE_BYTES // 2, 0]

    def on_a_full_disk(path: Path, text: str) -> None:
        if reserve.exists() and reserve.stat().st_size > wanted[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    monkeypatch.setattr("horovod_study.records.writer.write_file", on_a_full_disk)
    records.write_bench(run, "ablation", {})
    assert reserve.stat().st_size == records.RESERVE_BYTES // 2
    wanted.pop(0)
    records.finish_run(run, record(), status="failed", finished="f", totals={}, reason="no room")

    assert records.read_run(run).reason == "no room"
    assert not reserve.exists()
