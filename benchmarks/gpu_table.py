"""What benchmarks/gpu.py found, as numbers, as verdicts and as a table; reads and computes, measures nothing.

Medians over rounds, with the smallest and the largest; ratios are taken within a round, between neighbours in time.
"""

import math
import statistics
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PLAIN = "plain loop"
FP32 = ("no graphs", "graphs", "fused", "compile", "compile + graphs")
"""Ways that compute in float32 as the exact plain loop does: their losses must be the same."""

LOSSES_TOLERANCE = 1e-4
EPOCH_TARGETS_S = {75: 1.0, 1024: 0.25}
RATIO_TARGET = 10.0
TIMERS_TARGET_PERCENT = 1.0
HOROVOD_TARGET = 0.02
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


def tests(suite: ElementTree.Element, *, cut_off: bool) -> dict[str, Any]:
    """Return what came of the tests in a `testsuite` of pytest's JUnit file."""
    cases = list(suite.iter("testcase"))
    failures = [
        {"test": case.get("name"), "why": (problem.get("message") or problem.text or "").strip()[:1000]}
        for case in cases
        for problem in (*case.findall("failure"), *case.findall("error"))
    ]
    skipped = [case for case in cases if case.find("skipped") is not None]
    skips = {(skip.get("message") or "").strip()[:300] for skip in suite.iter("skipped")}
    bad = {each["test"] for each in failures}
    seconds = sorted(((float(case.get("time", 0)), str(case.get("name"))) for case in cases), reverse=True)
    return {
        "passed": len(cases) - len(bad) - len(skipped),
        "failed": len(bad),
        "skipped": len(skipped),
        "cut_off": cut_off,
        "skipped_because": sorted(skips),
        "failures": failures,
        "names": [str(case.get("name")) for case in cases],
        "slowest": [{"test": name, "seconds": took} for took, name in seconds[:5]],
    }


# ------------------------------------------------------------------------------------------------ verdicts


def targets(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every check and target, what was found, and the verdict: `met`, `missed` or `not measured`.

    Each is {"name", "kind": check or target, "wanted", "found", "verdict"}, `found` a text or None. In a dry run none
    is judged.
    """
    found = [*_tests(document), *_losses(document), *_epochs(document), *_timers(document)]
    found += [*_horovod(document), *_waits(document)]
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
        text += "; cut off: the section's time was over" * ran["cut_off"]
        met = not (ran["failed"] or ran["skipped"] or ran["cut_off"]) and ran["passed"] > 0
    yield _target("tests for a GPU", "check", "all pass, none is skipped", text, met)


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
    for batch, wanted_s in EPOCH_TARGETS_S.items():
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
                    times["median"] >= RATIO_TARGET,
                )
            break
        yield _target(f"epoch of 750,000 curves, batch {batch}", "target", f"<= {wanted_s:g} s", *seconds)
        yield _target(f"times the plain loop beside it, batch {batch}", "target", f">= {RATIO_TARGET:g}", *ratio)


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
            light = next(each for each in case["ways"] if each["way"] == "light")
            text = f"{light['percent']:.2f} %"
            if light["low"] is not None:
                text += f" [{light['low']:.2f}, {light['high']:.2f}]"
                met = light["high"] <= TIMERS_TARGET_PERCENT
                if not met and light["low"] <= TIMERS_TARGET_PERCENT:
                    text, met = f"{text}: not resolved", None
        yield _target(name, "target", f"<= {TIMERS_TARGET_PERCENT:g} %", text, met)


def _horovod(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    found = _result(document, "horovod")
    for pairs in found["pairs"] if found else [None]:
        text, met = None, None
        if pairs is not None:
            values = pairs["overhead"]
            text = f"{pairs['overhead_median']:.1%} ({min(values):.1%} - {max(values):.1%}, {len(values)} pairs)"
            met = pairs["overhead_median"] <= HOROVOD_TARGET
        name = f"one worker inside Horovod against none, steps {pairs['steps'] if pairs else 'captured'}"
        yield _target(name, "target", f"<= {HOROVOD_TARGET:.0%} slower", text, met)


def _waits(document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    found = _result(document, "waits")
    text, met = None, None
    if found:
        text = ", ".join(f"{run['steps']}: {run['places']}" for run in found["runs"])
        met = all(run["places"] == 0 for run in found["runs"])
    yield _target("places in the hot loop where the host waits for the GPU", "check", "none", text, met)


def exit_code(document: Mapping[str, Any]) -> int:
    """Return 0 if everything is met, else 1; in a dry run 1 if a section failed."""
    if document["dry_run"]:
        return int(any(each["status"] == "failed" for each in document["sections"].values()))
    return int(any(each["verdict"] != "met" for each in document["targets"]))


# ------------------------------------------------------------------------------------------------ the table


def markdown(document: Mapping[str, Any]) -> str:
    """Return everything for people to read."""
    blocks = [
        "# Training on a GPU",
        *(_warnings(document)),
        _machine(document),
        _target_table(document),
        _epoch_tables(document),
        _step_tables(document, "step", "The step"),
        _timer_table(document),
        _horovod_lines(document),
        _worker_table(document),
        _limit_lines(document),
        _energy_table(document),
        _wait_lines(document),
        _step_tables(document, "compile", "torch.compile"),
        _step_tables(document, "kernels", "Fused kernels with other blocks"),
        _failed_tests(document),
        _section_table(document),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _warnings(document: Mapping[str, Any]) -> list[str]:
    found = []
    if document["dry_run"]:
        found.append(
            "**A dry run on a CPU with tiny sizes: it shows that the program runs. Its numbers are no result, and it "
            "promises nothing.**"
        )
    if document["status"] != "finished":
        found.append("**Not finished: what follows is what had been measured when this was written.**")
    return found


def _machine(document: Mapping[str, Any]) -> str:
    found = _result(document, "machine")
    when = f"Measured {document['measured'][:10]} by `benchmarks/gpu.sh`"
    if not found:
        return f"{when}; the machine is not known: {document['sections'].get('machine', {}).get('why') or 'not asked'}."
    torch, smi = found["pytorch"], found["nvidia_smi"]
    details = [
        *([f"{torch['gpu_memory_gb']} GB"] if torch.get("gpu_memory_gb") else []),
        *([f"driver {smi['driver_version']}"] if smi["driver_version"] else []),
        *([f"power limit {smi['power.limit']}"] if smi["power.limit"] else []),
        *([f"SM clock up to {smi['clocks.max.sm']}"] if smi["clocks.max.sm"] else []),
    ]
    versions = [f"Python {found['python']}", f"PyTorch {torch['torch']}", f"CUDA {torch['cuda']}"]
    versions += [f"{name} {torch[key]}" for name, key in (("Triton", "triton"), ("NCCL", "nccl")) if torch.get(key)]
    if found["horovod"]:
        builds = f" (builds {', '.join(found['horovod_builds'])})" if found["horovod_builds"] else ""
        versions.append(f"Horovod {found['horovod']}{builds}")
    gpu = (torch.get("gpu") or "no GPU") + (f" ({', '.join(details)})" if details else "")
    return (
        f"{when} (revision {found['revision']}): {gpu}; {found['cpu_model']}, {found['cores_usable']} cores; "
        f"{', '.join(versions)}. "
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
        "epoch lasts from its first step to that of the next epoch. Ratios are taken within a round."
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
        for each in (case["control"], *case["ways"]):
            interval = "" if each["low"] is None else f"{each['low']:.2f} - {each['high']:.2f}"
            name = "off again" if each["way"] == "control" else each["way"]
            lines.append(_row([str(case["batch"]), name, f"{each['percent']:.2f}", interval, str(case["rounds"])]))
    return "\n".join(lines)


def _horovod_lines(document: Mapping[str, Any]) -> str:
    found = _result(document, "horovod")
    if not found:
        return ""
    inside = found["pairs"][0]["runs"]["inside"][0]
    through = f"{inside['backend']}, transport {inside['transport']}, build {inside['horovod_build'] or 'installed'}"
    lines = [
        f"## One worker inside Horovod\n\nPrograms of their own, in pairs, batch {found['batch']}; {through}.\n",
        "| steps | | samples/s | spread | step ms |",
        "|---|---|--:|--:|--:|",
    ]
    for pairs in found["pairs"]:
        for name, runs in pairs["runs"].items():
            speeds = _range(spread([run["samples_per_s"] for run in runs]), ",.0f")
            times = [run["step_ms_median"] for run in runs if run["step_ms_median"] is not None]
            lines.append(_row([pairs["steps"], name, *speeds, f"{statistics.median(times):.4f}" if times else ""]))
    return "\n".join(lines)


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
    if found["allreduce"]:
        lines += ["", "| all-reduce of one rank | bytes | us |", "|---|--:|--:|"]
        lines += [
            f"| {each['way']} | {each['bytes']:,} | {each['seconds'] * 1e6:,.1f} |" for each in found["allreduce"]
        ]
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
    if not found or not (found["failures"] or found["skipped"]):
        return ""
    lines = ["## Tests that did not pass\n"]
    lines += [f"- {each['test']}: `{' '.join(each['why'].split())[:300]}`" for each in found["failures"]]
    lines += [f"- skipped: {why}" for why in found["skipped_because"]]
    return "\n".join(lines)


def _section_table(document: Mapping[str, Any]) -> str:
    lines = ["## Sections\n", "| section | | s | why |", "|---|---|--:|---|"]
    lines += [
        _row([name, each["status"], f"{each['seconds']:.0f}", each["why"]])
        for name, each in document["sections"].items()
    ]
    return "\n".join(lines)
