"""Steps of a training from the events that its ranks have noted.

a step      one turn of the loop over the DataLoader in which parameters were updated, however many updates it made;
            several turns where an update comes after several (accumulated gradients); where no loader is looped
            over, from one update to the next; where no update is seen, from one backward to the next. Loops that
            a script tells of are taken as they are told, and what is outside too
laps        data: the wait for the loader; forward: the model's call with gradients; backward; sync: waits for other
            ranks; update; residual: what is in none of them
outside     what is between steps, and what some steps have and most have not: loops over other data, calls of the
            model without gradients, checkpoints, waits for what one rank does alone. Evaluations, rollouts and
            generation are there
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from horovod_study.recording.rank.events import CALLS, DATA_SETS, LAPS, NUMBER, PLACES

LABELS = (*LAPS, "residual", "outside")
AVERAGING = (
    *("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "all_gather_into_tensor"),
    *("all_to_all", "all_to_all_single", "synchronize", "send", "isend", "recv", "irecv", "batch_isend_irecv"),
)
"""Calls by which a script can average what its ranks have computed."""
_FOR_ONE = ("barrier", "monitored_barrier", "broadcast", "scatter", "gather", "all_gather_object")
"""Calls that wait for what one rank does, or has to tell, and average nothing."""
UNKNOWN_SIZE = 2**40
"""Stands for the bytes of a call that does not tell them."""
_EVALUATION = -4
_SAVED, _WAITED, _EVAL = -5, -6, -7
MOST_TURNS = 100
"""After so many turns of told loops without any update each turn is a step."""
_TURN = np.dtype(
    [*((name, int) for name in ("begin", "end", "samples", "loop", "step")), ("trains", bool), ("updates", bool)]
)
Turns = Any
"""Turns in their order, an np.recarray of _TURN: events `begin` to `end`, samples, loop and step that it is of, and
whether it trains and updates."""


@dataclass(kw_only=True)
class Events:
    """The events of one training in one process, in order; times in s on the clock of its host."""

    host_s: np.ndarray
    at_s: np.ndarray  # as host_s, or those of the device
    kind: np.ndarray
    number: np.ndarray
    _places: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, width: int) -> "Events":
        """Read the file of a process; what a killed one has written in part is left out."""
        values = np.fromfile(path, np.float64)
        table = values[: len(values) // width * width].reshape(-1, width)
        table = table[table[:, -1] != 0]  # zeros are behind the last event of a process that goes on, or was killed
        what = table[:, -1].astype(np.int64)
        host_s = table[:, 0]
        at_s = host_s if width == 2 else table[:, 1]
        return cls(host_s=host_s, at_s=at_s, kind=what % PLACES, number=what // PLACES)

    def of(self, *names: str) -> np.ndarray:
        """Return whether each event is of one of these kinds."""
        return np.isin(self.kind, [NUMBER[name] for name in names])

    def places(self, *names: str) -> np.ndarray:
        """Return the places of the events of these kinds."""
        if names not in self._places:
            self._places[names] = np.flatnonzero(self.of(*names))
        return self._places[names]

    def inside(self, begin: str, *ends: str) -> np.ndarray:
        """Return whether each event, and what follows it, is between a begin and its end."""
        return np.cumsum(self.of(begin).astype(int) - self.of(*ends)) > 0


@dataclass(kw_only=True)
class NotedSteps:
    """The steps of one rank: columns as those of its rows, of shape (steps,); `begin_s` is on the host's clock."""

    columns: dict[str, np.ndarray]
    begins: np.ndarray  # events with which they begin
    epoch_steps: int | None = None
    turns: Counter[int] = field(default_factory=Counter)  # turns of the loop -> steps that took so many
    calls: dict[str, Any] | None = None
    averaged_bytes: int = 0  # the most that went through averaging calls of the script between two updates
    by: str = "updates"  # what ends a step: updates | changes | backwards | turns
    uncounted: bool = False  # whether samples were not seen
    data: int | None = None  # number of the data set that is looped over
    from_calls: bool = False  # samples are those with which the model was called
    after_s: float = 0.0  # from the last step to the end of what is evaluated behind it
    waits: list[int] = field(default_factory=list)  # steps before which it waited for its turn
    waited_s: float = 0.0

    def __len__(self) -> int:
        return len(self.columns["step_s"])


def steps_of(events: Events, *, batch: int | None = None, waits_seen: bool = False, told: bool = False) -> NotedSteps:
    """Return the steps that one rank has made, from when all of them is seen.

    `batch`: samples of each; None: counted. `waits_seen`: a step without a wait for other ranks had none. `told`: the
    script tells of its loops.
    """
    opened = events.places("opened")
    begin = int(opened[0]) if len(opened) else len(events.kind)
    by = next((name for name in ("updated", "changed", "backwarded") if events.of(name).any()), "updated")
    turns = _told_turns(events) if told else _turns(events, by)
    if turns is None:
        return _made(events, _between(events, by, begin), by, looped=False, batch=batch, waits_seen=waits_seen)
    if told:
        batch, begin, by = None, -1, "updated" if turns.updates.any() else "turns"
    if by == "turns":
        turns = turns[: len(turns) if len(turns) > MOST_TURNS else 0]
        turns.updates = True
    own = _grouped(turns[turns.begin > begin])
    found = _made(events, own, by, looped=True, batch=batch, waits_seen=waits_seen, told=told)
    return replace(found, epoch_steps=_epoch_steps(events, _grouped(turns)))


# ---------------------------------------------------------------------------------------------------- what a step is


def _table(begin: Any, end: Any, **columns: Any) -> Turns:
    """Return turns with these begins and ends, which train and update unless `columns` say otherwise."""
    found = np.zeros(len(begin), _TURN).view(np.recarray)
    for name, values in {"begin": begin, "end": end, "trains": True, "updates": True, **columns}.items():
        found[name] = values
    return found


def _turns(events: Events, by: str) -> Turns | None:
    """Return the turns of the loop over a loader, those without an update too; None where there is no such loop."""
    fetches, updated = events.places("fetch"), events.places(by)
    loops = events.number[fetches]
    ends = {int(fetches[place]) for place in np.searchsorted(fetches, events.places("ended")) - 1 if place >= 0}
    found = {int(loop): fetches[loops == loop] for loop in dict.fromkeys(loops.tolist())}
    single = {loop for loop, own in found.items() if len(own) == 1 and int(own[0]) not in ends}
    first_of: dict[int, int] = {}
    for loop in [each for each in found if each in single]:  # as `next(iter(loader))` fetches: one for each data set
        known = first_of.setdefault(loop % DATA_SETS, loop)
        if known != loop:
            found[known] = np.concatenate([found[known], found.pop(loop)])
    scores = {loop: int((np.diff(np.searchsorted(updated, own)) > 0).sum()) for loop, own in found.items()}
    of_data: Counter[int] = Counter()
    for loop, score in scores.items():
        of_data[loop % DATA_SETS] += score
    chosen: list[int] = []
    for loop in sorted(found, key=lambda each: (-of_data[each % DATA_SETS], int(found[each][0]))):
        own = found[loop]
        # so many updates for a batch that was fetched by itself: it is one that is used again and again, and no loop
        once = len(own) > 1 and loop in single and int((updated > own[0]).sum()) > 20 * len(own)
        if scores[loop] and not once and all(own[-1] < found[each][0] or own[0] > found[each][-1] for each in chosen):
            chosen.append(loop)
    chosen.sort(key=lambda each: int(found[each][0]))
    parts = [_table([], [])]
    inside = 0
    for place, loop in enumerate(chosen):
        limit = int(found[chosen[place + 1]][0]) if place + 1 < len(chosen) else len(events.kind)
        inside += int(np.searchsorted(updated, found[loop][-1]) - np.searchsorted(updated, found[loop][0]))
        parts.append(_of_loop(events, found[loop], updated, limit, ended=int(found[loop][-1]) in ends, loop=place))
    turns = np.concatenate(parts).view(np.recarray)
    first = found[chosen[0]][0] if chosen else 0
    outside = int((updated > first).sum()) - inside
    behind = _table([], [])
    if chosen and int(found[chosen[-1]][-1]) in ends:  # trained on its batches again, as `itertools.cycle` gives them
        behind = _between(events, by, int(turns.end[-1]))
        behind = behind[: len(behind) if len(behind) > 1 else 0]
        batches, nth = turns.samples[turns.loop == turns.loop[-1]], np.arange(len(behind))
        behind.samples = batches[nth % len(batches)]
        behind.loop = turns.loop[-1] + 1 + nth // len(batches)
    if not inside or outside - len(behind) > inside + 1:
        return None
    return np.concatenate([turns, behind]).view(np.recarray)


def _told_turns(events: Events) -> Turns:
    """Return the turns of the loops that a script has told of; those of a loop end where it asks for the next batch."""
    updated = events.of("updated") | (events.of("lap") & (events.number == LAPS.index("update")))
    starts, begin = events.places("start"), events.places("start", "fetch", "left")
    end = np.append(begin[1:], len(events.kind))[: len(begin)]
    batches = np.append(events.places("batch"), len(events.kind))
    batch = batches[np.searchsorted(batches, begin)]
    whole = (events.kind[begin] == NUMBER["fetch"]) & (batch < end)
    begin, end, batch = begin[whole], end[whole], batch[whole]
    made = np.append(0, np.cumsum(updated))
    return _table(
        begin - ((begin > 0) & (events.kind[begin - 1] == NUMBER["start"])),
        end,
        updates=made[end] > made[begin],
        samples=events.number[batch],
        loop=np.searchsorted(starts, begin),
    )


def _of_loop(events: Events, fetches: np.ndarray, updated: np.ndarray, limit: int, *, ended: bool, loop: int) -> Turns:
    """Return the turns of one loop; `limit`: the first event of the next one."""
    trained = events.places("updated", "changed", "backwarded")
    got = np.append(events.kind[1:], 0)[fetches] == NUMBER["batch"]
    samples = np.where(got, np.append(events.number[1:], 0)[fetches], 0)
    begins = fetches - (events.kind[np.maximum(fetches - 1, 0)] == NUMBER["start"])
    started = events.places("start")
    started = started[np.searchsorted(started, fetches[-1], side="right") :]
    bounds = np.append(begins, min([limit, *started[:1].tolist()]))
    trains, updates = (np.diff(np.searchsorted(each, bounds)) > 0 for each in (trained, updated))
    if trains[-1]:  # left, or with the batch that was fetched ahead still before it
        # It ends there, or when the loop was gone; one that was held until long after says nothing of its end.
        newest, at_s = int(trained[np.searchsorted(trained, bounds[-1]) - 1]), events.host_s
        gone = events.places("left")
        gone = gone[(gone > newest) & (gone < bounds[-1])][:1]
        bounds[-1] = newest
        if len(gone) and at_s[gone[0]] - at_s[newest] <= 3 * (at_s[newest] - at_s[bounds[-2]]):
            bounds[-1] = gone[0]
    found = _table(bounds[:-1], bounds[1:], trains=trains, updates=updates, samples=samples, loop=loop)
    if ended and (found.trains[0] or not found.trains[-1]):
        found = found[:-1]
    # Batches that are fetched ahead of their turns: each backward takes the next.
    made = np.searchsorted(events.places("backwarded"), [*found.begin, found.end[-1] + 1])
    batches = np.append(0, np.cumsum(samples[got]))
    if len(batches) - 2 <= made[-1] - made[0] <= len(batches) - 1:
        found.samples = np.diff(batches[made - made[0]])
    return found


def _grouped(turns: Turns) -> Turns:
    """Return the turns of steps, each up to an update; those after the last update of a loop are none."""
    ends = np.flatnonzero(turns.updates)
    turns.step = np.cumsum(turns.updates) - turns.updates
    turns = turns[turns.step < len(ends)]
    return turns[turns.loop == turns.loop[ends[turns.step]]] if len(turns) else turns


def _between(events: Events, by: str, begin: int) -> Turns:
    """Return what is from one update to the next, from the event `begin` on: each is a step.

    Of optimizers that step in turns those of the first count; in a phase of another one its own.
    """
    ends = events.places(by)
    which = events.number[ends]
    ends = ends[(ends > begin) & ((which == 0) | (which == np.append([-1], which[:-1])))]
    bounds = np.concatenate([[begin], ends])
    waits = np.append(events.kind[1:], 0)[bounds] == NUMBER["pause"]
    begins = np.where(waits, bounds + 2, bounds)  # it begins when its turn has come
    return _table(begins[:-1], ends, step=np.arange(len(ends)))


# ---------------------------------------------------------------------------------------------------- laps


def _labels(events: Events) -> np.ndarray:
    """Return which of LABELS the time after each event belongs to."""
    label = np.full(len(events.kind), LABELS.index("residual"))
    label[events.inside("fetch", "batch", "ended")] = LABELS.index("data")
    starts = events.places("start")
    starts = starts[starts + 1 < len(events.kind)]
    label[starts[events.kind[starts + 1] == NUMBER["fetch"]]] = LABELS.index("data")
    follows = np.append(events.kind[1:], 0)
    label[events.of("forwarded", "lap") & (follows == NUMBER["backward"])] = LABELS.index("backward")  # the loss
    label[events.inside("update", "updated")] = LABELS.index("update")
    begins = events.places("forward")
    inside = events.inside("forward", "forwarded")
    if len(begins):
        last = np.searchsorted(begins, np.arange(len(events.kind)), side="right") - 1
        inside &= (events.number[begins] % 2 == 1)[np.maximum(last, 0)]  # with gradients
    label[inside] = LABELS.index("forward")
    backward = events.inside("backward", "backwarded")
    label[backward] = LABELS.index("backward")
    label[events.of("gradient") & (follows == NUMBER["backwarded"])] = LABELS.index("sync")
    label[events.inside("sync", "synced")] = LABELS.index("sync")
    laps = events.places("lap")
    label[laps - 1] = events.number[laps]  # LABELS begins with LAPS
    label[events.inside("pause", "resume") | events.inside("skip", "skipped")] = LABELS.index("outside")
    return label


def _asides(
    events: Events, turns: Turns, begins: np.ndarray, stops: np.ndarray, *, looped: bool
) -> dict[int, tuple[int, int]]:
    """Return {step: (begin, end)} of what is in a step and not of it: what is in few steps, and does not train."""
    hidden = events.inside("backward", "backwarded") | events.inside("update", "updated")
    without = events.of("forward") & (events.number % 2 == 0) & ~hidden
    own = {*turns.begin.tolist(), *(turns.begin + 1).tolist()} if looped else set()
    sort = np.full(len(events.kind), -1)
    sort[without] = events.number[without] % 4 + _EVALUATION  # 2 more in train mode
    sort[events.of("save")] = _SAVED
    sort[events.of("eval")] = _EVAL
    alone = [CALLS.index(name) for name in _FOR_ONE]
    waits = events.of("sync", "called") & np.isin(events.number % PLACES, alone)
    sort[waits & ~(hidden | events.inside("forward", "forwarded"))] = _WAITED
    for place in events.places("start", "fetch"):
        if int(place) not in own:
            sort[place] = events.number[place] % DATA_SETS
    places = np.flatnonzero(sort != -1)
    step = np.searchsorted(begins, places, side="right") - 1
    within = (step >= 0) & (places < stops[step]) if len(begins) else places < 0
    places, step = places[within], step[within]
    often = {  # what is in half of the steps is a part of a step, but for calls of what is trained in eval mode
        kind
        for kind in set(sort[places].tolist()) - {_EVALUATION}
        if len(set(step[sort[places] == kind])) >= 0.5 * len(begins)
    }
    rare = ~np.isin(sort[places], list(often))
    places, step = places[rare], step[rare]
    trained = events.places("updated", "changed", "backwarded")
    trains = np.flatnonzero(events.of("backward") | (events.of("forward") & (events.number % 2 == 1)))
    found: dict[int, tuple[int, int]] = {}
    for number in dict.fromkeys(step.tolist()):
        inside = places[step == number]
        begin, first = int(begins[number]), int(inside[0])
        end = int(turns.end[np.searchsorted(turns.end, first, side="right")])
        over = min([end, *trains[np.searchsorted(trains, inside[-1]) :][:1].tolist()])
        before = trained[(trained > begin) & (trained < first)]
        if looped and len(before):  # after what was trained: the rest of the turn is none of it
            found[number] = (int(before[-1]), end)
        else:
            found[number] = (first if looped else begin, over)
    return found


def _made(
    events: Events, turns: Turns, by: str, *, looped: bool, batch: int | None, waits_seen: bool, told: bool = False
) -> NotedSteps:
    label = _labels(events)
    firsts = np.flatnonzero(np.diff(turns.step, prepend=-1))  # turns with which steps begin
    begins, ends = turns.begin[firsts], turns.end[np.append(firsts[1:], len(turns))[: len(firsts)] - 1]
    for first, last in () if told else _asides(events, turns, begins, ends, looped=looped).values():
        label[first:last] = LABELS.index("outside")
    samples, uncounted, from_calls = _samples(events, turns, begins, ends, looped=looped, batch=batch)
    ends = np.minimum(ends, len(events.kind) - 1)
    waits = events.places("pause")
    lap_s, host_s = (np.append(np.diff(each), 0.0) for each in (events.at_s, events.host_s))
    columns: dict[str, np.ndarray] = {}
    seen = {"data": "fetch", "forward": "forward", "backward": "backward", "update": "update", "residual": "opened"}
    known = {lap for lap, kind in seen.items() if events.of(kind).any()}  # of others nobody knows how long they took
    known |= {LAPS[number] for number in set(events.number[events.places("lap")].tolist())}
    known |= {"sync"} if waits_seen or events.of("sync", "gradient").any() else set()
    for name in (*LAPS, "residual"):
        own = label == LABELS.index(name)
        seconds = _sums(np.where(own, lap_s, 0.0), begins, ends)
        if name in known and (name != "data" or looped or seconds.any()):
            columns[f"{name}_s"] = seconds
        if name == "sync" and name in known and events.at_s is not events.host_s:
            columns["sync_host_s"] = _sums(np.where(own, host_s, 0.0), begins, ends)
    inside = label != LABELS.index("outside")
    columns["step_s"] = _sums(np.where(inside, lap_s, 0.0), begins, ends)
    places = np.append(np.flatnonzero(inside), len(events.kind))
    begun = places[np.searchsorted(places, begins)]  # a step begins at the first event of it that is not outside
    columns["begin_s"] = np.array(events.at_s[np.where(begun < ends, begun, begins)])
    columns |= {"epoch": np.unique(turns.loop[firsts], return_inverse=True)[1], "samples": samples}
    first = int(begins[0]) if len(begins) and looped else -1
    evaluated = events.places("forwarded", "batch", "skipped", "saved", "synced")
    after = len(ends) and len(evaluated) and evaluated[-1] > ends[-1]
    found = NotedSteps(
        columns=columns,
        begins=begins,
        by={"updated": "updates", "changed": "changes", "turns": "turns"}.get(by, "backwards"),
        turns=Counter(np.diff(firsts, append=len(turns)).tolist()),
        uncounted=uncounted,
        from_calls=from_calls,
        data=int(events.number[first + int(events.kind[first] == NUMBER["start"])] % DATA_SETS) if first >= 0 else None,
        after_s=float(events.at_s[evaluated[-1]] - events.at_s[ends[-1]]) if after else 0.0,
        waits=[int(place) for place in np.searchsorted(ends, waits + 2, side="right")],  # a fetch may follow it
        waited_s=float(_sums(np.where(events.inside("pause", "resume"), host_s, 0.0), [0], [len(host_s) - 1])[0]),
    )
    found.calls, found.averaged_bytes = _calls(events, begins, ends)
    return found


def _sums(seconds: np.ndarray, begins: Any, ends: Any) -> np.ndarray:
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    found: np.ndarray = total[ends] - total[begins]
    return found


def _samples(
    events: Events, turns: Turns, begins: np.ndarray, ends: np.ndarray, *, looped: bool, batch: int | None
) -> tuple[np.ndarray, bool, bool]:
    """Return the samples of each step, whether nobody knows them, and whether they are those of the model's calls."""
    if batch is not None:
        return np.full(len(begins), batch), False, False
    found = np.bincount(turns.step, turns.samples, len(begins)).astype(int)
    from_calls = not looped or not found.any()
    if from_calls:
        calls = events.places("forward")
        calls = calls[events.number[calls] % 4 == 3]
        counts = events.number[calls] // 4
        # an optimizer that looks at one batch several times calls the model in its step, as LBFGS does
        closures, updates = events.inside("update", "updated")[calls], np.searchsorted(events.places("update"), calls)
        again = closures & np.append(False, closures)[:-1] & (np.diff(updates, prepend=-1) == 0)
        own = np.zeros(len(events.kind) + 1)
        own[calls] = np.where(again, 0, counts)
        found = _sums(own, begins, ends).round().astype(int)
        # copies that are made again for each task are not seen to be called: they take the batch of the others
        unseen = np.isin(ends, np.flatnonzero(events.of("updated") & (events.number == 0))) & (found == 0)
        found[unseen] = np.median(found[found > 0]) if found.any() else 0
    if not found.any():
        return np.ones(len(begins), dtype=int), True, False
    return found, False, from_calls


def _epoch_steps(events: Events, turns: Turns) -> int | None:
    """Return the steps of a whole epoch: the most of a loop that came to its end."""
    steps = turns[np.flatnonzero(np.diff(turns.step, append=-1))]  # the turn that ends each
    lasts = np.flatnonzero(np.diff(steps.loop, append=-1))
    ended, ends = np.append(events.places("ended"), np.inf), steps.end[lasts]
    whole = ended[np.searchsorted(ended, ends)] - ends <= 2
    return int(np.diff(lasts, prepend=-1).max(initial=0, where=whole)) or None


def _calls(events: Events, begins: np.ndarray, ends: np.ndarray) -> tuple[dict[str, Any] | None, int]:
    """Return the script's own averaging calls in a step, by number and size, and the most bytes between two updates."""
    places = events.places("sync", "called")
    places = places[np.isin(events.number[places] % PLACES, [CALLS.index(name) for name in AVERAGING])]
    pairs = (("backward", "backwarded"), ("update", "updated"), ("forward", "forwarded"))
    hidden = np.any([events.inside(*each) for each in pairs], axis=0)
    size = events.number[places] // PLACES
    size = np.where(events.number[places] % PLACES == CALLS.index("synchronize"), UNKNOWN_SIZE, size)
    between = np.searchsorted(events.places("updated", "changed", "backwarded"), places)
    averaged = int(np.bincount(between, weights=size).max(initial=0))
    step = np.searchsorted(ends, places)
    within = (step < len(ends)) & ~hidden[places]
    within &= places >= begins[np.minimum(step, len(begins) - 1)] if len(begins) else within
    places = places[within]
    if not len(places) or not len(ends):
        return None, averaged
    size = events.number[places] // PLACES
    counted = Counter(CALLS[number % PLACES] for number in events.number[places])
    return {
        "per_step": round(len(places) / len(ends), 3),
        "bytes_median": float(np.median(size)),
        "bytes_max": int(size.max()),
        "names": {name: round(count / len(ends), 3) for name, count in counted.items()},
    }, averaged


def losses_of(path: Path, events: Events, steps: NotedSteps) -> np.ma.MaskedArray[Any, Any]:
    """Return the loss of each step, masked where none was told: float64 pairs in a file, of a moment and the loss."""
    told = np.fromfile(path, np.float64).reshape(-1, 2)
    found: np.ma.MaskedArray[Any, Any] = np.ma.array(np.zeros(len(steps)), mask=True)
    step = np.searchsorted(steps.begins, np.searchsorted(events.host_s, told[:, 0]), side="right") - 1
    found[step[step >= 0]] = told[step >= 0, 1]
    return found


def stacks_of(path: Path, names: Sequence[str], events: Events, steps: NotedSteps, first: int) -> list[dict[str, Any]]:
    """Return where the time of the steps from `first` on was, by samples of the stack: shares of 2 % or more."""
    if not path.is_file() or first >= len(steps):
        return []
    samples = np.fromfile(path, np.float64)
    samples = samples[: len(samples) // 2 * 2].reshape(-1, 2)
    begin, length = steps.columns["begin_s"], steps.columns["step_s"]
    samples = samples[(samples[:, 0] >= begin[first]) & (samples[:, 0] <= begin[-1] + length[-1])]
    if not len(samples):
        return []
    label = _labels(events)[np.maximum(np.searchsorted(events.host_s, samples[:, 0]) - 1, 0)]
    step = np.maximum(np.searchsorted(begin, samples[:, 0], side="right") - 1, 0)
    label[samples[:, 0] > begin[step] + length[step]] = LABELS.index("outside")
    places = zip(label.tolist(), samples[:, 1].astype(int).tolist(), strict=True)
    named = Counter((at, names[each] if each < len(names) else "?") for at, each in places if each >= 0)
    return [
        {"where": LABELS[where], "share": round(count / len(samples), 4), "name": name}
        for (where, name), count in named.most_common(8)
        if count >= 0.02 * len(samples)
    ]
