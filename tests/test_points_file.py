"""A user's points file: what is read, and one line for every way to get it wrong."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.synthetic_runs import run_table
from make.synthetic_study import write_study

from horovod_study import api
from horovod_study.analysis.importers import parse_columns, parse_points
from horovod_study.analysis.series.points import cores_of_one_machine, with_series
from horovod_study.errors import DataError

HEAD = "workers,samples_per_s\n"
WAYS = (("serial", "none"), ("horovod", "mpi"))


def refused(text):
    with pytest.raises(DataError) as caught:
        parse_points(text, "my.csv")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("my.csv")
    return message


def test_all_columns():
    frame = parse_points(
        "series,repeat,workers,nodes,batch_size,sync_s,samples_per_s,workers_per_node\n"
        "alpha nccl,0,8,1,75,0.002,1234.5,8\n"
        "alpha nccl,,16,2,,,2400,\n",
        "my.csv",
    )
    expected = pd.DataFrame(
        {
            "workers": [8, 16],
            "samples_per_s": [1234.5, 2400.0],
            "nodes": [1.0, 2.0],
            "sync_s": [0.002, math.nan],
            "batch_size": [75.0, math.nan],
            "series": ["alpha nccl", "alpha nccl"],
            "repeat": [0.0, math.nan],
            "workers_per_node": [8.0, math.nan],
        }
    )
    pd.testing.assert_frame_equal(expected, frame)
    assert () == frame.attrs["doubts"]


@pytest.mark.parametrize(
    "text",
    [
        "workers,samples_per_s\n2,190\n1,100\n",
        "\ufeffworkers,samples_per_s\n2,190\n1,100\n",
        "workers,samples_per_s\r\n2,190\r\n1,100\r\n",
        " Workers , samples_per_s \n 2 , 190 \n\n# a remark\n1.0,1e2\n",
        '"workers","samples_per_s"\n"2","190"\n"1","100"',
    ],
)
def test_harmless_variations_of_the_same_file(text):
    frame = parse_points(text, "my.csv")
    assert [2, 1] == frame["workers"].tolist()
    assert [190.0, 100.0] == frame["samples_per_s"].tolist()


@given(
    st.lists(st.tuples(st.integers(1, 10_000_000), st.floats(1e-9, 1e15)), min_size=1, max_size=20),
    st.sampled_from(["workers,samples_per_s", "samples_per_s,workers"]),
)
def test_numbers_survive_the_round_trip(rows, header):
    swap = header.startswith("samples")
    lines = [f"{x!r},{n}" if swap else f"{n},{x!r}" for n, x in rows]
    frame = parse_points("\n".join([header, *lines]), "my.csv")
    assert rows == list(zip(frame["workers"].tolist(), frame["samples_per_s"].tolist(), strict=True))
    assert np.issubdtype(frame["workers"].dtype, np.integer)


class TestColumns:
    @pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", "# only a remark\n"])
    def test_empty(self, text, golden):
        golden(refused(text), "workers,samples_per_s")

    def test_header_only(self, golden):
        golden(refused(HEAD), "line 1")

    def test_missing(self, golden):
        message = refused("workers,nodes\n1,1\n")
        golden(message, "line 1", "samples_per_s", "workers,nodes")

    def test_numbers_without_names(self, golden):
        golden(refused("1,100\n2,190\n"), "workers", "1,100")

    @pytest.mark.parametrize(("name", "meant"), [("samples_per_z", "samples_per_s"), ("werkers", "workers")])
    def test_misspelt(self, name, meant):
        header = [name if column == meant else column for column in ("workers", "samples_per_s")]
        message = refused(",".join(header) + "\n1,1\n")
        assert f"column {meant!r} is missing" in message and f"did you mean {meant!r}" in message
        assert f"--columns {meant}=NAME" in message

    @pytest.mark.parametrize(("name", "meant"), [("nods", "nodes"), ("batch_sise", "batch_size")])
    def test_a_misspelt_optional_column_is_a_doubt(self, name, meant, golden):
        frame = parse_points(f"workers,samples_per_s,{name}\n1,100,1\n", "my.csv")
        (doubt,) = frame.attrs["doubts"]
        golden(doubt, name, meant)

    def test_unrelated_columns_are_left_aside_with_a_doubt(self, golden):
        frame = parse_points("workers,samples_per_s,task,workers_max\n1,100,x,8\n", "my.csv")
        assert ["workers", "samples_per_s"] == list(frame.columns)
        golden(frame.attrs["doubts"], "task", "workers_max")

    def test_twice(self):
        assert "column 'workers' appears 2 times" in refused("workers,samples_per_s,workers\n1,100,1\n")


class TestCells:
    @pytest.mark.parametrize("value", ["0", "-3", "nan", "NaN", "inf", "-inf", "fast", "", "1e400", "1e-300"])
    def test_throughput(self, value, golden):
        message = refused(HEAD + f"1,100\n2,{value}\n")
        golden(message, "my.csv line 3", "samples_per_s", value)

    @pytest.mark.parametrize("value", ["0", "-1", "1000000000000", "1e12", "2.5", "two", "", "nan", "inf"])
    def test_workers(self, value, golden):
        message = refused(HEAD + f"{value},100\n")
        golden(message, "my.csv line 2", value, "10000000")

    def test_decimal_comma(self, golden):
        golden(refused(HEAD + "1,100,5\n"), "line 2", "3 cells", "2 columns")
        assert [100.5] == parse_points(HEAD + '1,"100,5"\n', "my.csv")["samples_per_s"].tolist()

    def test_optional_cells(self, golden):
        golden(refused("workers,samples_per_s,nodes\n1,1,0\n"))
        golden(refused("workers,samples_per_s,sync_s\n1,1,-1\n"), "sync_s")
        golden(refused("workers,samples_per_s,batch_size\n1,1,0\n"), "batch_size")
        golden(refused("workers,samples_per_s,repeat\n1,1,x\n"))
        assert "3 nodes for 2 workers" in refused("workers,samples_per_s,nodes\n2,1,3\n")

    def test_line_numbers_count_blank_lines_and_remarks(self):
        assert "my.csv line 5: workers is 'x'" in refused("# points\n\n" + HEAD + "1,100\nx,3\n")

    def test_long_values_are_shortened(self):
        assert len(refused(HEAD + "1," + "9" * 3000 + "x\n")) < 300

    def test_not_text_at_all(self):
        assert "my.csv: is not a text file; save the table as CSV in UTF-8" == refused("\x00\x01\x02")


class TestDuplicates:
    def test_the_same_repeat_twice(self, golden):
        message = refused("workers,samples_per_s,repeat\n1,100,0\n2,190,0\n1,101,0\n")
        golden(message, "line 4", "repeat 0", "1 workers", "line 2")

    def test_repeats_of_different_series_and_nodes_do_not_clash(self):
        text = "workers,samples_per_s,repeat,series,nodes\n4,100,0,a,1\n4,100,0,b,1\n4,90,0,a,2\n4,100,1,a,1\n"
        assert 4 == len(parse_points(text, "my.csv"))

    def test_equal_lines_are_a_doubt(self, golden):
        frame = parse_points(HEAD + "1,100\n2,190\n1,100\n1,101\n", "my.csv")
        golden(frame.attrs["doubts"], "line 4", "my.csv")


@pytest.mark.parametrize("cell", ["1_0", "\uff11", "\u0664"])
def test_only_plain_digits_are_numbers(cell, golden):
    with golden.raises(DataError):
        parse_points(f"workers,samples_per_s\n{cell},100\n", "p.csv")


def test_workers_that_do_not_fit_on_their_nodes_are_doubted(golden):
    text = "workers,samples_per_s,nodes,workers_per_node\n4,370,1,4\n8,700,1,4\n9,700,2,4\n"
    doubts = parse_points(text, "p.csv").attrs["doubts"]
    golden(doubts, "line 3", "p.csv", "8 workers", "1 node", "4 workers", "1 more")


def test_thousands_of_unknown_columns_are_one_short_doubt(golden):
    names = ",".join(f"c{i}" for i in range(10_000))
    (doubt,) = parse_points(f"workers,samples_per_s,{names}\n1,100,{',' * 9999}\n", "p.csv").attrs["doubts"]
    golden(doubt, "c0", "c1", "c2", "c3", "c4", "9995 more")


def test_a_file_of_steps_is_refused(monkeypatch, golden):
    monkeypatch.setattr("horovod_study.analysis.importers.MAX_POINTS", 3)
    with golden.raises(DataError, match=r"p\.csv.*3 points"):
        parse_points("workers,samples_per_s\n" + "1,100\n" * 4, "p.csv")
    assert 3 == len(parse_points("workers,samples_per_s\n" + "1,100\n" * 3, "p.csv"))


def read(text, columns=None):
    """Workers and samples/s of a table, and what was said about how it was read."""
    frame = parse_points(text, "my.csv", columns)
    return frame["workers"].tolist(), frame["samples_per_s"].tolist(), frame.attrs["read"]


class TestTablesAsPeopleHaveThem:
    @pytest.mark.parametrize(
        "name",
        [
            "GPUs",
            "#GPUs",
            "num_gpus",
            "Number of GPUs",
            "world size",
            "np",
            "MPI processes",
            "TPU chips",
            "# A100 GPUs",
        ],
    )
    def test_names_of_workers(self, name):
        assert read(f"{name},img/s\n1,100\n2,190\n")[:2] == ([1, 2], [100, 190])

    @pytest.mark.parametrize(
        "name",
        [
            *("img/s", "images/sec", "Images per second", "samples_per_second", "Throughput (img/s)", "throughput"),
            *("tokens/s", "imgs_per_sec", "total img/sec", "sequences/s"),
        ],
    )
    def test_names_of_rates_of_all_workers(self, name):
        workers, rates, told = read(f"GPUs,{name}\n1,100\n2,190\n")
        assert (workers, rates) == ([1, 2], [100, 190])
        assert f"samples_per_s = {name}" in told and "workers = GPUs" in told

    @pytest.mark.parametrize(
        "name",
        ["tokens/s/GPU", "img/s per GPU", "samples/sec/device", "Throughput per GPU (img/s)", "tokens_per_s_per_gpu"],
    )
    def test_rates_of_one_worker_are_multiplied_and_it_is_said(self, name):
        workers, rates, told = read(f"GPUs,{name}\n1,100\n4,95\n")
        assert (workers, rates) == ([1, 4], [100, 380])
        assert f"{name} x workers" in told

    @pytest.mark.parametrize("name", ["energy efficiency", "std img/s", "images", "img/s/node", "TFLOPS/GPU", "loss"])
    def test_what_is_no_rate_of_workers_is_not_taken_for_one(self, name):
        assert "'samples_per_s' is missing" in refused(f"GPUs,{name}\n1,100\n")

    @pytest.mark.parametrize(
        ("name", "cell", "seconds"),
        [
            ("step time (ms)", "200", 0.2),
            ("step_time_ms", "200", 0.2),
            ("Iteration time [s]", "0.2", 0.2),
            ("ms/step", "200", 0.2),
            ("sec/it", "0.2", 0.2),
            ("time per step", "0.2", 0.2),
            ("batch time (us)", "2e5", 0.2),
        ],
    )
    def test_times_of_steps(self, name, cell, seconds, golden):
        _, rates, told = read(f"GPUs,batch/GPU,{name}\n4,32,{cell}\n")
        assert rates == [pytest.approx(4 * 32 / seconds)] and name in told
        assert read(f"GPUs,Global Batch Size,{name}\n4,32,{cell}\n")[1] == [pytest.approx(32 / seconds)]
        _, rates, told = read(f"GPUs,{name}\n4,{cell}\n")
        assert rates == [pytest.approx(4 / seconds)]
        golden(told)

    def test_a_batch_of_whom_is_asked_where_it_matters(self):
        table = "GPUs,batch,step time (s)\n4,32,2\n"
        assert "--columns 'batch_size=batch' or --columns 'global_batch=batch'" in refused(table)
        assert read(table, {"batch_size": "batch"})[1] == [64]
        assert read(table, {"global_batch": "batch"})[1] == [16]
        frame = parse_points("GPUs,batch,img/s\n4,32,2\n", "my.csv")
        assert "batch_size" not in frame and any("'batch'" in doubt for doubt in frame.attrs["doubts"])

    def test_times_of_epochs(self):
        workers, rates, told = read("nodes,GPUs per node,epoch time (min)\n1,8,2\n2,8,1\n")
        assert workers == [8, 16] and rates == pytest.approx([1 / 120, 1 / 60])
        assert "epochs/s" in told

    @pytest.mark.parametrize(
        "text",
        [
            "GPUs;img/s\n1;1234,5\n2;2400\n",
            "GPUs;img/s\n1;1.234,5\n2;2.400,0\n",
            "GPUs\timg/s\n1\t1,234.5\n2\t2,400\n",
            'GPUs,img/s\n1,"1,234.5"\n2,"2,400"\n',
            "GPUs;img/s\n1;1 234,5\n2;2 400\n",
            "GPUs;img/s\n1;1\u202f234,5\n2;2'400\n",
        ],
    )
    def test_separators_and_decimals(self, text):
        assert read(text)[:2] == ([1, 2], [1234.5, 2400])

    @pytest.mark.parametrize(
        ("cells", "rates", "told"),
        [
            (("0,333", "1,250"), [0.333, 1.25], "a comma marks decimals"),  # no thousands begin with 0
            (("1,250", "2,400"), [1250, 2400], "a comma separates thousands"),  # might be either, and is told
        ],
    )
    def test_three_digits_behind_a_comma(self, cells, rates, told):
        text = "GPUs\timg/s\n" + "".join(f"{place}\t{cell}\n" for place, cell in enumerate(cells, 1))
        assert read(text)[:2] == ([1, 2], rates)
        assert told in read(text)[2]

    def test_two_columns_that_may_be_meant_are_named(self):
        message = refused("GPUs,img/s,tokens/s\n1,1,1\n")
        assert "'img/s' and 'tokens/s'" in message and "--columns samples_per_s=" in message
        assert read("GPUs,img/s/GPU,img/s\n4,1,3.5\n")[1] == [3.5], "the total goes before the rate of one"
        assert read("GPUs,CPU cores,img/s\n4,64,3.5\n")[0] == [4]

    def test_columns_that_name_curves_are_joined(self):
        frame = parse_points("GPUs,model,framework,img/s\n1,vgg,torch,9\n1,vgg,jax,8\n", "my.csv")
        assert frame["series"].tolist() == ["vgg torch", "vgg jax"]

    def test_a_column_of_words_that_separates_rows_of_one_count_names_curves(self):
        text = "cluster,GPUs,img/s,remark\nA,8,9,x\nB,8,8,y\nA,16,17,z\nB,16,15,x\n"

        frame = parse_points(text, "my.csv")

        assert frame["series"].tolist() == ["A", "B", "A", "B"] and "series = cluster" in frame.attrs["read"]
        assert frame.attrs["doubts"] == ("column 'remark' not used",), "of a remark each row has its own"
        frame = parse_points(text, "my.csv", {"series": "remark"})
        assert frame["series"].tolist() == ["x", "y", "z", "x"], "what is said is not added to"
        assert "series" not in parse_points("GPUs,img/s,AMP\n8,9,yes\n16,17,no\n", "my.csv")

    def test_names_that_every_count_has_of_its_own_separate_nothing(self, golden):
        frame = parse_points("system,GPUs,img/s\ndgx_n1,8,9\ndgx_n2,16,17\n", "my.csv")
        assert "series" not in frame
        golden(frame.attrs["doubts"], "system")

    @pytest.mark.parametrize(
        ("name", "cells"),
        [
            ("img/s (± std)", ("100 ± 2", "190±1.5")),
            ("img/s", ("100 (+/- 2)", "190")),
            ("speedup", ("100x", "190 x")),
            ("scaling efficiency", ("100 %", "95 %")),
            ("Parallel efficiency (%)", ("100", "95")),
        ],
    )
    def test_values_with_their_spread_or_unit(self, name, cells):
        workers, rates, told = read(f"GPUs,{name}\n1,{cells[0]}\n2,{cells[1]}\n")
        assert workers == [1, 2] and rates[1] / rates[0] == pytest.approx(1.9)
        assert ("±" in told.split(";")[0]) == any(mark in cells[0] for mark in ("±", "+/-"))

    def test_a_time_of_what_is_asked(self):
        for name in ("Time (min)", "runtime_s", "Total training time [h]", "elapsed time"):
            message = refused(f"processes,{name}\n1,100\n2,52\n")
            assert f"--columns 'step_s={name}'" in message and f"--columns 'epoch_s={name}'" in message
        assert read("processes,Time (min)\n1,2\n2,1\n", {"epoch_s": "Time (min)"})[1] == [1 / 120, 1 / 60]

    def test_micro_batches_of_an_update(self):
        text = "gpus,per_device_train_batch_size,gradient_accumulation_steps,step time (ms)\n2,8,4,500\n4,8,2,500\n"

        frame = parse_points(text, "my.csv")

        assert frame["batch_size"].tolist() == [32, 16] and frame["samples_per_s"].tolist() == [128, 128]
        assert "batch_size = per_device_train_batch_size x gradient_accumulation_steps" in frame.attrs["read"]

    @pytest.mark.parametrize(
        ("text", "rates", "unit"),
        [
            ("GPUs,speedup\n1,1\n4,3.5\n", [1, 3.5], "speedup"),
            ("GPUs,speedup,img/s\n1,1,100\n4,3.5,350\n", [100, 350], "samples/s"),
            ("GPUs,epoch time (s)\n1,4\n4,1\n", [0.25, 1], "epochs/s"),
            ("GPUs,ktok/s/GPU\n1,4\n4,3\n", [4000, 12000], "tokens/s"),
            ("GPUs,seq/s\n1,4\n4,13\n", [4, 13], "samples/s"),
            ("GPUs,step time (s)\n1,0.5\n4,0.5\n", [2, 8], "batches/s"),
        ],
    )
    def test_what_is_no_rate_of_samples_has_its_own_unit(self, text, rates, unit):
        frame = parse_points(text, "my.csv")

        assert (frame["samples_per_s"].tolist(), frame.attrs["unit"]) == (rates, unit)

    @pytest.mark.parametrize(
        ("data", "told"),
        [
            ("GPUs,img/s\n1,100\n2,190.5\n".encode("utf-16"), "text in UTF-16"),
            ("GPUs;img/s;Größe\n1;100;x\n2;190,5;x\n".encode("cp1252"), "text in Windows-1252"),
            (b'\xef\xbb\xbf[{"GPUs": 1, "img/s": 100}, {"GPUs": 2, "img/s": 190.5, "note": null}]', "JSON of 2 rows"),
            (b'{"GPUs": 1, "img/s": 100}\n\n{"img/s": "190.5", "GPUs": 2}\n', "JSON of 2 rows"),
            (b'{"GPUs": [1, 2], "img/s": [100, 190.5]}', "JSON of 2 rows"),
            (b'{"GPUs": {"0": 1, "1": 2}, "img/s": {"0": 100, "1": 190.5}}', "JSON of 2 rows"),
            (b'{"model": "r50", "runs": [{"GPUs": 1, "img/s": 100}, {"GPUs": 2, "img/s": 190.5}]}', "JSON of 2 rows"),
        ],
    )
    def test_files_of_other_programs(self, data, told):
        frame = parse_points(data, "f")

        assert (frame["workers"].tolist(), frame["samples_per_s"].tolist()) == ([1, 2], [100, 190.5])
        assert frame.attrs["read"].startswith(told)

    @pytest.mark.parametrize(
        ("data", "where"),
        [
            (b"\xff\xfeG", ""),
            (b"workers,samples_per_s\n1,\0\xe4", ""),
            (b"[[1, 2], [3, 4]]", ""),
            (b"[]", ""),
            (b"{}", ""),
            (b'{"workers": ', "JSON"),
            (b"[" * 100_000, "JSON"),
            (b'[{"workers": 1, "samples_per_s": {"a": 2}}]', "samples_per_s"),
            (b'[{"workers": 1, "samples_per_s": 1}, {"workers": 2, "samples_per_s": "x"}]', "line 3"),
        ],
    )
    def test_what_holds_no_table_is_refused(self, data, where, golden):
        with golden.raises(DataError, match=re.escape(where) or None):
            parse_points(data, "f")

    def test_a_table_of_markdown(self):
        text = "| GPUs | img/s |\n|-----:|:------|\n| 1 | 1,100.5 |\n| 2 | 2,000 |\n"

        workers, rates, said = read(text)

        assert (workers, rates) == ([1, 2], [1100.5, 2000]) and said.startswith("'|' separates columns")

    def test_a_guessed_column_with_other_things_in_it_is_left_aside(self):
        frame = parse_points("GPUs,run,img/s\n1,first,9\n2,second,17\n", "my.csv")
        assert "repeat" not in frame and any("'run' not used" in doubt for doubt in frame.attrs["doubts"])

    def test_a_rate_that_does_not_grow_is_doubted(self):
        doubts = parse_points("GPUs,throughput\n1,100\n8,97\n", "my.csv").attrs["doubts"]
        assert any("--columns samples_per_s_per_worker=throughput" in doubt for doubt in doubts)

    def test_a_rate_of_which_is_told_whose_it_is_keeps_its_unit(self):
        frame = parse_points("GPUs,ktok/s\n1,4\n4,3\n", "f", columns={"samples_per_s_per_worker": "ktok/s"})

        assert (frame["samples_per_s"].tolist(), frame.attrs["unit"]) == ([4000, 12000], "tokens/s")

    def test_columns_that_are_told(self, golden):
        assert read("a;b\n1;2,5\n", parse_columns(["workers=a,samples_per_s=b"]))[:2] == ([1], [2.5])
        assert parse_columns(["workers=a", "step_s=s,x"]) == {"workers": "a", "step_s": "s,x"}
        for words in (["workers"], ["workers="], ["workers=a", "workers=b"]):
            with pytest.raises(DataError, match="--columns"):
                parse_columns(words)
        with golden.raises(DataError, match="workers"):
            read("a,b\n1,2\n", {"wrkers": "a"})
        with golden.raises(DataError):
            read("a,b\n1,2\n", {"workers": "c"})

    def test_a_table_in_the_names_of_the_package_is_read_without_a_word(self):
        assert read("workers,samples_per_s,GPUs\n1,100,8\n")[2] == ""


# ---------------------------------------------------------------------------------------------------- folders of runs


@pytest.mark.slow
def test_the_folder_of_a_study_has_the_points_of_its_analysis(tmp_path, golden):
    runs = write_study(
        tmp_path / "runs", partitions=("alpha", "local"), ways=WAYS, workers=(1, 2, 4), repeats=2, steps=60
    )
    points, found = api.read_points(runs), api.points_of(api.analyze(runs))

    pd.testing.assert_frame_equal(points[found.columns], found, check_dtype=False)
    own = points["series"].str.startswith("local")
    assert set(points.loc[own, "workers_per_node"]) == {4.0} and points.loc[~own, "workers_per_node"].isna().all()
    assert points.attrs["read"].startswith("12 finished runs")
    with golden.raises(DataError):
        api.read_points(runs, columns={"workers": "N"})


@pytest.mark.parametrize(
    ("changed", "cores"),
    [({}, 2), ({"device": "cuda"}, None), ({"partition": "gpu2"}, None), ({"nodes": 2}, None), ({"host": "ab"}, None)],
)
def test_the_cores_of_a_machine_count_where_it_is_one_and_its_processors_train(changed, cores):
    runs = run_table((1, 2), partition="local", failed=()).assign(device="cpu", cores=2, host="a", nodes=1)
    if changed == {"host": "ab"}:
        changed = {"host": np.where(runs["repeat"] > 0, "a", "b")}
    found = cores_of_one_machine(with_series(runs.assign(**changed)))

    assert set(found.values()) == ({cores} if cores else set())
