"""What benchmarks/gpu.py found, as numbers, as verdicts and as a table; reads and computes, measures nothing.

Medians over rounds, with the smallest and the largest; ratios are taken within a round, between neighbours in time.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PLAIN = "plain loop"
FP32 = ("no graphs", "graphs", "fused", "compile", "compile + graphs")
"""Ways that compute in float32 as the exact plain loop does: their losses must be the same."""

LOSSES_TOLERANCE = 1e-4
EPOCH_TARGETS_S = {75: (1.0, 0.45), 1024: (0.25, 0.15)}
"""Batch size -> what an epoch of 750,000 curves may take, and what is aimed at."""
RATIO_TARGETS = {75: 10.0, 1024: 4.0}
TIMERS_TARGET_PERCENT = 1.0
EXCHANGE_TARGET_S = 60e-6
NOT_MEASURED = "not measured"

Said = Sequence[Mapping[str, Any]]


# ------------------------------------------------------------------------------------------------ numbers


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return median, smallest and largest; None without values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def steps(said: Said) -> dict[str, Any]:
    """Return the step of every way at every batch size, from what gpu_steps.py said of what "steps"."""
    batches = {}
    for batch in dict.fromkeys(line["batch"] for line in said if "batch" in line):
        mine = [line for line in said if line.get("batch") == batch]
        order = next(line for line in mine if line["says"] == "order")
        names = list(dict.fromkeys(line["way"] for line in mine if "way" in line))
        blocks = [line for line in mine if line["says"] == "block"]
        step_s = {
            name: {line["round"]: line["seconds"] / line["steps"] for line in blocks if line["way"] == name}
            for name in names
        }
        rows = []
        for name in names:
            last = {line["says"]: line for line in mine if line.get("way") == name}
            seconds = list(step_s[name].values())
            ratios = [step_s[PLAIN][key] / value for key, value in step_s[name].items() if key in step_s.get(PLAIN, {})]
            losses = last.get("losses", {}).get("losses")
            rows.append(
                {
                    "way": name,
                    "rounds": len(seconds),
                    "step_s": spread(seconds),
                    "epoch_s": spread([value * order["steps_per_epoch"] for value in seconds]),
                    "times_plain": spread(ratios),
                    "losses": None if losses is None else _compared(losses, order["losses"]),
                    "opened_s": last.get("losses", {}).get("opened_s"),
                    "launches": last.get("launches", {}).get("launches"),
                    "why": next((last[word]["why"] for word in ("failed", "left out") if word in last), None),
                }
            )
        batches[str(batch)] = {"steps_per_epoch": order["steps_per_epoch"], "ways": rows}
    return {"batches": batches, "notes": _notes(said)}


def _compared(losses: Sequence[float | None], truth: Sequence[float | None]) -> dict[str, Any]:
    """Return how far losses are from those of the exact plain loop: |a - b| / |b|, the largest of all steps."""
    apart = [
        abs(a - b) / max(abs(b), 1e-30) if a is not None and b is not None else math.inf
        for a, b in zip(losses, truth, strict=True)
    ]
    worst = max(apart)
    return {
        "steps": len(apart),
        "largest_difference": None if math.isinf(worst) else worst,
        "at_step": apart.index(worst),
        "first": losses[0],
        "last": losses[-1],
    }


def _notes(said: Said) -> list[str]:
    """Return what stopped the measurement early, if anything did."""
    words = []
    for line in said:
        if line["says"] == "ended early":
            words.append(f"ended after {line['rounds']} rounds: the section's time was over")
        elif line["says"] == "cut off":
            words.append(f"cut off: {line['why']}")
    return list(dict.fromkeys(words))


def epochs(said: Said) -> dict[str, Any]:
    """Return the whole epochs of every way, from what gpu_steps.py said of what "epochs"."""
    batches = {}
    for batch in dict.fromkeys(line["batch"] for line in said if "batch" in line):
        mine = [line for line in said if line.get("batch") == batch]
        by_way: dict[str, dict[int, Mapping[str, Any]]] = {}
        for line in mine:
            by_way.setdefault(line["way"], {})
            if line["says"] == "epochs":
                by_way[line["way"]][line["round"]] = line
        plain = {number: statistics.median(line["epoch_s"]) for number, line in by_way.get(PLAIN, {}).items()}
        rows = []
        for name, rounds in by_way.items():
            middle = {number: statistics.median(line["epoch_s"]) for number, line in rounds.items()}
            last = {line["says"]: line for line in mine if line.get("way") == name}
            kept = ("window_s", "steps", "samples_per_s", "step_ms_median", "step_ms_p90", "laps_ms", "test_mse")
            rows.append(
                {
                    "way": name,
                    "rounds": len(rounds),
                    "epochs": sum(len(line["epoch_s"]) for line in rounds.values()),
                    "epoch_s": spread([value for line in rounds.values() for value in line["epoch_s"]]),
                    "times_plain": spread([plain[number] / middle[number] for number in middle if number in plain]),
                    "runs": [{each: line.get(each) for each in kept} for line in rounds.values() if "steps" in line],
                    "why": last["failed"]["why"] if "failed" in last else None,
                }
            )
        batches[str(batch)] = {"ways": rows}
    return {"batches": batches, "notes": _notes(said)}


def tests(said: Said) -> dict[str, Any]:
    """Return what came of the tests, from what gpu_tests.py said; what was said of a test last counts.

    A test whose process ended before it did has failed.
    """
    found = {line["name"]: line for line in said if line["says"] in ("test", "lost")}
    by = {
        outcome: [line for line in found.values() if line.get("outcome", "failed") == outcome]
        for outcome in ("passed", "failed", "skipped")
    }
    earlier = {line["name"] for line in said if line["says"] == "lost" or line.get("outcome") == "failed"}
    slowest = sorted((line for line in found.values() if "seconds" in line), key=lambda line: -line["seconds"])
    return {
        **{outcome: len(lines) for outcome, lines in by.items()},
        "skipped_because": sorted({line["why"] for line in by["skipped"]}),
        "failures": [{"test": line["name"], "why": line["why"]} for line in by["failed"]],
        "passed_alone": [line["name"] for line in by["passed"] if line["name"] in earlier],
        "slowest": [{"test": line["name"], "seconds": line["seconds"]} for line in slowest[:5]],
    }


def smoke(said: Said) -> dict[str, Any]:
    """Return the captured step of every way, from what gpu_smoke.py said; losses against the exact plain loop."""
    truth = {line["batch"]: line["losses"] for line in said if line["says"] == "order"}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for line in said:
        if line["says"] not in ("losses", "smoke", "nodes", "failed"):
            continue
        row = rows.setdefault((line["way"], line["batch"]), {"way": line["way"], "batch": line["batch"]})
        if line["says"] == "losses":
            row |= {"losses": _compared(line["losses"], truth[line["batch"]]), "opened_s": line["opened_s"]}
        elif line["says"] == "smoke":
            row |= {name: line[name] for name in ("step_s", "host_s", "light_s")}
        elif line["says"] == "nodes":
            row["nodes"] = line["nodes"]
        else:
            row["why"] = line["why"]
    adam = [
        {name: line[name] for name in ("parameters", "tensors", "seconds")} for line in said if line["says"] == "adam"
    ]
    return {"ways": list(rows.values()), "adam": adam, "notes": _notes(said)}


# ------------------------------------------------------------------------------------------------ verdicts


def targets(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every check and target, what was found, and the verdict: `met`, `missed` or `not measured`.

    Each is {"name", "kind": check or target, "section", "wanted", "found", "verdict"}, `found` a text or None. In a dry
    run none is judged.
    """
    by = {"correctness": _tests, "step": _losses, "epochs": _epochs, "timers": _timers, "exchange": _exchange}
    by["waits"] = _waits
    found = [{**each, "section": section} for section, judge in by.items() for each in judge(document)]
    if document["dry_run"]:
        return [{**each, "verdict": "dry run: not judged"} for each in found]
    return found


def _result(document: Mapping[str, Any], section: str) -> Any:
    """Return the result of a section, None if there is none."""
    return document["sections"].get(section, {}).get("result")


def _target(name: str, kind: str, wanted: str, found: str | None, met: bool | None) -> dict[str, Any]:
    verdict = NOT_MEASURED if met is None else "met" if met else "missed"
    return {"name": name, "kind": kind, "wanted": wanted, "found": found, "verdict": verdict}


def _tests(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    ran = _result(document, "correctness")
    text, met = None, None
    if ran is not None:
        text = f"{ran['passed']} passed, {ran['failed']} failed, {ran['skipped']} skipped"
        text += f"; {len(ran['passed_alone'])} of them alone only" if ran["passed_alone"] else ""
        met = not ran["failed"] and ran["passed"] > 0
    yield _target("tests for a GPU", "check", "none fails", text, met)


def _losses(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    compared = [
        (row["way"], batch, row["losses"])
        for section in ("step", "compile")
        for batch, each in ((_result(document, section) or {}).get("batches") or {}).items()
        for row in each["ways"]
        if row["way"] in FP32 and row["losses"] is not None
    ]
    text, met = None, None
    if compared:
        name, batch, worst = max(
            compared,
            key=lambda each: math.inf if each[2]["largest_difference"] is None else each[2]["largest_difference"],
        )
        value = worst["largest_difference"]
        met = value is not None and value <= LOSSES_TOLERANCE
        text = (
            f"{'not finite' if value is None else f'{value:.1e}'} at most ({name}, batch {batch}, step "
            f"{worst['at_step']} of {worst['steps']}; {len(compared)} comparisons)"
        )
    yield _target(
        "losses of all float32 ways as those of the plain loop", "check", f"to {LOSSES_TOLERANCE:g}", text, met
    )


def _epochs(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The fastest way of this package whose losses are not in doubt, by whole epochs, else by blocks of steps."""
    for batch, (wanted_s, aim_s) in EPOCH_TARGETS_S.items():
        wanted_ratio = RATIO_TARGETS[batch]
        seconds: tuple[str | None, bool | None] = (None, None)
        ratio: tuple[str | None, bool | None] = (None, None)
        for section, how in (("epochs", "whole epochs"), ("step", "blocks of steps")):
            each = ((_result(document, section) or {}).get("batches") or {}).get(str(batch))
            rows = [row for row in (each or {"ways": []})["ways"] if is_ours(row["way"]) and row["epoch_s"]]
            if not rows:
                continue
            best = min(rows, key=lambda row: row["epoch_s"]["median"])
            took = best["epoch_s"]
            seconds = (
                f"{took['median']:.3f} s ({took['min']:.3f} - {took['max']:.3f}; {best['way']}, {how})",
                took["median"] <= wanted_s,
            )
            if best["times_plain"]:
                times = best["times_plain"]
                ratio = (
                    f"{times['median']:.1f} ({times['min']:.1f} - {times['max']:.1f}; {best['way']}, {how})",
                    times["median"] >= wanted_ratio,
                )
            break
        wanted = f"<= {wanted_s:g} s, aim {aim_s:g} s"
        yield _target(f"epoch of 750,000 curves, batch {batch}", "target", wanted, *seconds)
        yield _target(f"times the plain loop beside it, batch {batch}", "target", f">= {wanted_ratio:g}", *ratio)


def is_ours(way: str) -> bool:
    """Whether a way is one of this package's."""
    return not way.startswith(PLAIN)


def _timers(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    cases = (_result(document, "timers") or {}).get("cases") or [None]
    for case in cases:
        text, met = None, None
        name = "timers, mode light against off"
        if case is not None:
            name += f", batch {case['batch']}"
            light = next(each for each in case["variants"] if each["way"] == "light")
            text = f"{light['percent']:.2f} %"
            if light["low"] is not None:
                text += f" [{light['low']:.2f}, {light['high']:.2f}]"
                met = light["high"] <= TIMERS_TARGET_PERCENT
                if not met and light["low"] <= TIMERS_TARGET_PERCENT:
                    text, met = f"{text}: not resolved", None
        yield _target(name, "target", f"<= {TIMERS_TARGET_PERCENT:g} %", text, met)


def _exchange(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for name, way in (("Horovod over NCCL", "horovod/nccl"), ("NCCL through torch", "ddp/nccl")):
        found = _result(document, "exchange")
        row = next((each for each in found["runs"] if each["way"] == way), None) if found else None
        text, met = None, None
        if row is not None and row["seconds"] is not None:
            text = f"{row['seconds'] * 1e6:.1f} us for {row['bytes']:,} bytes"
            met = row["seconds"] <= EXCHANGE_TARGET_S
        wanted = f"<= {EXCHANGE_TARGET_S * 1e6:g} us a step"
        yield _target(f"forced exchange of one rank, {name}", "target", wanted, text, met)


def _waits(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    found = _result(document, "waits")
    text, met = None, None
    if found:
        text = ", ".join(f"{run['steps']}: {run['places']}" for run in found["runs"])
        met = all(run["places"] == 0 for run in found["runs"])
    yield _target("places in the hot loop where the host waits for the GPU", "check", "none", text, met)


def exit_code(document: Mapping[str, Any]) -> int:
    """Return 0 if all is met that the sections of the latest run decide, else 1; in a dry run 1 if one failed."""
    ran = document["ran"]
    if any(document["sections"][name]["status"] == "failed" for name in ran):
        return 1
    if document["dry_run"]:
        return 0
    return int(any(each["verdict"] != "met" for each in document["targets"] if each["section"] in ran))


# ------------------------------------------------------------------------------------------------ the table


def markdown(document: Mapping[str, Any]) -> str:
    """Return everything for people to read."""
    blocks = [
        "# Training on a GPU",
        *_warnings(document),
        *_machines(document),
        _target_table(document),
        _smoke_table(document),
        _epoch_tables(document),
        _step_tables(document, "step", "The step"),
        _timer_table(document),
        _exchange_table(document),
        _worker_table(document),
        _scaling_table(document),
        _limit_lines(document),
        _energy_table(document),
        _wait_lines(document),
        _step_tables(document, "compile", "torch.compile"),
        _step_tables(document, "kernels", "Fused kernels with other blocks"),
        _failed_tests(document),
        _section_table(document),
        *_node_tables(document),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _warnings(document: Mapping[str, Any]) -> list[str]:
    found = []
    if document["dry_run"]:
        found.append(
            "**A dry run on a CPU with tiny sizes: it shows that the program runs. Its numbers are no result, and it "
            "promises nothing.**"
        )
    if len(document["machines"]) > 1:
        found.append(
            "**Not all sections were measured on the same machine by the same sources: the table of sections says "
            "which on which. Compare only those of one number.**"
        )
    if document["status"] != "finished":
        found.append("**Not finished: what follows is what had been measured when this was written.**")
    return found


def identity(machine: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what sections must share to be compared: host, GPU, driver, versions, and the project's revision."""
    torch = machine["pytorch"]
    own = [machine[name] for name in ("host", "cpu_model", "cores_usable", "python", "numpy", "horovod", "revision")]
    theirs = [torch.get(name) for name in ("gpu", "gpus", "torch", "cuda", "triton", "nccl")]
    return (*own, *theirs, machine["nvidia_smi"]["driver_version"])


def _machines(document: Mapping[str, Any]) -> list[str]:
    """Return a paragraph for each machine, or state of the sources, that sections were measured on."""
    one = len(document["machines"]) == 1
    return [f"{'' if one else f'{number}. '}{_machine(each)}" for number, each in document["machines"].items()]


def _machine(found: Mapping[str, Any]) -> str:
    torch, smi = found["pytorch"], found["nvidia_smi"]
    details = [
        *([f"{torch['gpu_memory_gb']} GB"] if torch.get("gpu_memory_gb") else []),
        *([f"driver {smi['driver_version']}"] if smi["driver_version"] else []),
        *([f"power limit {smi['power.limit']}"] if smi["power.limit"] else []),
        *([f"SM clock up to {smi['clocks.max.sm']}"] if smi["clocks.max.sm"] else []),
    ]
    versions = [f"Python {found['python']}", f"PyTorch {found['torch']}", f"CUDA {torch.get('cuda')}"]
    versions += [f"{name} {torch[key]}" for name, key in (("Triton", "triton"), ("NCCL", "nccl")) if torch.get(key)]
    if found["horovod"]:
        builds = f" (builds {', '.join(found['horovod_builds'])})" if found["horovod_builds"] else ""
        versions.append(f"Horovod {found['horovod']}{builds}")
    gpu = (torch.get("gpu") or "no GPU") + (f" ({', '.join(details)})" if details else "")
    return (
        f"Measured by `benchmarks/gpu.sh` (revision {found['revision']}): {gpu}; {found['cpu_model']}, "
        f"{found['cores_usable']} cores; {', '.join(versions)}. "
        f"Load of the machine before: {found['load_1min']:.1f}."
    )


def _target_table(document: Mapping[str, Any]) -> str:
    lines = ["| check or target | wanted | found | |", "|---|---|---|---|"]
    lines += [
        f"| {each['name']} | {each['wanted']} | {each['found'] or ''} | {each['verdict']} |"
        for each in document.get("targets", targets(document))
    ]
    return "\n".join(lines)


def _range(value: Mapping[str, float] | None, form: str, scale: float = 1.0) -> tuple[str, str]:
    """Return median and spread of a value as two cells, empty where it is not known."""
    if value is None:
        return "", ""
    low, middle, high = (format(value[name] * scale, form) for name in ("min", "median", "max"))
    return middle, f"{low} - {high}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _epoch_tables(document: Mapping[str, Any]) -> str:
    found = _result(document, "epochs")
    if not found:
        return ""
    blocks = [
        "## Whole epochs\n\nRuns of the trainer that record every step, and epochs of the plain loop, in turns. An "
        "epoch lasts from the end of the one before to its own. Ratios are taken within a round."
    ]
    for batch, each in found["batches"].items():
        lines = [
            f"### batch {batch}\n",
            "| way | s per epoch | spread | times the plain loop | spread | epochs | step ms p50 / p90 |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        for row in each["ways"]:
            if row["epoch_s"] is None:
                lines.append(_row([row["way"], f"failed: {row['why']}", "", "", "", "", ""]))
                continue
            times = [
                statistics.median(run[name] for run in row["runs"] if run[name] is not None)
                for name in ("step_ms_median", "step_ms_p90")
                if any(run[name] is not None for run in row["runs"])
            ]
            own = " / ".join(f"{value:.4f}" for value in times)
            cells = [*_range(row["epoch_s"], ".3f"), *_range(row["times_plain"], ".2f"), str(row["epochs"]), own]
            lines.append(_row([row["way"], *cells]))
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, *found["notes"]])


def _step_tables(document: Mapping[str, Any], section: str, title: str) -> str:
    found = _result(document, section)
    if not found:
        return ""
    blocks = [
        f"## {title}\n\nBlocks of steps in one process, all ways in turns in every round, timers off, from an idle GPU "
        "to an idle GPU. The plain loop is PyTorch as the textbook has it, with all data in the memory of the GPU, "
        "default Adam and PyTorch's default TF32 in convolutions. Losses: the largest relative difference to the plain "
        "loop in full float32, from the same weights and batches (input standardised, rate 1e-4)."
    ]
    for batch, each in found["batches"].items():
        lines = [
            f"### batch {batch} ({each['steps_per_epoch']:,} steps in an epoch)\n",
            "| way | us per step | spread | s per epoch | times the plain loop | spread | losses differ by | rounds "
            "| launches | ready after s |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        ]
        for row in each["ways"]:
            losses = row["losses"]
            apart = (
                ""
                if losses is None
                else "not finite"
                if losses["largest_difference"] is None
                else f"{losses['largest_difference']:.1e}"
            )
            ready = "" if row["opened_s"] is None else f"{row['opened_s']:.1f}"
            cells = [*_range(row["step_s"], ",.1f", 1e6), _range(row["epoch_s"], ".3f")[0]]
            cells += [*_range(row["times_plain"], ".2f"), apart, str(row["rounds"])]
            cells += ["" if row["launches"] is None else str(row["launches"]), ready]
            lines.append(_row([row["way"], *cells]))
        lines += [f"\n{row['way']}: {row['why']}" for row in each["ways"] if row["why"]]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, *found["notes"]])


def _timer_table(document: Mapping[str, Any]) -> str:
    found = _result(document, "timers")
    if not found:
        return ""
    lines = [
        "## What the timers cost\n",
        "| batch | mode | per cent of a step with mode off | 95 % interval | rounds |",
        "|--:|---|--:|--:|--:|",
    ]
    for case in found["cases"]:
        for each in (case["control"], *case["variants"]):
            interval = "" if each["low"] is None else f"{each['low']:.2f} - {each['high']:.2f}"
            name = "off again" if each["way"] == "control" else each["way"]
            lines.append(_row([str(case["batch"]), name, f"{each['percent']:.2f}", interval, str(case["rounds"])]))
    return "\n".join(lines)


def _exchange_table(document: Mapping[str, Any]) -> str:
    found = _result(document, "exchange")
    if not found:
        return ""
    lines = [
        "## A forced exchange of one rank\n\nOne worker averages nothing, and its training calls no library for it. "
        "This is what the library takes for a call with the gradients of this network, made by one rank.\n",
        "| through | bytes | us |",
        "|---|--:|--:|",
    ]
    for row in found["runs"]:
        cells = ["", f"failed: {row['why']}"] if row["why"] else [f"{row['bytes']:,}", f"{row['seconds'] * 1e6:,.1f}"]
        lines.append(_row([row["way"], *cells]))
    return "\n".join(lines)


def _smoke_table(document: Mapping[str, Any]) -> str:
    found = _result(document, "smoke")
    if not found:
        return ""
    lines = [
        "## Captured steps on random curves\n\nLosses are compared as below. Times of a step: of the device, with "
        "light timers, and of the host's calls alone. The nodes are in a table of each at the end.\n",
        "| way | batch | us | with timers | host | nodes | sum of nodes | losses differ by | ready after s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["ways"]:
        if "step_s" not in row:
            lines.append(_row([row["way"], str(row["batch"]), f"failed: {row.get('why', 'not ended')}", *[""] * 6]))
            continue
        nodes, losses = row.get("nodes") or [], row["losses"]["largest_difference"]
        cells = [f"{row[name] * 1e6:,.1f}" for name in ("step_s", "light_s", "host_s")]
        cells += [str(len(nodes) or ""), f"{sum(each['us'] for each in nodes):,.1f}" if nodes else ""]
        cells += ["not finite" if losses is None else f"{losses:.1e}", f"{row['opened_s']:.1f}"]
        lines.append(_row([row["way"], str(row["batch"]), *cells]))
    lines += ["", "| PyTorch's fused Adam, parameters | tensors | us |", "|---|--:|--:|"]
    lines += [
        _row([each["parameters"], str(each["tensors"]), f"{each['seconds'] * 1e6:,.1f}"]) for each in found["adam"]
    ]
    return "\n".join([*lines, *found["notes"]])


def _node_tables(document: Mapping[str, Any]) -> list[str]:
    blocks = []
    for row in (_result(document, "smoke") or {"ways": []})["ways"]:
        if not row.get("nodes"):
            continue
        lines = [
            f"## Nodes of a step: {row['way']}, batch {row['batch']}\n",
            "| node | us | starts after the end of those before, us | grid | block | registers |",
            "|---|--:|--:|---|---|--:|",
        ]
        for each in row["nodes"]:
            shape = ["" if each[name] is None else str(each[name]) for name in ("grid", "block", "registers")]
            lines.append(_row([f"`{each['name']}`", f"{each['us']:.2f}", f"{each['after_us']:.2f}", *shape]))
        blocks.append("\n".join(lines))
    return blocks


def _worker_table(document: Mapping[str, Any]) -> str:
    found = _result(document, "workers")
    if not found:
        return ""
    lines = [
        f"## Several workers that share the GPU\n\nBatch {found['batch']} each; gradients travel through the host's "
        "memory. Sharing one GPU is a check that several workers train, and no speed that several GPUs would have.\n",
        "| through | workers | samples/s | step ms | sync ms |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in found["runs"]:
        if row["samples_per_s"] is None:
            lines.append(_row([row["through"], str(row["workers"]), f"failed: {row['why']}", "", ""]))
            continue
        sync = row["laps_ms"].get("sync")
        cells = [
            f"{row['samples_per_s']:,.0f}",
            "" if row["step_ms_median"] is None else f"{row['step_ms_median']:.3f}",
        ]
        lines.append(_row([row["through"], str(row["workers"]), *cells, "" if sync is None else f"{sync:.3f}"]))
    return "\n".join(lines)


def scaling(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each way and count: speedups over the one worker of the same round, medians over rounds."""
    alone = {row["round"]: row["samples_per_s"] for row in runs if row["workers"] == 1}
    rows = []
    for way, workers in dict.fromkeys((row["way"], row["workers"]) for row in runs):
        own = [row for row in runs if (row["way"], row["workers"]) == (way, workers)]
        ratios = [row["samples_per_s"] / alone[row["round"]] for row in own if row["round"] in alone]
        rows.append(
            {
                "way": way,
                "workers": workers,
                "rounds": len(own),
                "samples_per_s": statistics.median(row["samples_per_s"] for row in own),
                "speedup": statistics.median(ratios) if ratios else None,
                "spread": (min(ratios), max(ratios)) if ratios else None,
                "step_ms": _median_of([row["step_ms_median"] for row in own]),
                "sync_ms": _median_of([row["laps_ms"].get("sync") for row in own]),
                "path": ", ".join(dict.fromkeys(row["path"] for row in own if row["path"])),
            }
        )
    return rows


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _scaling_table(document: Mapping[str, Any]) -> str:
    found = _result(document, "scaling")
    if not found:
        return ""
    lines = [
        f"## Several GPUs\n\nBatch {found['batch']} each, a GPU for each worker. Speedups are over the worker of the "
        "same round that is alone, with the smallest and the largest.\n",
        "| way | GPUs | samples/s | speedup | spread | efficiency | step ms | sync ms | path | rounds |",
        "|---|--:|--:|--:|---|--:|--:|--:|---|--:|",
    ]
    for row in scaling(found["runs"]):
        ratios = ["", "", ""]
        if row["speedup"] is not None:
            low, high = row["spread"]
            ratios = [f"{row['speedup']:.2f}", f"{low:.2f} - {high:.2f}", f"{row['speedup'] / row['workers']:.0%}"]
        times = ["" if row[name] is None else f"{row[name]:.3f}" for name in ("step_ms", "sync_ms")]
        cells = [row["way"], str(row["workers"]), f"{row['samples_per_s']:,.0f}", *ratios, *times]
        lines.append(_row([*cells, row["path"], str(row["rounds"])]))
    for row in found["missing"]:
        lines.append(_row([row["way"], str(row["workers"]), f"failed: {row['why']}", *[""] * 7]))
    if found["exchange"]:
        lines += ["", "| all-reduce | GPUs | kB | us | bus GB/s |", "|---|--:|--:|--:|--:|"]
    for row in found["exchange"]:
        cells = [row["way"], str(row["workers"])]
        if row["seconds"] is None:
            lines.append(_row([*cells, f"failed: {row['why']}", "", ""]))
            continue
        bus = 2 * (row["workers"] - 1) / row["workers"] * row["bytes"] / row["seconds"] / 1e9
        lines.append(_row([*cells, f"{row['bytes'] / 1e3:,.0f}", f"{row['seconds'] * 1e6:,.1f}", f"{bus:.2f}"]))
    return "\n".join(lines)


def _limit_lines(document: Mapping[str, Any]) -> str:
    found = _result(document, "limits")
    if not found:
        return ""
    lines = ["## What this GPU can do, and where the step stands\n"]
    launch = found.get("launch")
    if launch:
        lines.append(
            f"Launching the smallest kernel: {launch['eager_s'] * 1e6:.2f} us called one by one, "
            f"{launch['graph_s'] * 1e6:.2f} us inside a CUDA graph; "
            f"replaying a graph {launch['replay_s'] * 1e6:.2f} us.\n"
        )
    lines += ["| copies | GB/s | spread |", "|---|--:|--:|"]
    for copy in found["copies"]:
        if copy["gb_per_s_median"] is not None:
            low, high = copy["gb_per_s_min"], copy["gb_per_s_max"]
            lines.append(f"| {copy['name']} | {copy['gb_per_s_median']:,.1f} | {low:,.1f} - {high:,.1f} |")
    lines += ["", "| matrix products | TFLOP/s |", "|---|--:|"]
    lines += [f"| {name} | {peak / 1e12:,.1f} |" for name, peak in found["peaks_flop_per_s"].items()]
    if found["steps"]:
        lines += [
            "",
            "| step | batch | us | launching us | moving us | computing us | bound by | explains |",
            "|---|--:|--:|--:|--:|--:|---|--:|",
        ]
    for each in found["steps"]:
        launching = "" if each["launching_s"] is None else f"{each['launching_s'] * 1e6:.1f}"
        times = [f"{each[name] * 1e6:.1f}" for name in ("moving_s", "computing_s")]
        cells = [each["way"], str(each["batch"]), f"{each['step_s'] * 1e6:.1f}", launching, *times]
        lines.append(_row([*cells, each["bound"], f"{each['share']:.0%}"]))
    return "\n".join(lines)


def _energy_table(document: Mapping[str, Any]) -> str:
    found = _result(document, "energy")
    if not found:
        return ""
    lines = [
        "## Energy of an epoch\n",
        "| batch | by the counter, J | by the integral of power, J | epochs | doubt or reason |",
        "|--:|--:|--:|--:|---|",
    ]
    for run in found["runs"]:
        joules = [
            "not known" if run[f"{name}_per_epoch_j"] is None else f"{run[f'{name}_per_epoch_j']:,.0f}"
            for name in ("counter", "integral")
        ]
        why = "; ".join(text for text in (run["doubt"], run["reason"]) if text)
        lines.append(_row([str(run["batch"]), *joules, f"{run['epochs']:.1f}", why]))
    return "\n".join(lines)


def _wait_lines(document: Mapping[str, Any]) -> str:
    found = _result(document, "waits")
    if not found:
        return ""
    lines = ["## Where the host waits for the GPU\n"]
    for run in found["runs"]:
        lines.append(f"- {run['steps']} steps: {run['places'] or 'no'} place{'s' * (run['places'] != 1)}")
        lines += [f"    - `{place}`" for place in run["first"]]
    return "\n".join(lines)


def _failed_tests(document: Mapping[str, Any]) -> str:
    found = _result(document, "correctness")
    if not found or not (found["failures"] or found["skipped"] or found["passed_alone"]):
        return ""
    lines = ["## Tests that did not pass\n"]
    lines += [f"- {name}: failed beside others, passed alone" for name in found["passed_alone"]]
    lines += [f"- {each['test']}: `{' '.join(each['why'].split())[:300]}`" for each in found["failures"]]
    lines += [f"- skipped: {why}" for why in found["skipped_because"]]
    return "\n".join(lines)


def _section_table(document: Mapping[str, Any]) -> str:
    lines = ["## Sections\n", "| part | section | | s | measured | on | why |", "|---|---|---|--:|---|--:|---|"]
    lines += [
        _row(
            [
                each["part"],
                name,
                each["status"],
                f"{each['seconds']:.0f}",
                each["measured"],
                each["machine"],
                each["why"],
            ]
        )
        for name, each in document["sections"].items()
    ]
    return "\n".join(lines)
