"""What happens in a training, noted as events, and the steps that are made of them."""

import json
import os
import signal
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horovod_study import records
from horovod_study.recording import command
from horovod_study.recording.command import processes_in, trainings_of, worth_keeping
from horovod_study.recording.rank import events
from horovod_study.recording.rank.events import CALLS, DATA_SETS, KINDS, NUMBER, PLACES, DeviceLog, Log
from horovod_study.recording.steps import Events, NotedSteps, steps_of

LAP_S = {"data": 1.0, "forward": 2.0, "backward": 4.0, "update": 8.0}


class Story:
    """A training as it would be noted: what happens, one after the other, in times of its own."""

    def __init__(self) -> None:
        self.at, self.told = 0.0, []

    def note(self, kind: str, number: int = 0, after: float = 0.0) -> None:
        self.at += after
        self.told.append((self.at, NUMBER[kind], number))

    def fetch(self, loop: int, samples: int | None = 5, *, data: int = 0) -> None:
        self.note("fetch", loop * DATA_SETS + data)
        self.note("batch" if samples is not None else "ended", samples or 0, after=LAP_S["data"])

    def forward(self, what: int = 3, samples: int = 0) -> None:
        self.note("forward", what + 4 * samples)
        self.note("forwarded", after=LAP_S["forward"])

    def backward(self) -> None:
        self.note("backward")
        self.note("backwarded", after=LAP_S["backward"])

    def update(self, which: int = 0) -> None:
        self.note("update")
        self.note("updated", which, after=LAP_S["update"])

    def train(self, which: int = 0, samples: int = 0) -> None:
        self.forward(samples=samples)
        self.backward()
        self.update(which)

    def steps(self, **more: Any) -> NotedSteps:
        at, kind, number = np.array(self.told).T
        found = Events(host_s=at, at_s=at, kind=kind.astype(int), number=number.astype(int))
        return steps_of(found, **more)


def opened() -> Story:
    story = Story()
    story.note("opened")
    return story


def epoch(story: Story, loop: int, batches: int = 4, **more: Any) -> None:
    for batch in range(batches):
        story.fetch(loop, 5 if batch < batches - 1 else 3, **more)
        story.train()
    story.fetch(loop, None, **more)


def test_a_step_is_a_turn_of_the_loop_and_its_laps_tile_it() -> None:
    story = opened()
    epoch(story, 1)
    epoch(story, 2)
    found = story.steps()
    assert list(found.columns["samples"]) == [5, 5, 5, 3] * 2
    assert list(found.columns["epoch"]) == [0] * 4 + [1] * 4
    assert found.epoch_steps == 4
    for lap, seconds in LAP_S.items():
        assert list(found.columns[f"{lap}_s"]) == [seconds] * 8
    assert list(found.columns["step_s"]) == [sum(LAP_S.values())] * 8
    assert not found.columns["residual_s"].any()


@pytest.mark.parametrize("same", [True, False])
def test_an_evaluation_is_in_no_step_on_data_of_its_own_or_the_trainings(same: bool) -> None:
    story = opened()
    for loop in (1, 3, 5):
        epoch(story, loop)
        for _ in range(3):
            story.fetch(loop + 1, data=0 if same else 1)
            story.forward(0)
        story.fetch(loop + 1, None, data=0 if same else 1)
    found = story.steps()
    assert len(found) == 12 and set(found.columns["step_s"]) == {15.0}
    gaps = np.diff(found.columns["begin_s"]) - found.columns["step_s"][:-1]
    assert list(np.flatnonzero(gaps)) == [3, 7]


def test_an_evaluation_behind_the_last_step_is_told() -> None:
    story = opened()
    epoch(story, 1)
    assert story.steps().after_s == 0.0
    for _ in range(3):
        story.fetch(2, data=1)
        story.forward(0)
    assert story.steps().after_s == 10.0, "with the end of the loop before"


def test_an_evaluation_in_the_midst_of_a_turn_is_outside_of_it() -> None:
    story = opened()
    for batch in range(8):
        story.fetch(1)
        if batch == 4:
            story.forward(0)
            story.note("forward", 0, after=100.0)
            story.note("forwarded", after=1.0)
        story.train()
        if batch == 2:
            story.fetch(9, data=1)
            story.fetch(9, None, data=1)
    story.fetch(1, None)
    found = story.steps()
    assert list(found.columns["step_s"]) == [15.0] * 8


def test_what_is_in_every_step_is_a_part_of_it() -> None:
    story = opened()
    for _ in range(6):
        story.fetch(1)
        story.forward(2)  # of the model before, as a teacher
        story.train()
    story.fetch(1, None)
    assert list(story.steps().columns["step_s"]) == [17.0] * 6
    assert list(story.steps().columns["residual_s"]) == [2.0] * 6


def test_an_evaluation_after_every_update_is_in_no_step() -> None:
    for looped in (True, False):
        story = opened()
        for _ in range(6):
            if looped:
                story.fetch(1)
            story.train(samples=4)
            story.forward(0)
        if looped:
            story.fetch(1, None)
        assert list(story.steps().columns["step_s"]) == [15.0 if looped else 14.0] * 6


def test_gradients_that_are_added_up_make_one_step_and_what_is_left_over_none() -> None:
    story = opened()
    for turn in range(7):
        story.fetch(1)
        story.forward()
        story.backward()
        if turn % 3 == 2:
            story.update()
    story.fetch(1, None)
    found = story.steps()
    assert list(found.columns["samples"]) == [15, 15]
    assert found.turns == {3: 2}


@pytest.mark.parametrize("left", [True, False])
def test_a_batch_that_is_fetched_ahead_is_of_the_step_that_trains_on_it(left: bool) -> None:
    story = opened()
    story.fetch(1, 4)
    for samples in (5, 6, 7):
        story.fetch(1, samples)
        story.train()
    if not left:
        story.fetch(1, None)
        story.train()
    found = story.steps()
    assert list(found.columns["samples"]) == [4, 5, 6, *([] if left else [7])]
    assert found.columns["data_s"][0] == 2.0, "both are waited for"


def test_several_updates_of_a_batch_are_one_step_and_phases_of_two_optimizers_many() -> None:
    critic = opened()
    for _ in range(5):
        critic.fetch(1)
        for _ in range(30):
            critic.train(1)
        critic.train()
    critic.fetch(1, None)
    assert len(critic.steps()) == 5

    phases = opened()
    for _ in range(3):
        for which in (0, 1):
            for _ in range(10):
                phases.train(which, samples=8)
    found = phases.steps()
    assert len(found) == 30 + 3 * 9, "of the second one all but its first"
    assert found.columns["samples"].sum() == 8 * 60 and found.from_calls


def test_copies_that_nobody_sees_being_called_have_the_batch_of_the_others() -> None:
    story = opened()
    for task in range(6):
        for _ in range(5):
            story.train(samples=16 if task < 2 else 0)
        story.update(1)
    found = story.steps()
    assert len(found) == 30 and set(found.columns["samples"]) == {16}


def test_a_batch_that_is_used_again_and_again_is_no_loop() -> None:
    story = opened()
    story.fetch(1)
    for _ in range(50):
        story.train(samples=6)
    found = story.steps()
    assert len(found) == 50 and set(found.columns["samples"]) == {6}


def test_one_batch_of_each_new_loop_is_a_turn() -> None:
    story = opened()
    for loop in range(1, 21):
        story.note("start")
        story.fetch(loop)
        story.train()
    assert len(story.steps()) == 20 and set(story.steps().columns["samples"]) == {5}


def test_batches_that_are_cycled_through_make_steps_without_a_fetch() -> None:
    for passes in (1, 3):
        story = opened()
        epoch(story, 1)
        for _ in range(4 * passes):
            story.train()
        found = story.steps()
        assert list(found.columns["samples"]) == [5, 5, 5, 3] * (1 + passes)
        assert list(found.columns["epoch"]) == sorted([*range(1 + passes)] * 4)
        assert set(found.columns["step_s"][5:]) == {14.0} and found.epoch_steps == 4


@pytest.mark.parametrize("what", ["save", "sync", "called", "eval"])
@pytest.mark.parametrize("looped", [True, False])
def test_a_checkpoint_a_wait_for_one_rank_and_an_evaluation_are_outside_where_they_are_rare(
    what: str, looped: bool
) -> None:
    for every in (1, 4):
        story = opened()
        for turn in range(12):
            if looped:
                story.fetch(1)
            story.train(samples=4)
            if turn % every == every - 1:
                story.at += 100.0  # what one rank does alone
                story.note(what, CALLS.index("barrier"))
                story.note({"save": "saved", "sync": "synced"}.get(what, "none"), after=50.0)
        found = story.steps()
        gaps = np.diff(found.columns["begin_s"]) - found.columns["step_s"][:-1]
        assert len(found) == 12
        if every == 1:
            assert not gaps.any() and np.median(found.columns["step_s"]) > 150.0
        else:
            assert set(found.columns["step_s"]) == {15.0 if looped else 14.0}
            assert list(gaps[gaps > 0]) == [150.0, 150.0]
            assert found.after_s == {"save": 150.0, "sync": 150.0}.get(what, 0.0)


def test_a_wait_that_averages_and_a_pause_of_the_script_are_parts_of_a_step() -> None:
    story = opened()
    for turn in range(12):
        story.fetch(1)
        story.train()
        if turn % 4 == 2:
            story.note("sync", CALLS.index("all_reduce"))
            story.note("synced", after=50.0)
    story.at += 20.0
    story.fetch(1, None)
    assert list(story.steps().columns["step_s"]) == [15.0, 15.0, 65.0, 15.0] * 2 + [15.0, 15.0, 65.0, 35.0]


def test_accumulated_turns_behind_a_checkpoint_stay_in_their_step() -> None:
    story = opened()
    for turn in range(24):
        story.fetch(1)
        story.forward()
        story.backward()
        if turn % 12 == 5:
            story.note("save")
            story.note("saved", after=50.0)
        if turn % 4 == 3:
            story.update()
    story.fetch(1, None)
    assert list(story.steps().columns["step_s"]) == [36.0] * 6


def test_rollouts_between_updates_are_outside_and_a_rate_stays_that_of_the_steps() -> None:
    story = opened()
    for _ in range(5):
        for _ in range(20):
            story.forward(2)
        for _ in range(8):
            story.train(samples=4)
    found = story.steps()
    assert len(found) == 40 and set(found.columns["step_s"]) == {14.0}
    assert (np.diff(found.columns["begin_s"]) > 20.0).sum() == 4


def test_updates_that_are_not_seen_are_turns_in_which_parameters_changed() -> None:
    story = opened()
    for _ in range(6):
        story.fetch(1)
        story.note("changed", after=3.0)
    story.fetch(1, None)
    found = story.steps()
    assert (len(found), found.by) == (6, "changes")
    assert "forward_s" not in found.columns and "update_s" not in found.columns


def test_the_wait_for_a_turn_is_in_no_step() -> None:
    for looped in (True, False):
        story = opened()
        for batch in range(6):
            if batch == 3:
                story.note("pause")
                story.note("resume", after=50.0)
            if looped:
                story.fetch(1)
            story.train(samples=4)
        if looped:
            story.fetch(1, None)
        found = story.steps()
        assert set(found.columns["step_s"]) == {15.0 if looped else 14.0}
        assert (found.waits, found.waited_s) == ([3], 50.0)


def test_calls_that_average_are_counted_and_metrics_do_not_average() -> None:
    story = opened()
    for _ in range(4):
        story.fetch(1)
        story.forward()
        story.backward()
        for size in (400, 40, 4000):
            story.note("sync", size * PLACES + CALLS.index("all_reduce"))
            story.note("synced", after=1.0)
        story.note("sync", CALLS.index("barrier"))
        story.note("synced", after=1.0)
        story.update()
    story.fetch(1, None)
    found = story.steps()
    assert found.calls == {"per_step": 3.0, "bytes_median": 400.0, "bytes_max": 4000, "names": {"all_reduce": 3.0}}
    assert found.averaged_bytes == 4440
    assert list(found.columns["sync_s"]) == [4.0] * 4


@pytest.mark.parametrize("mapped", [True, False])
def test_a_log_keeps_all_that_was_noted_until_its_process_was_killed(
    mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mapped:  # as on a file system that cannot, or one that is nearly full
        monkeypatch.setattr(events, "_AMPLE", 1 << 62)
    many = 30_000  # more than a part of the file holds
    if (child := os.fork()) == 0:
        log = Log()
        log.note(NUMBER["fetch"], 7)
        log.open(str(tmp_path / "log"))
        for number in range(many):
            log.note(NUMBER["batch"], number)
            if not mapped:
                log.write()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    found = Events.read(tmp_path / "log", Log.width)
    assert [KINDS[kind] for kind in found.kind] == ["fetch", *["batch"] * many]
    assert list(found.number) == [7, *range(many)] and (np.diff(found.at_s) >= 0).all()


def test_a_log_that_is_closed_has_no_zeros_and_no_part_of_an_event(tmp_path: Path) -> None:
    log = Log()
    log.open(str(tmp_path / "log"))
    log.note(NUMBER["batch"], 3)
    log.close()
    log.note(NUMBER["batch"], 4)  # as a hook that was under way: not behind the end of the file
    assert (tmp_path / "log").stat().st_size == 8 * Log.width
    with (tmp_path / "log").open("ab") as stream:
        stream.write(b"torn")
    assert list(Events.read(tmp_path / "log", Log.width).number) == [3]


def test_a_log_hands_what_is_not_of_its_training_to_the_next(tmp_path: Path) -> None:
    log, after = Log(), Log()
    log.open(str(tmp_path / "log"))
    log.note(NUMBER["updated"], 1)
    log.write()
    log.note(NUMBER["fetch"], 2)
    after.give(log.take())
    after.open(str(tmp_path / "after"))
    log.close()
    assert [list(Events.read(tmp_path / name, Log.width).number) for name in ("log", "after")] == [[1], [2]]


def test_the_newest_of_what_a_log_hands_on_begins_the_next() -> None:
    log, after = Log(), Log()
    after.give(array("d", [value for number in range(5000) for value in (float(number), PLACES * number + 2.0)]))
    after.note(NUMBER["fetch"], 5000)
    newest = after.take()[1::2]
    assert newest[-1] // PLACES == 5000 and newest[-2] // PLACES == 4999
    assert not len(log.take())


def test_a_process_that_never_trains_keeps_the_newest_events() -> None:
    log = Log()
    for number in range(100_000):
        log.note(NUMBER["fetch"], number)
    newest = log.take()[1::2]
    assert len(newest) < 10_000 and newest[-1] // PLACES == 99_999


class Gpu:
    """Stands in for torch.cuda: work of 2 s each is given at once, and made one after the other."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.at = 0.0

        def record(self) -> None:
            Gpu.given += 2.0
            self.at = Gpu.given

        def query(self) -> bool:
            return self.at <= Gpu.made

        def elapsed_time(self, other: "Gpu.Event") -> float:
            return 1e3 * (other.at - self.at)

    given = made = 0.0

    @staticmethod
    def synchronize() -> None:
        Gpu.made = Gpu.given

    @staticmethod
    def is_current_stream_capturing() -> bool:
        return False


def test_a_device_is_read_when_it_has_made_its_work_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for name in ("Event", "synchronize", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, getattr(Gpu, name))
    monkeypatch.setattr(events, "now", lambda: 1000.0)
    log = DeviceLog(Log())
    log.open(str(tmp_path / "log"))
    for _ in range(200):
        log.note(NUMBER["fetch"])
        log.write()
    assert not len(Events.read(tmp_path / "log", log.width).at_s)
    Gpu.made += 101.0
    log.note(NUMBER["fetch"])
    log.write()
    assert len(Events.read(tmp_path / "log", log.width).at_s) == 50
    log.close()
    found = Events.read(tmp_path / "log", log.width)
    assert len(found.at_s) == 201 and set(np.diff(found.at_s)) == {2.0}
    assert set(found.host_s) == {1000.0}


# ---------------------------------------------------------------------------------------------------- what was left


def left(meeting: Path, name: str, updates: int, *, begin_s: float = 0.0, opening_s: float = 1.0, **told: Any) -> None:
    """Leave what a process notes that has made so many updates of 10 ms, from `begin_s` on."""
    step = [(0.0, "forward", 3 + 4 * 8), (0.001, "forwarded", 0), (0.002, "backward", 0), (0.005, "backwarded", 0)]
    step += [(0.006, "update", 0), (0.009, "updated", 0)]
    story: list[tuple[float, str, int]] = []
    for update in range(updates):
        later = begin_s + 0.01 * update + (opening_s if update > 1 else 0.0)
        story += [(later + at, kind, number) for at, kind, number in step]
        story += [(later + 0.009, "opened", 0)] if update == 1 else []
    values = [value for at, kind, number in story for value in (at, NUMBER[kind] + PLACES * number)]
    np.array(values).tofile(meeting / f"{name}.events")
    opened = {"workers": 1, "rank": 0, "host": os.uname().nodename, "pid": 2**22 + 1, "width": 2, "data": []}
    opened |= {"cores": [0], "threads": 1, "device": "cpu", "gpu": None, "lr": 0.1, "model": "Net", "parameters": 9}
    opened |= {"backend": "serial", "transport": "none", "averaging": None, "environ": {}, "environment": {}}
    opened |= {"optimizer": "SGD", "initial_sha256": "a", "sharded": False, "script": "x.py", "waits": False}
    opened |= {"told": False, "at": [1000.0 + begin_s + opening_s, begin_s + opening_s], **told}
    (meeting / f"{name}.facts").write_text(json.dumps(["opened", opened]) + "\n")


def test_the_longest_training_of_a_command_comes_first(tmp_path: Path) -> None:
    for number, updates in enumerate((8, 40, 100, 60), 1):
        left(tmp_path, f"host-1-{number}", updates, begin_s=10.0 * number)
    found = worth_keeping(trainings_of(processes_in(tmp_path)[1]), 10)
    assert [each.ranks[0].updates for each in found] == [100, 40, 60], "what is shorter than a warm-up is none"


def test_processes_that_begin_together_are_one_measurement_however_long_their_opening_takes(tmp_path: Path) -> None:
    left(tmp_path, "host-1-1", 100, opening_s=0.1)
    left(tmp_path, "host-2-1", 100, opening_s=1.0)
    left(tmp_path, "host-3-1", 100, begin_s=10.0)
    assert [each.workers for each in trainings_of(processes_in(tmp_path)[1])] == [2, 1]


def test_what_a_killed_recorder_has_left_is_closed_and_what_goes_on_is_left_alone(tmp_path: Path) -> None:
    runs = {"gone": 2**22 + 1, "goes-on": os.getpid()}
    options = {"study": "script", "repeat": 0, "partition": "local", "warmup_steps": 10, "system_interval_s": 1.0}
    about = {"batch": None, "model_name": None, "own": {"a": "1"}, "requested": {}}
    for name, pid in runs.items():
        meeting = tmp_path / f".{name}.00000000-1-1.x-events.part"
        meeting.mkdir()
        left(meeting, "host-1-1", 60, pid=pid)
        asked = {"out": str(tmp_path / name), "options": options, "about": about, "host": os.uname().nodename}
        (meeting / "asked.json").write_text(json.dumps({**asked, "pid": 2**22 + 2}))
    command.close_left(tmp_path)
    record = records.read_run(tmp_path / "gone")
    assert (record.status, record.totals["steps"], len(record.requested["options"])) == ("done", 48, 1)
    assert "killed" in record.effective["ended"] and record.totals["wall_s"] == pytest.approx(1.599)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == [meeting.name]
    assert not (tmp_path / "goes-on").exists()
