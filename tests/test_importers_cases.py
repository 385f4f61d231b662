"""Tables of papers and programs with known answers: how each is read, or what is asked."""

import re

import pytest

from horovod_study.analysis.importers import parse_columns, parse_points
from horovod_study.errors import DataError

STRONG = {1: 500, 2: 820, 4: 1200, 8: 1450}
WEAK = {1: 500, 2: 960, 4: 1850, 8: 3500}
ONE = {1: 210.0, 2: 409.5, 4: 789.6}
ROWS = (("1", "210.0"), ("2", "409.5"), ("4", "789.6"))

READ: dict[str, tuple[str, dict[str, dict[int, float]], str]] = {
    # --- the base of a speedup
    "a speedup without a row of one worker": ("GPUs,speedup\n4,3.5\n8,6.4\n", {"": {4: 3.5, 8: 6.4}}, ""),
    "a dash in the row of the base": (
        "| GPUs | speedup |\n|---|---|\n| 1 | - |\n| 2 | 1.9 |\n",
        {"": {1: 1, 2: 1.9}},
        "",
    ),
    "a dash in the base of an efficiency": ("nodes;scaling efficiency\n1;—\n2;95 %\n", {"": {1: 1, 2: 1.9}}, ""),
    "a dash that is no base": ("GPUs,speedup\n1,-\n2,1.0\n4,1.9\n", {"": {2: 1, 4: 1.9}}, "line 2"),
    "relative to four": ("GPUs,speedup\n4,1\n8,1.9\n", {"": {4: 1, 8: 1.9}}, ""),
    "a speedup with commas": ("GPUs\tspeedup\n1\t1,000\n2\t1,912\n", {"": {1: 1, 2: 1.912}}, ""),
    "one worker that is not 1": ("GPUs,speedup\n1,0.9\n2,1.7\n", {"": {1: 0.9, 2: 1.7}}, "speedup of 0.9"),
    "far above the workers": ("ranks,speedup\n1,1\n2,7\n", {"": {1: 1, 2: 7}}, "speedup of 7 with 2 workers"),
    # --- configurations
    "a column of batches": (
        "GPUs,batch,img/s\n1,32,300\n2,32,480\n1,64,400\n2,64,720\n",
        {"batch 32": {1: 300, 2: 480}, "batch 64": {1: 400, 2: 720}},
        "",
    ),
    "lengths of sequences in any order, with seeds": (
        "seed,tok/s,GPUs,sequence length\n"
        + "".join(
            f"{seed},{rate * 0.9 ** (count - 1) * count},{count},{length}\n"
            for seed in (1, 7)
            for count in (2, 1)
            for length, rate in ((512, 900), (4096, 600))
        ),
        {"sequence length 512": {1: 900, 2: 1620}, "sequence length 4096": {1: 600, 2: 1080}},
        "",
    ),
    "two strong scalings": (
        "workers,batch_size,samples_per_s\n1,64,500\n2,32,820\n1,128,600\n2,64,1100\n",
        {"global batch 64": {1: 500, 2: 820}, "global batch 128": {1: 600, 2: 1100}},
        "",
    ),
    "seeds stay repeats": ("GPUs,seed,img/s\n1,3,100\n1,5,101\n2,3,190\n2,5,191\n", {"": {1: 100.5, 2: 190.5}}, ""),
    "dates stay repeats": (
        "GPUs,date,img/s\n1,2024-05-01,100\n1,2024-05-02,140\n2,2024-05-01,190\n2,2024-05-02,270\n",
        {"": {1: 120, 2: 230}},
        "",
    ),
    "numbers of runs stay repeats, and it is said": (
        "GPUs,k,img/s\n1,0,100\n1,1,101\n2,0,190\n2,1,191\n",
        {"": {1: 100.5, 2: 190.5}},
        "differ in 'k'",
    ),
    "names that stand once for several rows": (
        "model,GPUs,img/s\nvgg,1,50\n,2,90\nbert,1,20\n,2,38\n",
        {"vgg": {1: 50, 2: 90}, "bert": {1: 20, 2: 38}},
        "",
    ),
    "batches, and one row of another": (
        "GPUs,batch/GPU,img/s\n1,64,100\n1,128,120\n2,64,190\n2,128,230\n2,32,150\n",
        {"batch/GPU 64": {1: 100, 2: 190}, "batch/GPU 128": {1: 120, 2: 230}, "batch/GPU 32": {2: 150}},
        "",
    ),
    "batches of all": (
        "GPUs,global batch,img/s\n1,64,100\n1,128,120\n2,64,170\n2,128,230\n4,64,270\n4,128,440\n",
        {"global batch 64": {1: 100, 2: 170, 4: 270}, "global batch 128": {1: 120, 2: 230, 4: 440}},
        "",
    ),
    "words that change midway": (
        "GPUs,precision,img/s\n1,fp32,100\n2,fp32,190\n4,fp16,800\n8,fp16,1500\n",
        {"fp32": {1: 100, 2: 190}, "fp16": {4: 800, 8: 1500}},
        "",
    ),
    "numbers that change midway": (
        "GPUs,seq len,img/s\n1,2048,100\n2,2048,190\n4,1024,800\n8,1024,1500\n",
        {"": {1: 100, 2: 190, 4: 800, 8: 1500}},
        "'seq len' changes",
    ),
    "runs that are words": (
        "GPUs,run,img/s\n1,fp32,100\n2,fp32,190\n1,fp16,180\n2,fp16,350\n",
        {"fp32": {1: 100, 2: 190}, "fp16": {1: 180, 2: 350}},
        "",
    ),
    "runs that are columns": ("GPUs,run1,run2\n1,100,102\n2,190,192\n", {"": {1: 101, 2: 191}}, ""),
    # --- strong and weak
    "strong and weak": (
        "workers,batch_size,samples_per_s\n1,64,500\n2,32,820\n4,16,1200\n8,8,1450\n2,64,960\n4,64,1850\n8,64,3500\n",
        {"strong": STRONG, "weak": WEAK},
        "",
    ),
    "strong and weak by the total batch": (
        "GPUs,global batch,img/s\n8,64,1450\n1,64,500\n2,128,960\n2,64,820\n4,256,1850\n4,64,1200\n8,512,3500\n",
        {"strong": STRONG, "weak": WEAK},
        "",
    ),
    "strong and weak of a model with repeats": (
        "model,GPUs,batch/GPU,img/s\n"
        + "".join(
            f"vgg,{count},{64 // (count if kind == 'strong' else 1)},{rate + more}\n"
            for more in (-1, 1)
            for kind, of in (("strong", STRONG), ("weak", {2: 960, 4: 1850}))
            for count, rate in of.items()
        ),
        {"vgg strong": STRONG, "vgg weak": {1: 500, 2: 960, 4: 1850}},
        "",
    ),
    # --- nodes and gpus
    "gpus of a node": (
        "nodes,gpus,img/s\n1,1,150\n2,1,294\n1,4,570\n4,4,2100\n",
        {"": {1: 150, 2: 294, 4: 570, 16: 2100}},
        "",
    ),
    "full nodes": ("nodes;gpus;epoch time (s)\n1;8;100\n4;8;27\n", {"": {8: 0.01, 32: 1 / 27}}, ""),
    "fewer gpus than nodes": ("nodes,gpus,img/s/GPU\n1,1,150\n2,1,147\n4,1,140\n", {"": {1: 150, 2: 294, 4: 560}}, ""),
    "gpus of all nodes": ("nodes,gpus,img/s\n1,8,2400\n2,16,4600\n", {"": {8: 2400, 16: 4600}}, ""),
    "gpus on more nodes": ("nodes,gpus,img/s\n1,4,570\n2,4,560\n2,8,1100\n", {"": {4: 565, 8: 1100}}, ""),
    # --- cells
    "prefixes and units": (
        "GPUs,throughput\n1,450 tok/s\n2,880 tok/s\n4,1.7k tok/s\n",
        {"": {1: 450, 2: 880, 4: 1700}},
        "",
    ),
    "220k and 1.2M": (
        "GPUs,tokens/s\n2x A100,220k\n8x A100,820K\n16x A100,1.2M\n",
        {"": {2: 220e3, 8: 820e3, 16: 1.2e6}},
        "",
    ),
    "minutes, seconds, OOM": (
        "| GPUs | time per epoch |\n|---|---|\n| 1 | 16 min |\n| 2 | 8.5 min |\n| 4 | 4 min 40 s |\n| 8 | OOM |\n",
        {"": {1: 1 / 960, 2: 1 / 510, 4: 1 / 280}},
        "line 6 (8 GPUs, 'OOM')",
    ),
    "times of day": (
        "GPUs,epoch time\n1,1:04:00\n2,33:20\n4,0:17:30\n",
        {"": {1: 1 / 3840, 2: 1 / 2000, 4: 1 / 1050}},
        "",
    ),
    "ms in one cell": (
        "GPUs,global batch,step time\n1,64,1.2 s ± 0.1 s\n2,64,640 ms\n",
        {"": {1: 64 / 1.2, 2: 100}},
        "",
    ),
    "a rate of steps": ("GPUs,batch/GPU,speed\n1,32,2 it/s\n2,32,1.9 it/s\n", {"": {1: 64, 2: 121.6}}, ""),
    "a rate a minute": ("GPUs,images/min\n1,6000\n2,11400\n", {"": {1: 100, 2: 190}}, ""),
    "a state": (
        "GPUs,img/s,state\n1,100,COMPLETED\n2,190,COMPLETED\n4,20,TIMEOUT\n",
        {"": {1: 100, 2: 190}},
        "TIMEOUT",
    ),
    "remarks": ("GPUs,img/s\n1,**100** (base)\n2,~190*\n4,n/a\n", {"": {1: 100, 2: 190}}, "'n/a'"),
    "a spread before the unit": ("GPUs,throughput\n1,100 ± 2 img/s\n2,190 ± 3 img/s\n", {"": {1: 100, 2: 190}}, ""),
    "a comma beside long numbers": (
        "GPUs\tepoch time (s)\n1\t1906\n2\t963,5\n",
        {"": {1: 1 / 1906, 2: 1 / 963.5}},
        "",
    ),
    "shares and per cent": ("GPUs,efficiency (%)\n1,100\n2,98\n", {"": {1: 1, 2: 1.96}}, ""),
    "an efficiency without a kind": ("GPUs,efficiency\n1,1\n2,0.98\n", {"": {1: 1, 2: 1.96}}, ""),
    "per cent in head and cells": ("GPUs,efficiency (%)\n1,100 %\n2,98 %\n", {"": {1: 1, 2: 1.96}}, ""),
    "a speedup of 190 %": ("GPUs,speedup\n1,100%\n2,190%\n", {"": {1: 1, 2: 1.9}}, ""),
    "a relative throughput in per cent": ("GPUs,relative throughput (%)\n1,100\n2,190\n", {"": {1: 1, 2: 1.9}}, ""),
    "billions a day": ("GPUs,B tokens/day\n1,8.64\n2,17\n", {"": {1: 1e5, 2: 17e9 / 86400}}, ""),
    "a decimal comma of another column": (
        "GPUs;img/s;hours\n1;1.250;1,05\n2;2.400;0,92\n",
        {"": {1: 1250, 2: 2400}},
        "",
    ),
    "hh:mm in the head": ("GPUs,epoch time (hh:mm)\n1,16:30\n2,8:20\n", {"": {1: 1 / 59400, 2: 1 / 30000}}, ""),
    # --- forms
    "a grid": (
        "+------+---------+\n| GPUs | img/s   |\n+======+=========+\n"
        + "".join(f"| {n}    | {x}   |\n+------+---------+\n" for n, x in ROWS),
        {"": ONE},
        "",
    ),
    "spaces": ("GPUs     img/s\n" + "".join(f"   {n}     {x}\n" for n, x in ROWS), {"": ONE}, ""),
    "one space": ("GPUs img/s\n" + "".join(f"{n} {x}\n" for n, x in ROWS), {"": ONE}, ""),
    "pandas": (
        "   GPUs  img/s\n"
        + "".join(f"{at}     {n}  {x}\n" for at, (n, x) in enumerate(ROWS))
        + "\n[3 rows x 2 columns]\n",
        {"": ONE},
        "",
    ),
    "pandas with a named index": (
        "      img/s\nGPUs       \n" + "".join(f"{n}     {x}\n" for n, x in ROWS),
        {"": ONE},
        "",
    ),
    "psql": (
        " GPUs | img/s \n------+-------\n" + "".join(f"    {n} | {x}\n" for n, x in ROWS) + "(3 rows)\n",
        {"": ONE},
        "",
    ),
    "mysql": (
        "+------+-------+\n| GPUs | img/s |\n+------+-------+\n"
        + "".join(f"|    {n} | {x} |\n" for n, x in ROWS)
        + "+------+-------+\n3 rows in set (0.00 sec)\n",
        {"": ONE},
        "",
    ),
    "rich": (
        "     Scaling\n┏━━━━━━┳━━━━━━━┓\n┃ GPUs ┃ img/s ┃\n┡━━━━━━╇━━━━━━━┩\n"
        + "".join(f"│ {n}    │ {x} │\n" for n, x in ROWS)
        + "└──────┴───────┘\n",
        {"": ONE},
        "",
    ),
    "JUBE": (
        "result:\n| GPUs | img/s |\n|------|-------|\n" + "".join(f"|    {n} | {x} |\n" for n, x in ROWS),
        {"": ONE},
        "",
    ),
    "reStructuredText": (
        "====  =====\nGPUs  img/s\n====  =====\n" + "".join(f"{n}     {x}\n" for n, x in ROWS) + "====  =====\n",
        {"": ONE},
        "",
    ),
    "Markdown without bars at its ends": (
        "GPUs | img/s\n---|---\n" + "".join(f"{n} | {x}\n" for n, x in ROWS),
        {"": ONE},
        "",
    ),
    "sacct": (
        "".join(
            f"{job:>12} {tasks:>8} {rate:>6} {state:>10}\n"
            for job, tasks, rate, state in (
                ("JobID", "NTasks", "img/s", "State"),
                ("-" * 12, "-" * 8, "-" * 6, "-" * 10),
                ("12", "1", "210.0", "COMPLETED"),
                ("13", "2", "409.5", "COMPLETED"),
                ("14", "4", "", "FAILED"),
            )
        ),
        {"": {1: 210.0, 2: 409.5}},
        "line 5",
    ),
    # --- wide
    "counts that are names of rows": (
        "GPUs,32,64\n1,100,120\n2,190,230\n4,370,440\n",
        {"32": {1: 100, 2: 190, 4: 370}, "64": {1: 120, 2: 230, 4: 440}},
        "",
    ),
    "counts and units in the names": (
        "model,1 GPU img/s,8 GPU img/s\nvgg,50,330\nbert,9,70\n",
        {"vgg": {1: 50, 8: 330}, "bert": {1: 9, 8: 70}},
        "",
    ),
    "a column a node": (
        "model,1 node,2 nodes\nvgg,50,93\nbert,9,17\n",
        {"vgg": {1: 50, 2: 93}, "bert": {1: 9, 2: 17}},
        "",
    ),
    "a column a model": (
        "GPUs,resnet50,vgg16\n1,310,190\n2,600,330\n8,2200,900\n",
        {"resnet50": {1: 310, 2: 600, 8: 2200}, "vgg16": {1: 190, 2: 330, 8: 900}},
        "",
    ),
    "a column a count": (
        "| model | 1 GPU | 2 GPUs | 4 GPUs |\n|---|---|---|---|\n| resnet50 | 310 | 600 | 1,150 |\n"
        "| vgg16 | 190 | 330 | 560.5 |\n",
        {"resnet50": {1: 310, 2: 600, 4: 1150}, "vgg16": {1: 190, 2: 330, 4: 560.5}},
        "",
    ),
    "numbers as names": ("GPUs,1,2,4\nimg/s,310,600,1150\nloss,2.1,2.2,2.1\n", {"": {1: 310, 2: 600, 4: 1150}}, "loss"),
    "rates that say of what": (
        "fp32 img/s;GPUs;amp img/s\n100;1;210\n190;2;400\n",
        {"fp32": {1: 100, 2: 190}, "amp": {1: 210, 2: 400}},
        "",
    ),
    "speedups in cells": (
        "GPUs,a,b\n1,1x,1x\n2,1.9x,1.8x\n4,OOM,3.1x\n",
        {"a": {1: 1, 2: 1.9}, "b": {1: 1, 2: 1.8, 4: 3.1}},
        "OOM",
    ),
    "times in the corner": (
        "epoch time (min),1 GPU,2 GPUs\nbert,60,31\ngpt,30,16\n",
        {"bert": {1: 1 / 3600, 2: 1 / 1860}, "gpt": {1: 1 / 1800, 2: 1 / 960}},
        "",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_table_is_read_to_what_it_says(name: str) -> None:
    """Medians of each series at each count; the third is a part of the doubts."""
    text, truth, doubt = READ[name]
    frame = parse_points(text, "t")

    series = frame["series"] if "series" in frame else frame["workers"].astype(str).str.slice(0, 0)
    medians = frame.groupby([series.to_numpy(), "workers"])["samples_per_s"].median()
    found = {
        str(of): {n: float(x) for n, x in medians[of].items()} for of in medians.index.get_level_values(0).unique()
    }
    assert found.keys() == truth.keys()
    assert all(found[of] == pytest.approx(truth[of]) for of in truth)
    assert doubt in " ".join(frame.attrs["doubts"])


REFUSED = {
    "nodes that tell nothing": ("nodes,gpus,img/s/GPU\n1,8,100\n2,8,99\n", "--columns 'workers_per_node=gpus'"),
    "nodes that are empty": ("nodes,gpus,img/s\n1,8,100\n2,8,190\n,8,380\n", "line 4: nodes are empty"),
    "nodes of two minds": ("nodes,gpus,img/s\n1,8,100\n2,8,112\n", "--columns 'workers=gpus'"),
    "nodes far too fast": ("nodes,gpus,img/s\n1,2,100\n2,4,380\n", "may be the workers of a node or of all"),
    "configurations at some counts": (
        "GPUs,depth,img/s\n1,50,100\n2,50,190\n4,50,370\n2,101,120\n4,101,230\n",
        "'series=depth'",
    ),
    "words at some counts": (
        "GPUs,precision,img/s\n1,fp32,100\n2,fp32,190\n4,fp32,370\n4,fp16,800\n",
        "'series=precision'",
    ),
    "a batch of 4k": ("GPUs,global batch,step time (s)\n1,4k,1\n2,4k,2\n", "global batch is '4k'"),
    "hours or minutes": ("GPUs,epoch time\n1,16:30\n2,8:20\n", "epoch time is '16:30'"),
    "280 of what": ("GPUs,epoch time\n1,16 min\n2,280\n", "epoch time is '280'"),
    "machines of several GPUs": ("GPUs,img/s\n1x DGX A100,100\n2x DGX A100,190\n", "GPUs is '1x DGX A100'"),
    "two prefixes": ("GPUs,ktok/s\n1,1.7k\n2,3.3k\n", "ktok/s is '1.7k'"),
    "a prefix of the spread": ("GPUs,img/s\n1,1.7 ± 0.1k\n2,3.3 ± 0.1k\n", "img/s is '1.7 ± 0.1k'"),
    "times with one comma": ("GPUs\tstep time (ms)\n1\t1,906\n2\t1,963\n", "thousands or decimals"),
    "rates with a point": ("GPUs;img/s\n1;880\n2;1.700\n", "thousands or decimals"),
    "rates with one comma and semicolons": ("GPUs;img/s\n1;1,700\n2;3,300\n", "thousands or decimals"),
    "a rate that cannot be": ("GPUs,tokens/s\n1,3e12\n2,5e12\n", "no worker does more"),
    "tokens and images": ("GPUs,throughput\n1,450 tok/s\n2,88 img/s\n", "throughput is '450 tok/s'"),
    "no form": ("Results of our runs\nwith many GPUs\nwere good\n", "two spaces, or JSON"),
    "two tables": (
        "| GPUs | img/s |\n|---|---|\n| 1 | 2 |\n\nWith AMP:\n\n| GPUs | img/s |\n|---|---|\n| 1 | 3 |\n",
        "second table",
    ),
    "wide times": ("GPUs,a,b\n1,100,50\n2,52,26\n4,30,14\n", "step_s=values"),
    "1 at eight workers, for one system": ("system,GPUs,speedup\nddp,8,1\nhvd,8,1.1\n", "line 2.*relative to which"),
    "1 in the middle": ("GPUs,speedup\n8,0.52\n16,1\n32,1.9\n", "line 3.*relative to which"),
    "names and rows are numbers": (",32,64,128\n1,100,120,130\n2,190,230,250\n", "column of workers"),
    "shares beside percentages": ("GPUs,efficiency\n1,1\n2,0.98\n4,95\n", "shares or percentages"),
    "shares below a %": ("GPUs,efficiency (%)\n1,1\n2,0.98\n", "shares or percentages"),
    "per cent without 100": ("GPUs,speedup (%)\n1,1\n2,90\n", "no 100 %"),
    "thousands in the head": ("GPUs,x1000 samples/s\n1,1.2\n2,2.2\n", "'samples_per_s' is missing"),
    "powers in the head": ("GPUs,a 10³ img/s,b 10³ img/s\n1,1.2,1.3\n2,2.2,2.3\n", "'samples_per_s' is missing"),
    "settings alone": ("gpus,lr,total bs\n1,0.1,256\n2,0.2,512\n4,0.4,1024\n", "'samples_per_s' is missing"),
    "epochs of more samples": ("GPUs,samples,epoch time (s)\n1,1000,10\n2,2000,11\n", "'samples' over 'epoch time"),
    "scaling": ("GPUs,scaling\n1,1\n2,1.9\n", "efficiency=scaling"),
    "three units": ("GPUs,A (img/s),B (seq/s),C (k tok/s)\n1,9,5,3\n2,17,9,5\n", r"A \(img/s\), B \(seq/s\) and C"),
    "seconds of a count": ("model,1 GPU (s),2 GPUs (s)\na,100,52\nb,80,41\n", r"'step_s=time \(s\)'"),
    "time to train": ("GPUs,time to train (min)\n1,100\n2,52\n", "'epoch_s=time to train"),
    "times with a comma that are divided": ("GPUs\tstep time (ms)\n1\t1906\n2\t963,5\n", "global_batch=NAME"),
    "numbers without names": ("1,2,4\n100,190,370\n", "'workers' is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_be_read_in_two_ways_is_asked(name: str) -> None:
    text, asked = REFUSED[name]
    with pytest.raises(DataError) as caught:
        parse_points(text, "t")

    assert "\n" not in str(caught.value) and re.search(asked, str(caught.value))


@pytest.mark.parametrize(
    ("text", "columns", "truth"),
    [
        ("nodes,gpus,img/s/GPU\n1,8,100\n2,8,99\n", "workers_per_node=gpus", {8: 800, 16: 1584}),
        ("nodes,gpus,img/s\n1,4,100\n2,4,112\n2,8,200\n", "workers=gpus", {4: 106, 8: 200}),
        ("GPUs,a,b\n1,100,100\n2,50,50\n", "epoch_s=values", {1: 0.01, 2: 0.02}),
        ("GPUs,batch,img/s\n1,32,100\n2,32,190\n", "batch_size=batch", {1: 100, 2: 190}),
    ],
)
def test_what_was_asked_can_be_said(text: str, columns: str, truth: dict[int, float]) -> None:
    frame = parse_points(text, "t", parse_columns([columns]))

    assert frame.groupby("workers")["samples_per_s"].median().to_dict() == pytest.approx(truth)


def test_batches_that_are_named_are_series_of_weak_scaling() -> None:
    text = "GPUs,batch,img/s\n1,32,300\n2,32,480\n1,64,400\n2,64,720\n"
    frame = parse_points(text, "t", {"batch_size": "batch"})

    assert frame["series"].tolist() == ["batch 32"] * 2 + ["batch 64"] * 2
    assert "series = batch" in frame.attrs["read"] and frame["batch_size"].tolist() == [32, 32, 64, 64]


def test_a_part_that_is_larger_than_its_step_is_left_out_and_said() -> None:
    frame = parse_points("workers,samples_per_s,batch_size,sync_s\n1,100,10,0.01\n2,190,10,5\n", "t")

    assert frame["sync_s"].isna().tolist() == [False, True] and "synchronisation of 5" in frame.attrs["doubts"][0]
