"""Which threads get a priority, what becomes of it, and what happens where the system does not permit it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from make.wording import Golden

from horovod_study.comm import priority
from horovod_study.comm.priority import NewThreads
from horovod_study.errors import BackendError


@contextmanager
def sleeping_thread() -> Iterator[int]:
    """A thread that does nothing, by the number the system knows it by."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield thread.native_id or 0
    finally:
        over.set()
        thread.join()


def refuse(thread: int, length: int = 0, why: str = "Operation not permitted") -> None:
    raise OSError(1, why)


def test_only_threads_started_since_are_prioritised(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    monkeypatch.setattr(priority, "_realtime", given.append)
    with sleeping_thread():
        new = NewThreads()
        with sleeping_thread() as later:
            setting = new.prioritise("auto")

    assert given == [later]
    assert setting == {"value": "realtime", "source": "shipped", "threads": 1}


def test_auto_takes_the_slice_where_real_time_is_not_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(priority, "_realtime", refuse)
    monkeypatch.setattr(priority, "_slice", lambda thread, length: given.append((thread, length)) or "")
    new = NewThreads()
    with sleeping_thread() as thread:
        setting = new.prioritise("auto")

    assert given == [(thread, 100_000)]
    assert setting == {"value": "slice", "source": "shipped", "threads": 1}


def test_auto_leaves_all_alone_where_nothing_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "_realtime", refuse)
    monkeypatch.setattr(priority, "_slice", lambda *who: refuse(*who, "needs Linux 6.12, this is 5.14"))
    new = NewThreads()
    with sleeping_thread():
        setting = new.prioritise("auto")

    assert setting == {"value": "off", "source": "not permitted (needs Linux 6.12, this is 5.14)", "threads": 1}


def test_what_was_asked_for_and_is_not_permitted_is_an_error(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(priority, "_realtime", refuse)
    new = NewThreads()
    with (
        sleeping_thread(),
        golden.raises(BackendError),
    ):
        new.prioritise("realtime")


def test_a_thread_that_polls_is_never_given_real_time(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    given: list[int] = []
    monkeypatch.setattr(priority, "_realtime", lambda thread: given.append(thread) or "")
    monkeypatch.setattr(priority, "_slice", lambda thread, length: "")
    new = NewThreads()
    with sleeping_thread():
        assert new.prioritise("auto", polling=True)["value"] == "slice"
        with golden.raises(BackendError, match="0 would"):
            new.prioritise("realtime", polling=True)

    assert given == []


def test_one_thread_that_may_not_leaves_none_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[int] = []
    answers = iter([lambda thread: None, refuse])
    monkeypatch.setattr(priority, "_realtime", lambda thread: next(answers)(thread))
    monkeypatch.setattr(priority, "_slice", refuse)
    monkeypatch.setattr(os, "sched_setscheduler", lambda thread, policy, priority: changed.append(thread))
    new = NewThreads()
    with sleeping_thread() as one, sleeping_thread() as two:
        setting = new.prioritise("auto")

    assert setting["value"] == "off"
    assert changed == [min(one, two)]


def test_off_changes_nothing() -> None:
    new = NewThreads()
    with sleeping_thread() as thread:
        setting = new.prioritise("off")
        policy = os.sched_getscheduler(thread)

    assert (policy, setting) == (os.SCHED_OTHER, {"value": "off", "source": "asked", "threads": 1})


def test_what_the_system_says_of_a_prioritised_thread() -> None:
    """For real: whatever this system permits, the thread has it afterwards, and the training thread has not."""
    new = NewThreads()
    with sleeping_thread() as thread:
        setting = new.prioritise("auto")
        policy = os.sched_getscheduler(thread)

    assert policy == (os.SCHED_RR if setting["value"] == "realtime" else os.SCHED_OTHER)
    assert setting["value"] in ("realtime", "slice", "off")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
