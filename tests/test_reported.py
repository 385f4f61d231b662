"""A report of somebody's table: the same speedups and laws as `fit` gives, said to be those of a table, checked."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make.properties import examples

from horovod_study import api
from horovod_study.analysis.fit.fitting import fit_series
from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.importers import parse_points
from horovod_study.analysis.series import exchange
from horovod_study.analysis.study import Analysis, analyze
from horovod_study.cli import main
from horovod_study.records import finite
from horovod_study.report.page import html

COUNTS = (1, 2, 4, 8, 16)
RATES = (100.0, 196.0, 371.0, 690.0, 1180.0)


def table(first: int = 0, head: str = "GPUs,img/s") -> str:
    rows = zip(COUNTS[first:], RATES[first:], strict=True)
    return head + "\n" + "".join(f"{count},{rate}\n" for count, rate in rows)


def analysed(text: str) -> Analysis:
    return analyze(exchange.run_rows(parse_points(text, "my.csv"), "my"))


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2], ids=["from one worker", "from four"])
def test_speedups_and_laws_are_those_of_fit(first: int) -> None:
    found = analysed(table(first))

    points = found.points.sort_values("workers")
    base = RATES[first] / COUNTS[first]
    assert points["speedup_wrapped"].to_numpy() == pytest.approx(np.array(RATES[first:]) / base)
    assert points["speedup_plain"].isna().all(), "nobody said that a worker was without a library"
    (told,) = found.fits["series"].values()
    own = fit_series(parse_points(table(first), "my.csv"))[""]
    assert told["selected"] == own.selected
    assert told["laws"]["amdahl"]["params"] == pytest.approx(dict(finite(own.fits["amdahl"])["params"]))
    assert any("no row of one worker" in doubt for doubt in found.provenance["doubts"]) == (first > 0)


def test_what_the_table_does_not_say_is_empty() -> None:
    points = analysed(table()).points

    assert points[["batch", "train_samples"]].isna().all(axis=None)
    assert points["nodes"].isna().tolist() == [False] + [True] * 4, "one worker is on one node"


def test_a_table_that_no_law_describes_has_a_page_without_law() -> None:
    """Every law is refuted by the last point: the figures name none."""
    found = analysed("workers,samples_per_s\n1,100\n2,110\n3,120\n4,105\n64,5000\n")

    assert [each["selected"] for each in found.fits["series"].values()] == [None]
    assert "Speedup" in html.render(found)


def test_series_repeats_nodes_and_batches() -> None:
    text = "cluster,GPUs,GPUs/node,batch/GPU,img/s\n" + "".join(
        f"{name},{count},4,64,{rate * 100 * count * 0.95**repeat}\n"
        for name, rate in (("a", 1.0), ("b", 1.2))
        for count in (1, 4, 8)
        for repeat in range(3)
    )
    found = analysed(text)

    assert found.points["repeats"].tolist() == [3] * 6 and found.points["nodes"].tolist() == [1, 1, 2] * 2
    assert found.points["partition"].tolist() == ["a"] * 3 + ["b"] * 3
    assert found.points["setting"].unique().tolist() == ["batch 64"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "GPUs,speedup\n4,3.5\n8,6.4\n16,11.0\n32,17.2\n",
        "GPUs,speedup\n8,1.0\n16,1.9\n32,3.5\n64,6.0\n",
        "GPUs,speedup,nodes\n1,0.9,1\n2,1.7,1\n4,3.1,1\n8,5,2\n",
        "GPUs,img/s\n1,100\n1,100.2\n1,70\n2,200\n2,200.4\n2,140\n4,400\n4,400.8\n4,280\n",
        "GPUs,img/s\n1,100\n1,101\n1,60\n2,200\n2,201\n2,199\n4,380\n4,399\n4,402\n",
    ],
    ids=["speedups", "over eight", "slower than its base", "two states", "one disturbed run"],
)
def test_a_page_has_the_base_of_fit_and_its_laws_meet_the_points(text: str) -> None:
    found, own = analysed(text), fit_series(parse_points(text, "my.csv"))[""]

    rates = parse_points(text, "my.csv").groupby("workers")["samples_per_s"].median()
    points = found.points.set_index("workers")
    assert points["speedup_wrapped"].to_dict() == pytest.approx((rates / own.base_samples_per_s).to_dict())
    assert (points["efficiency_wrapped"] * points.index).to_dict() == pytest.approx(points["speedup_wrapped"].to_dict())
    (told,) = found.fits["series"].values()
    for law in ("linear", "amdahl", "usl"):
        assert told["laws"][law]["params"] == pytest.approx(dict(own.fits[law].params_), rel=1e-5, abs=1e-5)
    taken = any("no row of one worker" in doubt for doubt in found.provenance["doubts"])
    assert taken == (own.base_samples_per_s == 1 / 8) == bool("8 workers" in told["baseline"])


@pytest.mark.slow
def test_the_page_of_a_given_base_names_it(tmp_path: Path) -> None:
    place = tmp_path / "mine.csv"
    place.write_text("GPUs,speedup\n4,3.5\n8,6.4\n16,11.0\n32,17.2\n")
    page = re.sub(r"<script.*?</script>", "", html.render(api.analyze(place)), flags=re.DOTALL)

    assert "Baseline (wrapped): the table&#39;s own base" in page and "one of 4 workers" not in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ranks,speedup\n1,1\n2,7\n8,60\n", "a speedup of 60 with 8 workers"),
        ("workers,samples_per_s\n1,1e4\n2,1.9e4\n4,1e13\n", "no worker does more than 1e9 a second"),
        ("GPUs,img/s,batch/GPU,sync (s)\n1,100,64,0\n2,190,64,0.9\n4,360,64,0.1\n", "a step of 2 workers"),
        ("GPUs,img/s\n1,50\n16,508\n32,835\n64,967\n128,937\n192,870\n", "largest at 64 workers and 10 % lower"),
    ],
    ids=["speedup", "rate", "part", "fall"],
)
def test_what_cannot_be_is_a_doubt_of_the_page(text: str, told: str) -> None:
    columns = {"sync_s": "sync (s)"} if "sync" in text else None
    frame = parse_points(text.replace("1e13", "3e4").replace("0.9", "0.1"), "my.csv", columns=columns)
    if "1e13" in text:  # which the reader of tables would refuse, as it would leave out the other
        frame.loc[2, "samples_per_s"] = 1e13
    if columns:
        frame.loc[1, "sync_s"] = 0.9
    found = analyze(exchange.run_rows(frame, "my"))

    own = frame.attrs["doubts"] if "sync" in text else ()  # the wait is left out where the table is read
    assert [told in doubt for doubt in (*found.provenance["doubts"], *own)].count(True) == 1
    empty = found.points.loc[found.points["speedup_wrapped"].isna(), "workers"].tolist()
    assert empty == ([2, 8] if "ranks" in text else [4] if "1e13" in text else [])
    assert any(told in doubt for one in fit_series(frame).values() for doubt in one.doubts)
    assert found.curves.empty == ("largest" not in told) and found.forecast.empty == bool(empty)
    assert any(told in doubt for doubt in predict(frame, workers=[300])[""][0].doubts) or "largest" in told


@pytest.mark.slow
def test_strong_and_weak_scaling_have_the_row_of_one_worker_each() -> None:
    text = "series,GPUs,batch/GPU,img/s\n" + "".join(
        f"{name},{count},{batch},{rate}\n"
        for name, rates in (("strong", (500, 820, 1200, 1450)), ("weak", (500, 960, 1850, 3500)))
        for count, rate in zip((1, 2, 4, 8), rates, strict=True)
        for batch in (64 // count if name == "strong" else 64,)
    )
    found = analysed(text)

    for name, speedups in (("strong", [1, 1.64, 2.4, 2.9]), ("weak", [1, 1.92, 3.7, 7])):
        rows = found.points[found.points["partition"] == name]
        assert rows["mode"].unique().tolist() == [name]
        assert rows.sort_values("workers")["speedup_wrapped"].tolist() == pytest.approx(speedups)
    assert [fit["mode"] for fit in found.fits["series"].values()] == ["strong", "weak"]


def test_how_it_was_read_is_a_doubt() -> None:
    told = exchange.doubts(parse_points("GPUs,epoch time (s),remark\n1,8,x\n2,4,y\n", "my.csv"))

    assert "workers = GPUs" in told[0] and "'remark' not used" in told[1]


EXACT = {"ideal": lambda n: n, "flat": lambda n: 1.0, "usl": lambda n: n / (1 + 0.02 * (n - 1) + 0.001 * n * (n - 1))}


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(
    counts=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32, 128]), min_size=2, max_size=5, unique=True),
    law=st.sampled_from(sorted(EXACT)),
    scale=st.sampled_from([1e-6, 1.0, 1e9]),
    digits=st.sampled_from([3, 17]),
    batches=st.sampled_from([(), (32, 64, 128)]),
)
@example(counts=[1, 2, 8], law="ideal", scale=1.0, digits=3, batches=(32, 64, 128))
@example(counts=[3, 4, 6], law="ideal", scale=1e-6, digits=17, batches=(32, 64, 128))
@example(counts=[1, 2, 4], law="usl", scale=1.0, digits=17, batches=())
def test_numbers_without_noise_have_a_report_like_any(
    counts: list[int], law: str, scale: float, digits: int, batches: tuple[int, ...]
) -> None:
    """Laws meet such points exactly, so that nothing scatters; what overflows or divides by it is an error here."""
    head = "workers,samples_per_s" + ",batch_size" * bool(batches)
    rows = [(count, f"{EXACT[law](count) * scale:.{digits}g}", *more) for count in counts for more in _each(batches)]
    found = analysed("\n".join([head, *(",".join(map(str, row)) for row in rows)]))

    assert sorted(set(found.points["workers"])) == sorted(counts)


def _each(batches: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(batch,) for batch in batches] or [()]


@pytest.mark.slow
def test_a_page_says_the_unit_of_the_table(tmp_path: Path) -> None:
    place = tmp_path / "llm.csv"
    place.write_text("GPUs,tokens/s/GPU,batch/GPU\n8,3100,4\n8,3150,8\n16,3020,4\n16,3100,8\n32,2950,4\n64,2800,4\n")
    analysis = api.analyze(place)
    page = re.sub(r"<script.*?</script>", "", html.render(analysis), flags=re.DOTALL)

    assert analysis.rate_unit == "tokens/s" and page.count("tokens/s") > 10 and "samples/s" not in page


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_report_ends_with_the_answer_everywhere_and_has_the_files_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*more: str) -> list[str]:
        assert main(["report", "mine.csv", *more]) == 0
        return capsys.readouterr().out.splitlines()

    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(table())
    answer, files = told(), told("--files")
    (document,) = told("--json")
    assert told("--tables")[0].startswith("tables: mine-report (")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert told()[:-1] == answer[:-1] == json.loads(document)["answer"]
    assert answer[-1].startswith("report: mine-report/report.html ")
    assert all(Path(name).is_file() for name in files)
    assert files[0] == "mine-report/report.html" and set(json.loads(document)["files"]) <= set(files)
    assert len(answer) < 20 and len(set(files)) == len(files) > 10
    assert not any(line.startswith("cost:") for line in answer)
    assert main(["report", "mine.csv", "--check", "--files"]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_file_is_checked_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(table(head="N,img/s"))

    assert main(["report", "mine.csv", "--columns", "workers=N"]) == 0
    page = Path("mine-report/report.html").read_text()
    assert "No run was recorded" in page and "as fast as one worker, an efficiency of 74" in page
    assert main(["report", "mine-report", "--check"]) == 0
    Path("mine.csv").write_text(table(head="N,img/s").replace("690", "691"))
    assert main(["report", "mine.csv", "--check"]) == 1
    assert "cell-differs" in capsys.readouterr().out
    assert main(["report", "mine.csv"]) == 0, "a changed table is analysed again, its columns as before"
    assert main(["report", "mine-report", "--check"]) == 0
    assert main(["report", "mine.csv", "--tables", "--columns", "workers=N"]) == 0
    for words in (
        ["report", "mine.csv", "--paper"],
        ["report", "mine.csv", "--target", "1"],
        ["report", "mine.csv", "--export", "zip"],
    ):
        assert main(words) == 2
        assert "is about runs, and mine.csv holds none" in capsys.readouterr().err
    assert main(["report", "mine-report", "--columns", "workers=N"]) == 2


@pytest.mark.parametrize(("text", "said"), [("GPUs,img/s\n8,6531\n", False), ("GPUs,img/s\n1,900\n", True)])
def test_a_table_of_one_count_of_several_workers_has_no_speedup_and_says_so(text: str, said: bool) -> None:
    found = analysed(text)

    assert found.points["speedup_wrapped"].notna().tolist() == [said]
    told = [doubt for doubt in found.provenance["doubts"] if "no speedup is given" in doubt]
    assert len(told) == (not said) and not any("times as fast" in doubt for doubt in found.provenance["doubts"])
