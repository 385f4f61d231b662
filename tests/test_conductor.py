"""Who gives turns: one cell at a time, whole rounds in random order, and what becomes of cells that end or fail."""

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make.waiting import until

from horovod_study.cluster.process import Holding, used_s
from horovod_study.errors import RecordError
from horovod_study.measure.clock import sleep
from horovod_study.recording.rank.turns import connect, cores_of_threads
from horovod_study.records import TURNS_FILE, TurnSlice, append_turns, read_turns, run_turns
from horovod_study.studies import turns
from horovod_study.studies.turns import Conductor

STEP_S = 0.002


class Trainers:
    """Ranks that make steps of a known length, as threads of this process, and who of them trained when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy: Counter[str] = Counter()
        self.beside: list[set[str]] = []  # runs that trained at the same time
        self.said: dict[str, list[str]] = {}
        self.made: dict[str, list[int]] = {}
        self.held: list[list[int]] = []
        monkeypatch.setattr(turns, "WARM_S", 0.01)
        monkeypatch.setattr(turns, "SLICE_S", (0.02, 0.02))
        # They are threads of this very process, which must not be stopped.
        monkeypatch.setattr(Holding, "with_children", lambda own, numbers: [])

    def start(
        self,
        conductor: Conductor,
        run: str,
        *,
        ranks: int = 1,
        enough: int = 100,
        ends: int = 10**9,
        step_s: float = STEP_S,
        least: int | None = None,
    ) -> None:
        """Start the ranks of a run, which has what it was asked for after `enough` steps, and ends after `ends`."""
        while not conductor.may_start(run):
            sleep(0.001)
        environ = conductor.environment(run)
        threads = [
            threading.Thread(
                target=self._train, args=(environ, run, rank, ranks, enough, ends, step_s, least), daemon=True
            )
            for rank in range(ranks)
        ]
        for each in threads:
            each.start()
        threading.Thread(target=self._follow, args=(conductor, run, threads), daemon=True).start()

    def _follow(self, conductor: Conductor, run: str, threads: Sequence[threading.Thread]) -> None:
        for each in threads:
            each.join()
        conductor.ended(run)

    def _train(
        self,
        environ: dict[str, str],
        run: str,
        rank: int,
        ranks: int,
        enough: int,
        ends: int,
        step_s: float,
        least: int | None,
    ) -> None:
        mine = connect(environ, rank=rank, workers=ranks)
        assert mine is not None
        made, trained_s = 0, 0.0
        while made < ends:
            if made >= mine.until:
                said = mine.wait(
                    steps=made,
                    samples=made * 10,
                    trained_s=trained_s,
                    warm=made >= 3,
                    enough=made >= enough,
                    least=least,
                )
                self.said.setdefault(run, []).append(said)
                if said != "go":
                    break
            self.busy[run] += 1
            self.beside.append({each for each, count in self.busy.items() if count})
            sleep(step_s)
            trained_s += step_s  # not what a busy machine made of it: how many steps a slice has depends on that
            made += 1
            self.busy[run] -= 1
        self.made.setdefault(run, []).append(made)
        mine.leave()


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> Trainers:
    return Trainers(monkeypatch)


def test_cells_train_one_at_a_time_in_whole_rounds_of_random_order(trainers: Trainers) -> None:
    with Conductor("abc", block="b", launch=1) as conductor:
        for run, ranks in (("a", 1), ("b", 2), ("c", 3)):
            trainers.start(conductor, run, ranks=ranks)
        until(lambda: not conductor.left())
        slices = list(conductor.slices)

    assert conductor.failure is None
    assert all(len(each) == 1 for each in trainers.beside)
    assert {run: set(said) for run, said in trainers.said.items()} == {run: {"go", "end"} for run in "abc"}
    rounds = [[each for each in slices if each.round == number] for number in range(slices[-1].round + 1)]
    orders = ["".join(each.run for each in found) for found in rounds]
    assert len(orders) >= 4 and {"".join(sorted(each)) for each in orders[:-1]} <= {"abc", "ab", "ac", "bc", *"abc"}
    assert len(set(orders[:4])) > 1
    assert all([each.position for each in found] == list(range(len(found))) for found in rounds)
    for one, other in pairwise(slices):
        assert one.end_s <= other.begin_s + 1e-3
    for each in slices:
        assert (each.block, each.launch, each.samples) == ("b", 1, each.steps * 10 * " abc".index(each.run))
        assert each.end_s - each.begin_s >= each.steps * STEP_S
    # Warm-up is in no slice: what is in slices begins after it.
    for run in "abc":
        assert sum(each.steps for each in slices if each.run == run) < 100 + 25


def test_cells_start_in_their_order_two_at_a_time_and_others_wait_meanwhile(trainers: Trainers) -> None:
    with Conductor("abc") as conductor:
        assert conductor.may_start("a") and not conductor.may_start("b")
        conductor.environment("a")  # no rank of it comes
        assert conductor.may_start("b") and not conductor.may_start("c")
        conductor.ended("a")
        trainers.start(conductor, "b")
        until(lambda: conductor.held_s("b") > 0)
        before = conductor.held_s("b")
        sleep(0.05)
        made = len(trainers.beside)
        sleep(0.05)
        assert len(trainers.beside) == made and conductor.held_s("b") > before
        assert conductor.held_s("c") == 0.0
        trainers.start(conductor, "c")
        until(lambda: not conductor.left())
        assert conductor.held_s("b") >= 0.05


def test_one_that_ends_by_itself_and_one_that_fails_drop_out(trainers: Trainers) -> None:
    with Conductor("abcd") as conductor:
        trainers.start(conductor, "a", ends=30)
        trainers.start(conductor, "b", ranks=2, ends=20)
        while not conductor.may_start("c"):
            sleep(0.001)
        conductor.ended("c")  # it was not started at all
        trainers.start(conductor, "d")
        until(lambda: not conductor.left())
        slices = list(conductor.slices)

    assert [each for each in slices if each.run == "c"] == []
    last = {
        run: max(each.round for each in slices if each.run == run) for run in "abd" if run in {s.run for s in slices}
    }
    assert last["d"] == slices[-1].round > last.get("b", -1)
    assert trainers.said["d"][-1] == "end"


def test_the_policy_is_asked_after_every_round(trainers: Trainers) -> None:
    asked: list[tuple[int, dict[str, bool]]] = []

    def policy(slices: Sequence[TurnSlice], left: dict[str, bool]) -> list[str]:
        asked.append((slices[-1].round, dict(left)))
        return [run for run in left if (run == "a") <= (slices[-1].round < 2) and slices[-1].round < 5]

    with Conductor("ab", policy=policy) as conductor:
        trainers.start(conductor, "a", enough=10**9)
        trainers.start(conductor, "b", enough=1)
        until(lambda: not conductor.left())

    assert [number for number, _ in asked] == list(range(6))
    assert [sorted(left) for _, left in asked] == [["a", "b"]] * 3 + [["b"]] * 3
    assert asked[-1][1] == {"b": True} and asked[0][1]["a"] is False


def test_cells_that_end_together_make_equally_many_steps_where_that_is_wanted(trainers: Trainers) -> None:
    def policy(slices: Sequence[TurnSlice], left: dict[str, bool]) -> list[str]:
        return [] if slices[-1].round >= 3 else list(left)

    with Conductor("ab", policy=policy, equal_steps=True, least_steps=5) as conductor:
        trainers.start(conductor, "a", ranks=2, step_s=3 * STEP_S)
        trainers.start(conductor, "b")
        until(lambda: not conductor.left())
        slices = list(conductor.slices)

    assert {each.steps for each in slices if each.run == "a"} == {5}, "3 would take the time of a slice"
    in_slices = {run: sum(each.steps for each in slices if each.run == run) for run in "ab"}
    assert in_slices["a"] < in_slices["b"] and all(len(each) == 1 for each in trainers.beside)
    assert trainers.made["a"] == 2 * trainers.made["b"][:1] and len(trainers.made["b"]) == 1


@pytest.mark.parametrize("alone", [True, False])
def test_cells_end_one_by_one_where_what_follows_their_steps_is_measured(trainers: Trainers, alone: bool) -> None:
    seen: list[str] = []  # who was told to end, and who was waited for then

    with Conductor("abc", policy=lambda slices, left: (), end_alone=alone) as conductor:
        say, see_off = conductor._say, conductor._see_off

        def told(cell: Any, ranks: Any, message: dict[str, Any]) -> None:
            if message.get("end"):
                seen.append(f"{cell.run} told")
            say(cell, ranks, message)

        def seen_off(cell: Any) -> None:
            if f"{cell.run} told" in seen and f"{cell.run} over" not in seen:
                seen.append(f"{cell.run} over")
            see_off(cell)

        conductor._say, conductor._see_off = told, seen_off  # type: ignore[method-assign]
        for run in "abc":
            trainers.start(conductor, run)
        until(lambda: not conductor.left())

    order = [each[0] for each in seen if each.endswith("told")]
    assert sorted(order) == ["a", "b", "c"]
    one_by_one = [f"{run} {what}" for run in order for what in ("told", "over")]
    assert seen == (one_by_one if alone else [f"{run} {what}" for what in ("told", "over") for run in order])


def test_a_slice_begins_when_steps_on_cold_caches_are_over(trainers: Trainers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LEAD_S", 3 * STEP_S)
    granted: dict[str, list[int]] = {"a": [0], "b": [0]}

    with Conductor("ab") as conductor:
        say = conductor._say

        def told(cell: Any, ranks: Any, message: dict[str, Any]) -> None:
            granted[cell.run].append(message.get("until") or granted[cell.run][-1])
            say(cell, ranks, message)

        conductor._say = told  # type: ignore[method-assign]
        for run in granted:
            trainers.start(conductor, run)
        until(lambda: not conductor.left())

    for run, waits in granted.items():
        record = SimpleNamespace(totals={"turns": {"before": waits}}, attempts=({},))
        found = run_turns(record, run, conductor.slices)  # type: ignore[arg-type]
        places = [waits.index(first) for first, _ in found.rounds.values()]
        assert len(places) == len(conductor.slices_of(run)) > 2
        assert [two - one for one, two in pairwise(places)] == [2] * (len(places) - 1), "a lead between any two"
        assert all(1 <= waits[at] - waits[at - 1] <= 3 for at in places)


def play_others(monkeypatch: pytest.MonkeyPatch, busy: Callable[[Sequence[int]], float], *, wait_s: float) -> None:
    """Let `busy` say how long cores were in use, beside slices of 0.05 s that are waited for `wait_s` at most."""
    monkeypatch.setattr(turns, "busy_s", busy)
    monkeypatch.setattr(turns, "used_s", lambda numbers: 0.0)
    monkeypatch.setattr(turns, "SLICE_S", (0.05, 0.05))
    monkeypatch.setattr(turns, "_LOAD_S", 0.01)
    monkeypatch.setattr(turns, "QUIET_WAIT_S", wait_s)


@pytest.mark.parametrize("quiet_again", [True, False])
def test_a_disturbed_slice_is_made_again_when_the_machine_is_quiet(
    trainers: Trainers, monkeypatch: pytest.MonkeyPatch, quiet_again: bool
) -> None:
    """Other programs use two cores in the third and fourth second of 0.05 s slices, or from then on for good."""
    looks: list[float] = []

    def busy(cores: Sequence[int]) -> float:
        looks.append(looks[-1] if looks else 0.0)
        if 12 <= len(looks) < (24 if quiet_again else 10**9):
            looks[-1] += 1.0
        return looks[-1]

    play_others(monkeypatch, busy, wait_s=0.5)
    with Conductor("ab", cores=[0]) as conductor:
        for run in "ab":
            trainers.start(conductor, run, enough=400)
        until(lambda: not conductor.left())

    last = {(each.run, each.round): each.other_load or 0.0 for each in conductor.slices}
    loud = [each for each in conductor.slices if (each.other_load or 0.0) > turns.OTHER_LOAD]
    assert loud and conductor.failure is None
    if quiet_again:
        assert max(last.values()) == 0.0, "each of them was made again"
        assert len(conductor.slices) == len(last) + len(loud)
    else:
        assert max(last.values()) > turns.OTHER_LOAD, "it does not wait for ever"
    for run in "ab":
        waits = [0]
        for each in conductor.slices_of(run):
            waits.append(waits[-1] + each.steps)
        record = SimpleNamespace(totals={"turns": {"before": waits}}, attempts=({},))
        found = run_turns(record, run, conductor.slices)  # type: ignore[arg-type]
        assert sorted(found.rounds) == sorted({each.round for each in conductor.slices_of(run)})


def test_steps_that_were_asked_for_are_made_to_the_step_beside_other_programs(
    trainers: Trainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [0.0]

    def busy(cores: Sequence[int]) -> float:
        """Two of three looks see other programs at work, so that slices are disturbed and moments are quiet."""
        looks.append(looks[-1] + (len(looks) % 3 > 0))
        return looks[-1]

    play_others(monkeypatch, busy, wait_s=60.0)
    with Conductor("ab", cores=[0]) as conductor:
        for run in "ab":
            trainers.start(conductor, run, enough=150, least=150)
        until(lambda: not conductor.left())

    last = {(each.run, each.round) for each in conductor.slices}
    assert len(conductor.slices) > len(last), "some were made again"
    assert trainers.made == {"a": [150], "b": [150]}


@pytest.mark.parametrize(
    ("lengths", "slices", "places"),
    [
        ([1, 2, 4, 60, 61], [60, 61], [3, 4]),
        ([1, 2, 4, 5, 60, 5, 61], [60, 61], [4, 6]),
        ([4, 5, 60, 5, 60, 60, 2], [60, 60, 60], [2, 4, 5]),  # the last lead would have gone beyond what was asked for
        ([60, 60, 60], [60, 60], [1, 2]),
        ([60, 5, 5, 61], [60, 61], []),
        ([60, 61], [59], []),
        ([60], [60, 60], []),
    ],
)
def test_a_slice_is_found_among_the_waits_of_its_run(lengths: list[int], slices: list[int], places: list[int]) -> None:
    before = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    made = [slice_of("a", round=number, steps=steps) for number, steps in enumerate(slices)]
    record = SimpleNamespace(totals={"turns": {"before": before}}, attempts=({},))
    found = run_turns(record, "a", made)  # type: ignore[arg-type]
    assert found.rounds == {number: (before[at], before[at + 1]) for number, at in enumerate(places)}


def test_slices_of_an_attempt_that_was_stopped_are_in_no_round() -> None:
    made = [slice_of("a", round=number, steps=60) for number in range(2)]
    for resumed, rounds in ((0, {0: (0, 60), 1: (60, 120)}), (120, {})):
        attempts = ({"from_step": 0}, {"from_step": resumed})
        record = SimpleNamespace(totals={"turns": {"before": [0, 60, 120]}}, attempts=attempts)
        assert run_turns(record, "a", made).rounds == rounds  # type: ignore[arg-type]


def test_a_policy_that_fails_ends_all_and_is_told(trainers: Trainers) -> None:
    def policy(*_: object) -> list[str]:
        raise ZeroDivisionError("of the policy")

    with Conductor("ab", policy=policy) as conductor:
        trainers.start(conductor, "a")
        trainers.start(conductor, "b")
        until(lambda: not conductor.left())

    assert isinstance(conductor.failure, ZeroDivisionError)
    assert {said[-1] for said in trainers.said.values()} == {"lost"}


def test_dismissed_cells_stop_and_the_others_go_on(trainers: Trainers) -> None:
    with Conductor("ab") as conductor:
        trainers.start(conductor, "a", enough=10**9)
        trainers.start(conductor, "b", enough=10**9)
        until(lambda: conductor.rounds > 2)
        conductor.dismiss("a")
        until(lambda: conductor.left() == ["b"])
        number = conductor.rounds
        until(lambda: conductor.rounds > number + 2)

    assert (trainers.said["a"][-1], trainers.said["b"][-2]) == ("lost", "go")
    until(lambda: trainers.said["b"][-1] == "lost")  # the block was left


def test_strangers_are_turned_away(trainers: Trainers) -> None:
    with Conductor("a") as conductor:
        environ = conductor.environment("a")
        name = next(iter(environ))
        stranger = connect({name: environ[name][:-4] + "0000"}, rank=0, workers=1)
        assert stranger is not None
        assert stranger.wait(steps=0, samples=0, trained_s=0.0, warm=True, enough=True) == "lost"
        first, again = connect(environ, rank=0, workers=2), connect(environ, rank=0, workers=2)
        assert again is not None and first is not None
        assert again.wait(steps=0, samples=0, trained_s=0.0, warm=True, enough=True) == "lost"
        first.leave()


# ------------------------------------------------------------------------------------------------ processes that wait


BUSY = "while True: pass"


@pytest.fixture
def busy() -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-S", "-c", BUSY])
    yield process
    process.kill()
    process.wait()


def test_a_process_that_is_stopped_uses_no_processor_and_goes_on(busy: "subprocess.Popen[bytes]") -> None:
    with contextlib.closing(Holding()) as holding:
        until(lambda: (used_s([busy.pid]) or 0.0) > 0.1)
        holding.stop([busy.pid, 2**22 + 1])  # the second is nobody's
        until(lambda: Path(f"/proc/{busy.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        before = used_s([busy.pid])
        sleep(0.5)
        assert used_s([busy.pid]) == before
        holding.go_on([busy.pid])
        until(lambda: (used_s([busy.pid]) or 0.0) > (before or 0.0) + 0.05)
        holding.stop([busy.pid])
    before = used_s([busy.pid])
    until(lambda: (used_s([busy.pid]) or 0.0) > (before or 0.0) + 0.05)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no other place")
def test_what_goes_on_is_where_it_was_until_it_may_go_elsewhere(busy: "subprocess.Popen[bytes]") -> None:
    cores = os.sched_getaffinity(busy.pid)
    with contextlib.closing(Holding()) as holding:
        for core in cores:
            holding.stop([busy.pid])
            holding.go_on([busy.pid], {busy.pid: core, os.getpid(): core})
            assert os.sched_getaffinity(busy.pid) == {core}
            holding.spread()
            assert os.sched_getaffinity(busy.pid) == cores
        holding.go_on([busy.pid], {busy.pid: max(cores) + 1})
        assert os.sched_getaffinity(busy.pid) == cores, "it may not be there"
        holding.go_on([busy.pid], {busy.pid: min(cores)})
    assert os.sched_getaffinity(busy.pid) == cores == os.sched_getaffinity(0)


def test_a_rank_tells_where_its_threads_are() -> None:
    other = threading.Event()
    thread = threading.Thread(target=other.wait)
    thread.start()
    try:
        found = cores_of_threads()
    finally:
        other.set()
        thread.join()
    assert {threading.get_native_id(), thread.native_id} <= found.keys()
    assert set(found.values()) <= set(range(os.cpu_count() or 1))


def test_when_whoever_stopped_it_is_killed_it_goes_on(busy: "subprocess.Popen[bytes]") -> None:
    program = (
        "import sys, time; from horovod_study.cluster.process import Holding; "
        f"holding = Holding(); holding.stop([{busy.pid}]); print('stopped', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"stopped\n"
    before = used_s([busy.pid])
    holder.kill()
    holder.wait()
    holder.stdout.close()

    until(lambda: (used_s([busy.pid]) or 0.0) > (before or 0.0) + 0.1)


def test_children_are_found() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])"
    with contextlib.closing(Holding()) as holding:
        parent = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
        try:
            until(lambda: len(holding.with_children([parent.pid])) == 2)
        finally:
            os.killpg(parent.pid, 9)
            parent.wait()
        assert holding.with_children([parent.pid]) == [parent.pid]


# ------------------------------------------------------------------------------------------------ what is kept of it


def slice_of(run: str, **changed: object) -> TurnSlice:
    usual = {"block": "local", "launch": 0, "round": 3, "position": 1, "begin_s": 1.25, "end_s": 1.5, "steps": 100}
    return TurnSlice(**{**usual, "samples": 15000, "other_load": None, "run": run, **changed})  # type: ignore[arg-type]


def test_slices_are_read_as_they_were_written(tmp_path: Path) -> None:
    first, second = [slice_of("a"), slice_of("a", round=4, other_load=0.125)], [slice_of("=b", block="local-2")]
    assert read_turns(tmp_path) == []
    append_turns(tmp_path, first)
    append_turns(tmp_path, [])
    append_turns(tmp_path, second)

    assert read_turns(tmp_path) == [*first, *second]


@pytest.mark.parametrize(
    "changed", [{"steps": -1}, {"end_s": 1.0}, {"other_load": -0.5}, {"launch": "x"}, {"end_s": "inf"}]
)
def test_a_damaged_line_is_named(tmp_path: Path, changed: dict[str, object]) -> None:
    append_turns(tmp_path, [slice_of("a"), slice_of("b", **changed)])

    with pytest.raises(RecordError, match=f"{TURNS_FILE} line 3"):
        read_turns(tmp_path)
