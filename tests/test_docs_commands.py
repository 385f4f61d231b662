"""Every command that a page shows is run by a test: here in a small workspace, or by the test that is named here.

What needs a cluster, a GPU, root or another host cannot be run by everybody; it is named with the reason, and at least
compared with the program's own options. A command that no rule knows fails the last test but one, with what to do.
"""

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doc_commands import PAGES, ROOT, blocks, commands, inline, text_of, words_of
from make import bench_document, curve_files, synthetic_study
from make.waiting import PATIENCE_S

from horovod_study import cli
from horovod_study.analysis.machine import network
from horovod_study.report import export
from horovod_study.report.figures import catalogue
from horovod_study.report.figures.bench import content as bench_content
from horovod_study.report.page import html

MAKE = (ROOT / "Makefile").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Here:
    """Run in the workspace. `instead` replaces words of it, so that it takes a moment; `more` is put behind it."""

    instead: dict[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    code: int = 0


@dataclass(frozen=True, kw_only=True)
class ByTest:
    """Run by another test: a file of tests/, and what must be found in it."""

    by: str
    mentions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NotHere:
    """Cannot be run by everybody's tests."""

    reason: str


SMALL = ("--dataset", "400", "--batch", "10", "--warmup-steps", "2", "--system-interval-s", "0")
STEPS = (*SMALL, "--steps", "6")
A_MOMENT = {"--seconds": "--steps", "10": "8"}
MINUTES = "sets up the environment and trains for minutes; that the target is there is checked"
CLUSTER = "needs Slurm and nodes of a cluster; tests/test_cluster_slurm.py does it where a Slurm can be made"

RULES: dict[str, Here | ByTest | NotHere] = {
    # the program on anybody's numbers
    r"horovod-study fit runs\.csv.*": Here(),
    r"horovod-study predict runs/laptop .*": Here(),
    r"horovod-study (fit|predict) (points|batches)\.csv.*": Here(),
    r"horovod-study predict --(simulate|model-parallel) (?!--help).*": Here(instead={"100000": "2000"}),
    r"horovod-study predict \S+/published\.csv --holdout 3": ByTest(by="test_holdout.py", mentions=("score(",)),
    r"horovod-study( predict --simulate)? --help": Here(),
    # recorded runs
    r"horovod-study fit (logs/|megatron\.log@8)": ByTest(by="test_training_logs.py", mentions=("@8", "fit")),
    r"horovod-study explain traces/": ByTest(by="test_rank_traces.py", mentions=('"explain"',)),
    r"horovod-study explain inspector/.*": ByTest(by="test_nccl_inspector.py", mentions=('"explain"',)),
    r"horovod-study explain (--part (account|steps) )?(?!--)\S+.*": Here(),
    r"horovod-study report RUN_DIR --export trace.*": Here(instead={"1000:1200": "10:20"}),
    r"horovod-study report \S+ --export extra-p.*": Here(),
    r"horovod-study report \S+ --export (zip|(tensorboard|wandb|mlflow) .*)": ByTest(
        by="test_export.py", mentions=('"zip"', "README.md", "tensorboard", "wandb", "mlflow")
    ),
    r"horovod-study report .* --check.*": ByTest(by="test_audit.py", mentions=('"--check"', "--allow", '"--json"')),
    r"horovod-study report \S+/published\.csv --out \S+": ByTest(
        by="test_reported.py", mentions=('"report"', "--check")
    ),
    r"horovod-study report runs/scaling": Here(instead={"runs/scaling": "runs/laptop"}),
    r"horovod-study report .*": Here(),
    r"horovod-study explain --part sync RUN_DIR .*": Here(instead={"[RUN_DIR": "", "...]": ""}),
    r"horovod-study explain --part timeline RUN_DIR": ByTest(by="test_timeline.py", mentions=('"timeline"',)),
    # data
    r"horovod-study strain data generate --size \d+": Here(instead={"1000000": "1000"}),
    r"horovod-study strain data check 1000000": Here(instead={"1000000": "1000"}),
    r"horovod-study strain data (import|check) .*": Here(),
    # studies, as far as nothing is run
    r"horovod-study (run experiments/\S+ --plan|status experiments/(?!tour)\S+)": Here(),
    r"horovod-study run \S+ --until 2%": ByTest(by="test_aim.py", mentions=("until(", "test_a_study_ends")),
    r"horovod-study predict \S+ --next": ByTest(by="test_next_runs.py", mentions=('"--next"',)),
    r"horovod-study run experiments/\S+ --dry-run": Here(),
    r"horovod-study (status|retry) experiments/tour\.yaml": NotHere(reason=f"a terminal of a real study: {CLUSTER}"),
    r"horovod-study status \S+ --watch": ByTest(by="test_watch.py", mentions=("--watch",)),
    r"horovod-study run -- torchrun .*": ByTest(
        by="test_run_command.py", mentions=("command_study(TORCHRUN)", '"run", "--"')
    ),
    r"horovod-study run \S+( --no-retry)?": ByTest(by="test_runner.py", mentions=("run_sweep", "retry=False")),
    r"horovod-study run \S+ --wait": ByTest(by="test_cluster_slurm.py", mentions=("wait=",)),
    r"horovod-study run \S+ --here": ByTest(by="test_jobs.py", mentions=("run_here",)),
    r"horovod-study run \S+ --hosts \S+": ByTest(by="test_cluster_study.py", mentions=("two_hosts", '"run"')),
    r"horovod-study run --retry .*": ByTest(by="test_runner.py", mentions=("retry_cells",)),
    r"horovod-study status \S+ --cancel.*": ByTest(by="test_runner.py", mentions=("cancel_cells",)),
    r"horovod-study doctor( --(quick|json|runs \S+))?": ByTest(by="test_doctor.py", mentions=("--quick", "--runs")),
    r"horovod-study doctor --(hosts|partition) .*": ByTest(by="test_doctor.py", mentions=("--hosts", "--partition")),
    r"srun .* horovod-study doctor": NotHere(reason=CLUSTER),
    # training, alone
    r"horovod-study strain train( --steady \w+)?": Here(more=STEPS),
    r"(taskset -c \d )?horovod-study strain train --seconds 10 --out runs/\w+": Here(instead=A_MOMENT, more=SMALL),
    r"python -m horovod_study\.train --require path=infiniband": Here(more=STEPS, code=2),
    r"python -m horovod_study\.train( --system-interval-s \S+)?": Here(more=STEPS),
    r"python -m horovod_study\.train --dataset my-curves": Here(
        more=("--batch", "2", "--steps", "3", "--warmup-steps", "0")
    ),
    r"(nsys .* )?python -m horovod_study\.train --profile \S+": ByTest(
        by="test_profiling.py", mentions=("torch", "cprofile", "pyspy", "sync-points", "nsys")
    ),
    r"(horovodrun -np 2 )?python examples/resnet18_cifar\.py .*": ByTest(
        by="test_examples.py", mentions=("resnet18_cifar.py", '"horovodrun", "-np", "2"')
    ),
    # on a GPU
    r"horovod-study strain train .*--cuda-graphs --kernels fused.*": NotHere(
        reason="needs a GPU, where tests/test_on_gpu.py does it; its options are compared with the program's"
    ),
    r"HOROVOD_STUDY_REPLAY_ON_HOST=1 python -m horovod_study\.train --loader device --cuda-graphs": ByTest(
        by="test_captured_training.py", mentions=("REPLAY_ON_HOST", '"--cuda-graphs", "--loader", "device"')
    ),
    r"((PYTHON=\S+ WHEELS=FOLDER )?benchmarks/gpu\.sh .*|python benchmarks/gpu\.py --dry-run --out DIR)": ByTest(
        by="test_gpu_benchmark.py", mentions=("gpu.sh", "WHEELS=", '"--part"', '"--dry-run", "--out"')
    ),
    r"pip install '/path/to/horovod_study\[analysis\]'": ByTest(by="test_package.py", mentions=("pip", "[analysis")),
    r"horovod-study record .*-- .*": ByTest(
        by="test_record_command.py", mentions=('"record"', "torchrun", "horovodrun")
    ),
    # training, together
    r"horovodrun( --gloo)? -np 2 python -m horovod_study\.train": ByTest(
        by="test_parallel.py", mentions=("horovodrun",)
    ),
    r"mpirun -np 2 python -m horovod_study\.train --backend (mpi|ps)": ByTest(
        by="test_parallel.py", mentions=("mpirun",)
    ),
    r"torchrun --nproc-per-node 2 -m horovod_study\.train": ByTest(by="test_parallel.py", mentions=("torchrun",)),
    r".* horovod_study\.train .*--measure-sync": ByTest(by="test_synchronisation.py", mentions=("--measure-sync",)),
    r".* horovod_study\.train .*--measure-ablation.*": ByTest(by="test_ablation.py", mentions=("--measure-ablation",)),
    r".* horovod_study\.train .*--timeline-steps 50": ByTest(by="test_timeline.py", mentions=("--timeline-steps",)),
    r".* horovod_study\.train .*(--resume|--checkpoint-every) .*": ByTest(
        by="test_resume.py", mentions=("--resume", "--checkpoint-every", "horovodrun")
    ),
    # experiments of minutes
    r"horovod-study explain --measure": ByTest(by="test_attribution.py", mentions=('"explain"', "--steps")),
    r"horovod-study bench( --(?!over).*)?": ByTest(by="test_bench.py", mentions=('"bench"', "--transport", "--sizes")),
    r"horovod-study bench timers.*": ByTest(by="test_timers.py", mentions=('"timers"', "--over", "--fail-above")),
    r"horovod-study bench loading": ByTest(by="test_loading.py", mentions=('"loading"',)),
    r"mpirun -np 8 -H \S+ horovod-study bench .*": NotHere(reason="needs two machines"),
    r"horovod-study run \w+/\S+ \w+/\S+.*": ByTest(by="test_pairs.py", mentions=('"run"', "--workers")),
    r"horovod-study run \S+ --tune.*": ByTest(by="test_tune.py", mentions=('"run"', '"--tune"')),
    r"horovod-study strain search .*": ByTest(by="test_search.py", mentions=('"search"', "--trials", "--jobs")),
    r"horovod-study strain lr-range .*": ByTest(by="test_lr_range.py", mentions=('"lr-range"', "--low", "--high")),
    r"horovod-study bench equality.*": ByTest(by="test_verify.py", mentions=('"equality"', "--break", "--dtype")),
    # the project, and what is not the project's
    r"make (setup|study|test|bench)\b.*": NotHere(reason=MINUTES),
    r"make wheels .*": ByTest(by="test_setup.py", mentions=("wheels.fill", "wheels.main")),
    r"cp jobs/partitions/\S+ jobs/partitions/\S+": Here(),
    r"export PATH=\S+": Here(),
    r"export HOROVOD_STUDY_\w+=.+": Here(),
    r"(git|ssh|ssh-keygen|ssh-copy-id|rsync) .*": NotHere(reason="needs another host"),
    r"cd \S+": NotHere(reason="a folder of the reader's"),
    r"xdg-open .*": NotHere(reason="needs a desktop"),
    r"(sinfo|salloc) .*": NotHere(reason=CLUSTER),
    r"python tests/slurm_cluster\.py FOLDER": ByTest(by="test_cluster_slurm.py", mentions=("SlurmCluster",)),
    r"python tests/two_hosts\.py .*": ByTest(by="test_two_hosts.py", mentions=("two_hosts.py up",)),
}

SHOWN = {page: commands(text_of(page)) for page in PAGES}
EVERY = sorted({command for found in SHOWN.values() for command in found})


def rule(command: str) -> tuple[str, Here | ByTest | NotHere] | None:
    """The first rule that knows a command, with its pattern."""
    return next(((pattern, how) for pattern, how in RULES.items() if re.fullmatch(pattern, command)), None)


HERE = [command for command in EVERY if isinstance((rule(command) or ("", None))[1], Here)]


WHOLE = "horovod-study report out"
"""The one report that is written in full."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the pages find what they name: runs, points, a bench, curves, study files."""
    here = tmp_path_factory.mktemp("reader")
    for name in ("experiments", "jobs"):
        shutil.copytree(ROOT / name, here / name)
    points = next(block for block in blocks(text_of("docs/predict.md"), "") if block.startswith("workers,"))
    (here / "points.csv").write_text(points)
    batches = next(block for block in blocks(text_of("docs/predict.md"), "") if block.startswith("workers,batch_size"))
    (here / "runs.csv").write_text("N;rate\n1;955,5\n2;1879\n4;3549\n")
    (here / "batches.csv").write_text(batches)
    (here / "bench").mkdir()
    bench = bench_document.document()
    for job in bench["jobs"]:
        job["conditions"]["settings"] = {
            "HOROVOD_CYCLE_TIME": {"value": "0.05"},
            "HOROVOD_IDLE_CYCLE_TIME": {"value": "10"},
        }
    (here / "bench" / "bench.json").write_text(json.dumps(bench_content(network.analyze(bench), bench)))
    curve_files.write_long(here / "tests.csv", curve_files.generated())
    for page, start, file in (
        ("docs/start.md", "study: batches", "experiments/batches.yaml"),
        ("docs/first_study.md", "study: scaling", "experiments/scaling.yaml"),
        ("docs/first_study.md", "description:", "jobs/partitions/mycluster.yaml"),
    ):
        (here / file).write_text(next(block for block in blocks(text_of(page), "yaml") if block.startswith(start)))
    runs = synthetic_study.write_study(
        here / "runs" / "laptop", workers=(1, 2, 4, 8), steps=60, warmup=10, evaluations=2, repeats=2
    )
    run = next(path for path in sorted(runs.iterdir()) if path.name.startswith("alpha-horovod-mpi-02w"))
    alone = next(path for path in sorted(runs.iterdir()) if path.name.startswith("alpha-serial"))
    for name in (
        "RUN",
        "RUN_DIR",
        "runs/mine/2w",
        "runs/train/2w",
        "runs/try/2w",
        "runs/resnet/2w",
        "runs/with-ablation",
    ):
        shutil.copytree(run, here / name)
    for name in ("runs/mine/1w", "runs/try/1w", "runs/resnet/1w", "runs/alone", "runs/beside0", "runs/beside1"):
        shutil.copytree(alone, here / name)
    (here / "RUNS").symlink_to(runs, target_is_directory=True)
    with contextlib.chdir(here):
        for words in (
            ["report", "--tables", "runs/laptop", "--out", "analysis"],
            ["strain", "data", "generate", "--size", "1000"],
            ["strain", "data", "import", "tests.csv", "--out", "my-curves"],
        ):
            assert cli.main(words) == 0
    for name in ("out", "before", "after", "runs/laptop/analysis"):
        shutil.copytree(here / "analysis", here / name)
    for name in ("try", "mine", "resnet"):
        shutil.copytree(here / "analysis", here / "runs" / f"{name}-analysis")
    return here


@pytest.fixture
def inside(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(workspace)
    yield workspace


@pytest.mark.parametrize("command", HERE)
@pytest.mark.slow
def test_a_command_works_as_it_is_shown(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    _, how = rule(command) or ("", Here())
    assert isinstance(how, Here)
    words = [how.instead.get(word, word) for word in words_of(command)]
    if not words:
        done = subprocess.run(["bash", "-c", command], cwd=inside, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (0, "")
        return
    words = [word for word in words if word] + list(how.more)
    some = catalogue.drawings
    for module in (catalogue, html, export):  # tests/test_report.py draws all of them
        monkeypatch.setattr(module, "drawings", lambda analysis: some(analysis)[:1])
    if words[0] == "report" and command != WHOLE:  # page and tables are the same for every option
        monkeypatch.setattr(html, "render", lambda analysis, against=None, printed=None: "")
        monkeypatch.setattr(html, "write_tables", lambda analysis, directory: [])
    if words[:2] in (["strain", "train"], ["strain", "data"]) and words[2:3] != ["check"]:  # nothing is overwritten
        words += ["--out", f"made/{HERE.index(command)}"]
    try:
        code = cli.main(words)
    except SystemExit as ended:  # --help
        code = ended.code
    told = capsys.readouterr()

    assert code == how.code, f"{' '.join(words)}\n{told.out}\n{told.err}"
    assert told.out or told.err


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, found in SHOWN.items() if found])
def test_a_page_shows_commands_that_the_program_takes(page: str) -> None:
    for command in SHOWN[page]:
        words = words_of(command)
        if words and "--help" not in words:
            cli.command_line().parse_strictly(words)
        if command.startswith("make "):
            _, target, *settings = command.split()
            assert re.search(rf"^{target}:", MAKE, re.MULTILINE), f"{page}: {command}: no such target"
            for setting in settings:
                assert f"$({setting.partition('=')[0]})" in MAKE or "=" not in setting, f"{page}: {command}: {setting}"


def options_of(parser: object) -> dict[str, set[str]]:
    """The options of every verb, and of verbs below it as `data import`."""
    found: dict[str, set[str]] = {}
    for action in parser._actions:  # type: ignore[attr-defined]
        for name, below in (action.choices or {}).items() if hasattr(action, "_name_parser_map") else ():
            found[name] = {flag for each in below._actions for flag in each.option_strings}
            found |= {f"{name} {deeper}": flags for deeper, flags in options_of(below).items()}
    return found


VERBS = options_of(cli.command_line())


@pytest.mark.parametrize("page", PAGES)
def test_what_the_prose_of_a_page_names_is_there(page: str) -> None:
    """`horovod-study VERB --option` and `make TARGET` in a sentence."""
    for words in inline(text_of(page)):
        if words[0] == "make":
            target = words[1].split("=")[0]
            assert "=" in words[1] or re.search(rf"^{target}:", MAKE, re.MULTILINE), f"{page}: {' '.join(words)}"
            continue
        verb = " ".join(words[1:3]) if " ".join(words[1:3]) in VERBS else words[1]
        assert verb in VERBS or not re.fullmatch(r"[a-z-]+", verb) or verb.startswith("-"), f"{page}: {' '.join(words)}"
        flags = {word.split("=")[0].rstrip(",.") for word in words[2:] if re.match("--[a-z]", word)}
        known = {flag for name, each in VERBS.items() if name.split()[0] == verb.split()[0] for flag in each}
        assert flags <= known, f"{page}: {' '.join(words)}: {sorted(flags - known)}"


def test_every_command_is_known_to_a_rule() -> None:
    unknown = [f"{page}: {command}" for page, found in SHOWN.items() for command in found if rule(command) is None]

    assert not unknown, "\n".join(unknown) + (
        "\nno rule of tests/test_docs_commands.py knows these. Add one to RULES: Here() runs it in the workspace, "
        "ByTest(by=..., mentions=...) names the test that runs it, NotHere(reason=...) says why nothing can"
    )


def test_every_rule_is_needed_and_what_it_names_is_there() -> None:
    used = {found[0] for command in EVERY if (found := rule(command))}
    assert sorted(set(RULES) - used) == []
    for pattern, how in RULES.items():
        if isinstance(how, ByTest):
            tests = (ROOT / "tests" / how.by).read_text(encoding="utf-8")
            absent = [words for words in how.mentions if words not in tests]
            assert not absent, f"{pattern}: {how.by} does not mention {absent}"
        if isinstance(how, NotHere):
            assert len(how.reason.split()) > 2


def test_commands_are_found_in_every_kind_of_block() -> None:
    page = (
        "```sh\n.venv/bin/horovod-study fit a.csv   # why\n# no command\n"
        "horovod-study run \\\n    x.yaml && make check\n```\n"
        "```\n$ horovod-study status x.yaml\nstate  cell\n```\n```\nmake study: done\nhorovod-study doctor   all\n```\n"
        "Prose `horovod-study status x.yaml --json`:\n\n    horovod-study run x.yaml --tune        all\n"
        "    a table, not a command\n"
        "```bash\n#!/bin/bash\nmodule load gcc\n```\n```python\nmake = 1\n```\n"
    )

    assert commands(page) == [
        *("horovod-study fit a.csv", "horovod-study run x.yaml", "make check", "horovod-study status x.yaml"),
        *("make study: done", "horovod-study doctor", "horovod-study run x.yaml --tune"),
    ]
    assert inline(page) == [["horovod-study", "status", "x.yaml", "--json"]]
    assert words_of("mpirun -np 2 python -m horovod_study.train --backend ps") == ["strain", "train", "--backend", "ps"]
    assert words_of("horovod-study report a --export extra-p > b.csv") == ["report", "a", "--export", "extra-p"]


# What docs/predict.md shows of its commands' output

NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
CLOSE = 0.1
"""Numbers of a page may differ so much from those printed: last digits depend on the machine."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("all points: samples/s with 95 % interval", ["--workers", "64", "128"]),
        ("all points: known 1, 2, 4 workers, hidden 8, 16, 32", ["--holdout"]),
        ("all points: recommended workers with 95 % interval", ["--samples", "5e8", "--deadline", "24h"]),
    ],
)
def test_shown_output_is_what_is_printed(
    inside: Path, capsys: pytest.CaptureFixture[str], first: str, words: list[str]
) -> None:
    block = text_of("docs/predict.md").split(f"    {first}")[1].split("\n\n")[0]
    shown = [f"{first}{block}".splitlines()[0], *(line[4:] for line in block.splitlines()[1:])]
    assert cli.main(["predict", "points.csv", *words]) == 0
    printed = iter(capsys.readouterr().out.splitlines())

    for line in shown:
        if line.strip() != "...":
            same = (each for each in printed if shape(each) == shape(line))
            found = next(same, None)
            assert found is not None, f"not printed, or not in this order: {line}"
            assert numbers(found) == pytest.approx(numbers(line), rel=CLOSE, abs=1.0)


def shape(line: str) -> str:
    return " ".join(NUMBER.sub("1", line).split())


def numbers(line: str) -> list[float]:
    return [float(each.replace(",", "").rstrip(".")) for each in NUMBER.findall(line)]
