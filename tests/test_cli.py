"""The command line: what a user types and what comes back."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from make.waiting import PATIENCE_S
from make.wording import Golden

from horovod_study import cli
from horovod_study.cli import main
from horovod_study.cli.verbs import Result, Verb
from horovod_study.config.workload import HEADINGS
from horovod_study.strain.options import STRAIN

VERBS = ("run", "status", "doctor", "report", "explain", "predict", "bench", "record", "strain")
POINTS = "workers,samples_per_s\n1,100\n2,190\n4,370\n8,730\n"


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capsys.readouterr().out

    assert ended.value.code == 0
    assert all(re.search(rf"^ +{verb}( \(fit\))?\s+\w", out, re.MULTILINE) for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])

    assert ended.value.code == 0
    assert f"usage: horovod-study {verb}" in capsys.readouterr().out


def _verbs(verbs: tuple[Verb, ...], *above: str) -> Iterator[tuple[tuple[str, ...], Verb]]:
    """Every verb, those below others and forms such as `predict --simulate`, with the words that are typed for it."""
    for verb in verbs:
        words = (*above, *verb.name.split())
        yield words, verb
        yield from _verbs(verb.verbs, *words)


@pytest.mark.parametrize("words", [(), *(words for words, _ in _verbs(cli.VERBS))], ids=" ".join)
def test_the_help_of_every_verb_fits_a_screen_and_the_rest_is_shown_on_request(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for how in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main([*words, how])
        assert ended.value.code == 0
        shown[how] = capsys.readouterr().out.splitlines()

    assert len(shown["--help"]) <= 24
    assert max(len(line) for lines in shown.values() for line in lines) <= 80
    flags = {how: set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", "\n".join(lines), re.M)) for how, lines in shown.items()}
    assert flags["--help"] <= flags["--help-all"] | {"--help"}
    assert ("--help-all" in flags["--help"]) == bool(flags["--help-all"] - {*flags["--help"], "--help-all"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["fitt", "x.csv"],
            r"'fitt' is not known \(did you mean 'fit'\?\); allowed: run, status, doctor, report, explain",
        ),
        ([], "the following arguments are required: VERB; see horovod-study --help"),
        (["fit", "x.csv", "--jsn"], r"horovod-study predict: unknown argument '--jsn' \(did you mean '--json'\?\)"),
        (["run"], "run: no study; name its file, or write `run -- COMMAND` with {workers} in it"),
        (["run", "/none.yaml"], "/none.yaml: no such file; name an existing YAML file"),
        (["fit", "/none.csv"], "/none.csv: no such file; name a CSV file with workers,samples_per_s"),
        (["predict", "/none.csv"], "/none.csv: no such file; name a CSV file with workers,samples_per_s"),
        (
            ["report", "--tables", "/none", "--out", "/tmp/x"],
            "/none: no such directory; name the directory that holds the runs",
        ),
        (["report", "/none"], r"/none: no such directory; name the directory that holds the runs"),
        (["explain", "/dev/null"], "/dev/null: is no directory of runs, nor another file"),
        (
            ["record", "--timer-mode", "ligt", "--", "true"],
            r"record: --timer-mode is 'ligt' \(did you mean 'light'\?\)",
        ),
        (["record", "--study", "a/b", "--", "true"], "record: --study is 'a/b'; it names a folder: no slash"),
        (["record", "--batch", "0", "--", "true"], "record: --batch is 0; it must be at least 1"),
        (["record", "--warmup-steps", "-1", "--", "true"], "record: --warmup-steps is -1; it must be at least 0"),
        (["strain", "data", "check", "/none"], "/none/dataset.json: no such data set"),
        (["strain", "data", "generate", "--size", "many"], "--size many: must be a whole number of curves"),
        (["strain", "data", "generate", "--noise-max", "-1"], "--noise-max -1.0: must be 0"),
        (["strain", "train", "--bach", "3"], r"unknown argument '--bach' \(did you mean '--batch'\?\)"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, out, err = call(capsys, *words)

    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: .*\n", err), "one line"
    assert re.search(message, err)


def test_data_generate_and_check(capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden) -> None:
    code, out, err = call(capsys, "strain", "data", "generate", "--size", "500", "--seed", "7", "--out", tmp_path / "d")
    assert (code, out.strip()) == (0, str(tmp_path / "d"))
    assert "generating 500 curves (seed 7)" in err

    code, out, _ = call(capsys, "strain", "data", "check", tmp_path / "d", "--json")
    assert code == 0
    assert {name: json.loads(out)[name] for name in ("size", "train", "test", "seed")} == {
        "size": 500, "train": 375, "test": 125, "seed": 7,
    }  # fmt: skip
    code, out, _ = call(capsys, "strain", "data", "check", tmp_path / "d")
    assert code == 0
    golden(out, "500 curves", "375", "125")

    code, _, err = call(capsys, "strain", "data", "generate", "--size", "500", "--out", tmp_path / "d")
    assert code == 2 and "exists already" in err


def test_fit_gives_a_known_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Speedups 1, 1.9, 3.7, 7.3 are on 0.9 N + 0.1, which is also Gustafson's law with s = 0.1."""
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    code, out, _ = call(capsys, "fit", path, "--json")
    series = json.loads(out)["series"]

    assert code == 0
    assert list(series) == [""]
    laws = series[""]["laws"]
    assert laws["linear"]["params"] == pytest.approx({"slope": 0.9, "intercept": 0.1}, abs=1e-9)
    assert laws["gustafson"]["params"] == pytest.approx({"s": 0.1}, abs=1e-9)
    assert {"linear", "amdahl", "gustafson", "usl"} <= set(laws)
    assert set(laws["linear"]) >= {"params", "ci95", "rmse", "aicc"}
    assert {"alpha", "beta"} <= set(laws["usl"]["params"])

    code, out, _ = call(capsys, "fit", path)
    assert code == 0 and re.search(r"linear .*slope 0\.9 .*intercept 0\.1", out)


def test_fit_with_a_baseline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    _, out, _ = call(capsys, "fit", path, "--baseline", "200", "--json")

    linear = json.loads(out)["series"][""]["laws"]["linear"]
    assert linear["params"] == pytest.approx({"slope": 0.45, "intercept": 0.05}, abs=1e-9)


def test_predict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    code, out, _ = call(capsys, "predict", path, "--workers", "16", "64", "--workers-per-node", "4", "--json")
    rows = json.loads(out)["series"][""]

    assert code == 0
    assert [(row["workers"], row["nodes"]) for row in rows] == [(16, 4), (64, 16)]
    for row in rows:
        assert set(row) >= {"workers", "nodes", "samples_per_s", "low", "high", "law"}
        assert 0 < row["low"] <= row["samples_per_s"] <= row["high"]
    assert rows[0]["samples_per_s"] == pytest.approx(100 * (0.9 * 16 + 0.1), rel=0.1)

    code, out, _ = call(capsys, "predict", path, "--workers", "16")
    assert code == 0 and "16 workers" in out


def test_a_bad_points_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "points.csv"
    path.write_text("workers,samples_per_s\n1,100\n2,fast\n")
    code, _, err = call(capsys, "fit", path)

    assert code == 2
    golden(err, "points.csv", "line 3")


@pytest.mark.slow
def test_points_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "horovod_study.cli", "fit", "-", "--json"],
        input=POINTS,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert json.loads(done.stdout)["series"][""]["laws"]["linear"]["params"]["slope"] == pytest.approx(0.9)


def program(
    *words: object, text: bytes = b"", output: int = subprocess.PIPE, **environment: str
) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "horovod_study.cli", *map(str, words)],
        input=text,
        stdout=output,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


@pytest.mark.slow
def test_a_name_that_the_terminal_cannot_show_is_escaped() -> None:
    rows = "series,workers,samples_per_s\n\u65e5,1,100\n\u65e5,2,190\n\u65e5,4,350\n".encode()
    code, out, err = program("predict", "-", "--workers", "8", text=rows, PYTHONIOENCODING="ascii")

    assert (code, err) == (0, "")
    assert out.startswith("\\u65e5: samples/s")


@pytest.mark.slow
def test_standard_input_that_is_no_text_is_refused() -> None:
    assert program("fit", "-", text=b"\xff\xfe\x00") == (
        2,
        "",
        "error: -: is not a text file; save the table as CSV in UTF-8\n",
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        code, _, err = program("fit", "-", text=POINTS.encode(), output=full.fileno())

    assert (code, err) == (2, "error: the output: No space left on device; fix that, and try again\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "1000000000000"), "--workers is 1000000000000; it must be at most 10,000,000"),
        (("--workers", "8", "--rolling"), "--rolling: goes with --holdout"),
        (("--price-per-gpu-hour", "2"), "--price-per-gpu-hour says nothing without samples"),
    ],
)
def test_options_of_predict_that_say_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    code, out, err = call(capsys, "predict", path, *words)

    assert (code, out) == (2, "")
    assert re.fullmatch(f"error: .*{message}.*\n", err)


def test_a_missing_extra_is_named(golden: Golden) -> None:
    program = """
import sys
sys.modules["pandas"] = None
from horovod_study.cli import main
sys.exit(main(["fit", "-"]))
"""
    done = subprocess.run([sys.executable, "-c", program], input=POINTS, capture_output=True, text=True)

    assert done.returncode == 2
    golden(done.stderr, "horovod_study[analysis")


def test_every_option_of_a_run_stands_under_one_heading() -> None:
    assert {each.heading for each in STRAIN.options.values()} == set(HEADINGS)


def test_a_verb_says_what_it_does_in_one_line() -> None:
    """The summary in the help is the function's docstring, or one of its own where there is no function."""
    assert [] == [verb.name for _, verb in _verbs(cli.VERBS) if verb.run is None and verb.summary is None]
    assert [] == [
        verb.name for _, verb in _verbs(cli.VERBS) if verb.run and not (verb.run.__doc__ or "").splitlines()[:1]
    ]


def test_help_imports_no_large_package() -> None:
    program = (
        "import sys; from horovod_study.cli import command_line; command_line().format_help(); print(*sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    large = {"torch", "pandas", "numpy", "scipy", "matplotlib", "rich", "pyarrow", "pydantic", "jinja2"}
    assert set() == large & set(ended.stdout.split())


def test_train_has_the_same_options_as_the_program_that_trains() -> None:
    def options(words: list[str]) -> set[str]:
        ended = subprocess.run([sys.executable, *words, "--help-all"], capture_output=True, text=True, check=True)
        return set(re.findall(r"(?<![\w-])--[a-z-]+", ended.stdout.partition("Exit codes")[0]))

    assert options(["-m", "horovod_study.cli", "strain", "train"]) == options(["-m", "horovod_study.train"])


@pytest.mark.parametrize("as_json", [True, False])
def test_a_result_is_lines_or_one_line_of_json(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    told = {"a": float("nan"), "b": (1, None)}
    result = Result(document=told, lines=["one", "two"], files=[Path("x.csv")], doubts=["few"], exit_code=1)

    assert 1 == result.show(as_json=as_json)
    out, err = capsys.readouterr()
    assert "doubt: few\n" == err
    assert out == ('{"a": null, "b": [1, null], "files": ["x.csv"]}\n' if as_json else "one\ntwo\n")


def test_cells_are_named_for_a_retry_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = call(capsys, "run", tmp_path / "s.yaml", "horovod/mpi, 2 workers")

    assert (code, out) == (2, "")
    assert "--retry" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], ""),
        (["x", "--rounds", "3"], "--measure"),
        (["x", "--batch", "3"], "--measure"),
        (["x", "--part", "steps", "--max-residual", "5%"], "--max-residual"),
        (["x", "y", "--part", "steps"], "--part"),
        (["x", "--measure"], "--measure"),
        (["--measure", "--part", "account"], "--measure"),
    ],
)
def test_what_explain_cannot_do_together_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str, golden: Golden
) -> None:
    code, out, err = call(capsys, "explain", *words)

    assert (code, out) == (2, "")
    golden(err, message)


PLACES = (
    "horovod_study",
    "docs",
    "experiments",
    "examples",
    "jobs",
    "data",
    "notebooks",
    "README.md",
    "CONTRIBUTING.md",
)


def test_nobody_is_told_to_type_a_verb_that_is_not_there() -> None:
    """Messages, comments and pages name the verbs that there are; only the change log tells of others."""
    root = Path(__file__).parents[1]
    kinds = {".py", ".md", ".yaml", ".ipynb", ".j2"}
    found = []
    for path in (
        each for place in PLACES for each in ((root / place).rglob("*") if (root / place).is_dir() else [root / place])
    ):
        if path.suffix in kinds:
            typed = re.findall(r"horovod-study ([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
            found += [
                f"{path.relative_to(root)}: {verb}"
                for verb in typed
                if verb not in {"fit", *(each.name for each in cli.VERBS)}
            ]

    assert found == []


def test_tables_of_another_version_are_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Path(__file__).parent / "runs"
    with monkeypatch.context() as earlier:
        earlier.setattr("horovod_study.analysis.study.SCHEMA", 0)
        assert call(capsys, "report", runs, "--tables", "--out", tmp_path)[0] == 0

    code, out, err = call(capsys, "report", runs, "--out", tmp_path)

    assert (code, (tmp_path / "report.html").is_file()) == (0, True), err
    assert "report.html" in out
