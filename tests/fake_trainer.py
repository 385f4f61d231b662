"""A stand-in for `python -m horovod_study.train` that trains nothing: `--config CELL.yaml --out DIR`, and a behaviour.

With `--resume DIR` it goes on with the run in DIR, after step 5.

FAKE_TRAINER holds JSON: for each cell ("runtime/workers/repeat", or "*") what happens to it. Every start is appended to
DIR/../starts.txt.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from horovod_study import records
from horovod_study.cluster import alive
from horovod_study.recording.rank import turns

if TYPE_CHECKING:  # what launches this program is not imported by it: it is started hundreds of times
    from horovod_study.cluster.launch import LaunchLine, Site
    from horovod_study.config.run import Cell

WAIT_S = 60.0  # far beyond any test: whoever waits here is meant to be ended


def fake_launch(behaviour: dict[str, str]):
    """Return a launch function for run_sweep whose cells behave as told."""
    from horovod_study.cluster.launch import LaunchLine, cell_environment

    def launch(
        cell: "Cell", config: Path, out: Path, *, resume: bool = False, site: "Site | None" = None
    ) -> "LaunchLine":
        name = f"{cell.runtime}/{cell.placement.workers}/{cell.config.repeat}"
        told = behaviour.get(name, behaviour.get("*", "done"))
        environ = {**os.environ, "FAKE_TRAINER": told, "FAKE_WORKERS": str(cell.placement.workers)}
        argv = (sys.executable, __file__, "--config", str(config), "--resume" if resume else "--out", str(out))
        if told == "no launcher":
            argv = ("/nonexistent/launcher",)
        return LaunchLine(argv=argv, environment=cell_environment(environ, path=os.environ["PATH"], out=out))

    return launch


def _record(config: dict, out: Path) -> records.RunRecord:
    workers = int(os.environ["FAKE_WORKERS"])
    effective = {"backend": config["backend"], "workers": workers}
    if os.environ["FAKE_TRAINER"] == "tells its ranks":
        effective["ranks"] = [{"host": os.uname().nodename}] * workers
    return records.RunRecord(
        study=config["study"],
        key=out.name,
        repeat=config["repeat"],
        partition=config["partition"],
        status="running",
        started="2026-01-01T00:00:00+00:00",
        host=os.uname().nodename,
        pid=os.getpid(),
        process=alive.identity(),
        requested={**config, "workers": workers},
        effective=effective,
        environment={},
    )


def _train_in_turns(told: str, wanted: int) -> tuple[str, int]:
    """Make steps of 2 ms, slow ones of 3, in the turns that are given, until whoever gives turns says so.

    Return what that said, and the steps; at least `wanted` ones are to be made.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it ends when nobody gives turns any more
    mine = turns.connect(rank=0, workers=1)
    made, trained_s = 0, 0.0
    while mine is not None:
        if made >= mine.until:
            report = {"steps": made, "samples": made, "trained_s": trained_s, "warm": made > 2}
            said = mine.wait(**report, enough=made >= wanted, least=wanted)
            if said != "go":
                return said, made
        if "fails" in told and made > 30:
            raise ValueError("the loss is not a number")
        began = time.perf_counter()
        time.sleep(0.003 if "slow" in told else 0.002)
        trained_s += time.perf_counter() - began
        made += 1
    return "alone", made


def main() -> int:
    config = yaml.safe_load(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    resumed = "--resume" in sys.argv
    out = Path(sys.argv[sys.argv.index("--resume" if resumed else "--out") + 1])
    told = os.environ["FAKE_TRAINER"]
    with (out.parent / "starts.txt").open("a") as stream:
        stream.write(out.name + (" resumed" if resumed else "") + "\n")
    if told == "user error":
        print("starting\nerror: batch 75 is larger than the shard of 10 curves; use a smaller --batch", file=sys.stderr)
        return 2
    if told.startswith("ended while it starts"):  # by a signal that only the trainer gets
        os.kill(os.getpid(), getattr(signal, told.split()[-1]))
    if told == "hang before the record":
        time.sleep(WAIT_S)
    if resumed:
        record = records.resume_run(out, records.read_run(out), from_step=5, began="later")
        record = replace(record, pid=os.getpid(), process=alive.identity())
    else:
        record = _record(config, out)
        records.create_run(out, record)
    if told.startswith("stopped"):
        if "checkpoint" in told:
            (out / "checkpoints").mkdir(exist_ok=True)
            (out / "checkpoints" / "step-000000005.pt").touch()
        records.finish_run(out, record, status="stopped", finished="now", totals={}, reason="stopped by SIGUSR1")
        return 75
    if told == "stops when asked":
        (out / "checkpoints").mkdir(exist_ok=True)
        (out / "checkpoints" / "step-000000005.pt").touch()

        def stop(number, frame):
            records.finish_run(out, record, status="stopped", finished="now", totals={}, reason="stopped by SIGUSR1")
            os._exit(75)

        signal.signal(signal.SIGUSR1, stop)
        (out / "ready").touch()
        time.sleep(WAIT_S)
    if told.startswith("ended after its start"):
        os.kill(os.getpid(), getattr(signal, told.split()[-1]))
    if told == "traceback":
        raise ValueError("the loss is not a number")
    if told == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if told == "own reason":
        records.finish_run(out, record, status="failed", finished="now", totals={}, reason="device lost\nin step 7")
        return 1
    if told == "grandchild":  # in a session of its own, deaf to SIGTERM, as a launcher's worker can be
        code = (
            "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            f"open({str(out / 'new')!r}, 'w').write(str(os.getpid())); "
            f"os.rename({str(out / 'new')!r}, {str(out / 'grandchild.pid')!r}); time.sleep({WAIT_S})"
        )
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        time.sleep(WAIT_S)
    said, made = _train_in_turns(told, config["steps"] or 200) if told.startswith("turns") else ("", None)
    if said == "lost":
        records.finish_run(out, record, status="stopped", finished="now", totals={}, reason="nobody gives turns")
        return 75
    if told == "hang":
        time.sleep(WAIT_S)
    totals = {"samples_per_s": 1000.0 * int(os.environ["FAKE_WORKERS"]), **({} if made is None else {"steps": made})}
    records.finish_run(out, record, status="done", finished="now", totals=totals)
    if told == "hang after the end":
        time.sleep(WAIT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
