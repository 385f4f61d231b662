"""Data or model parallel: the arithmetic manually, and the counted activations against what PyTorch keeps."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import yaml
from make.wording import Golden

from horovod_study.analysis.costs import Link
from horovod_study.analysis.importers import benches_of
from horovod_study.analysis.machine.advice import (
    Case,
    Layer,
    LayeredModel,
    advise,
    case_of,
    cnn,
    layered_model,
    lines,
    network_of,
    rate_of_step,
)
from horovod_study.cli import main
from horovod_study.errors import AnalysisError, ConfigError
from horovod_study.recording.rank import facts
from horovod_study.strain.model import StressCNN

NETWORK = Link(alpha_s=1e-5, bytes_per_s=1e9, source="manually")
# Two equal layers of a thousand parameters: sums that can be done in the head.
PLAIN = LayeredModel(
    name="plain",
    input=100,
    layers=tuple(Layer(name=name, parameters=1000, activations=50, output=50, flop=2000) for name in ("one", "two")),
)


def cased(*, model=None, bench=None, run=None, memory_of=None, **asked) -> Case:
    return case_of(asked, model=model, bench=bench, run=run, memory_of=memory_of)


def case(model: LayeredModel = PLAIN, **changes) -> Case:
    return replace(Case(model=model, batch=10, workers=4, network=NETWORK, flop_per_s=1e9), **changes)


def schemes(given: Case) -> dict:
    return {way["short"]: SimpleNamespace(**way) for way in advise(given)["ways"]}


# ------------------------------------------------------------------------------------------------------ the model


@pytest.mark.parametrize("widths", ["15-38-197", "4-7-31", "1-1-1"])
def test_parameters_and_activations_are_those_of_the_real_network(widths: str) -> None:
    model = StressCNN(widths=tuple(int(width) for width in widths.split("-")))
    batch, weights = 5, {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = F.mse_loss(model(torch.randn(batch, 3, 201)), torch.randn(batch, 2))

    assert cnn(widths).parameters == facts.count([model])
    assert cnn(widths).activation_bytes("fp32") * batch == sum(kept.values())
    assert loss.requires_grad, "what is kept lives as long as the loss"


def test_the_usual_network_by_hand() -> None:
    model = cnn("15-38-197")

    assert model.parameters == 153_441
    assert [layer.parameters for layer in model.layers] == [240, 2_888, 149_917, 396]
    assert [layer.output for layer in model.layers] == [15 * 65, 38 * 20, 197, 2]
    # forward: 2 x 15 x 15 x 197, 2 x 75 x 38 x 61, 2 x 760 x 197, 2 x 197 x 2
    assert [layer.flop for layer in model.layers] == [88_650, 347_700, 299_440, 788]
    assert model.train_flop == 3 * 736_578 - 88_650
    # numbers: input 603, 15 x 197, 15 x 65; 38 x 61, 38 x 20 twice; 197; outputs 2 and targets 2. Maxima: 975 and 760.
    assert model.activation_bytes("fp32") == 4 * (603 + 2955 + 975 + 2318 + 760 + 760 + 197 + 4) + 8 * (975 + 760)
    assert model.activation_bytes("bf16") == 2 * 8572 + 8 * 1735
    advice = advise(Case(model=model, batch=75, workers=2))
    assert advice["model"]["gradient_bytes"] == 613_764
    assert advice["activation_crossover_batch"] == pytest.approx(613_764 / 48_168)


# ----------------------------------------------------------------------------------------------------- the network


def test_message_times_by_hand() -> None:
    # 1 MB takes 1 ms at 1 GB/s; alpha is 10 us.
    assert NETWORK.all_reduce_s(1e6, 1) == (0.0, "none")
    assert NETWORK.all_reduce_s(1e6, 2) == (pytest.approx(1.010e-3), "recursive doubling")
    assert NETWORK.all_reduce_s(1e6, 4) == (pytest.approx(4e-5 + 1.5e-3), "Rabenseifner")
    assert NETWORK.all_reduce_s(8, 4)[1] == "recursive doubling", "few bytes: as few messages as possible"
    assert NETWORK.half_s(1e6, 4) == pytest.approx(2e-5 + 0.75e-3)
    assert NETWORK.message_s(1e6) == pytest.approx(1.010e-3)


def test_constants_from_a_benchmark(golden: Golden) -> None:
    fits = {
        "slow": {"alpha_s": 1e-4, "beta_bytes_per_s": 1e8},
        "quick": {"alpha_s": 4e-5, "beta_bytes_per_s": 1e9},
    }
    two = network_of({"workers": 2, "fits": fits}, source="bench.json", way=None, size=1e6)
    four = network_of({"workers": 4, "fits": fits}, source="bench.json", way="quick", size=1e6)

    assert (two.alpha_s, two.bytes_per_s) == (4e-5, 1e9)
    assert two.all_reduce_s(1e6, 2)[0] == pytest.approx(4e-5 + 1e-3), "what was measured comes out again"
    assert (four.alpha_s, four.bytes_per_s) == (2e-5, pytest.approx(1.5e9))
    assert "quick, 4 workers, bench.json" in four.source
    with golden.raises(AnalysisError, match="quik.*quick"):
        network_of({"workers": 2, "fits": fits}, source="b", way="quik", size=1)
    for content in ({}, {"workers": 1, "fits": fits}, {"workers": 2, "fits": {}}):
        with golden.raises(AnalysisError):
            network_of(content, source="b", way=None, size=1)
    with pytest.raises(AnalysisError, match=r"fits\.x\.alpha_s is missing"):
        network_of({"workers": 2, "fits": {"x": {}}}, source="b", way=None, size=1)
    with golden.raises(AnalysisError, match="JSON"):
        benches_of("{", source="b")


# -------------------------------------------------------------------------------------------------------- the ways


def test_data_parallel_by_hand() -> None:
    # P = 2000, S = 8000 B, A = 400 B; n = 4, b = 10. Training: 3 x 4000 - 2000 = 10000 FLOP per sample.
    scheme = schemes(case())["data"]

    assert scheme.memory_bytes == 2000 * 16 + 400 * 10
    assert scheme.sent_bytes == 2 * 3 / 4 * 8000
    assert scheme.communication_s == pytest.approx(2 * (1e-5 + 8e-6)), "recursive doubling: two rounds"
    assert scheme.computing_s == pytest.approx(10 * 10_000 / 1e9)
    assert scheme.efficiency == pytest.approx(1e-4 / (1e-4 + 3.6e-5))


def test_sharded_by_hand() -> None:
    found = schemes(case())

    assert found["ZeRO-1"].memory_bytes == 2000 * (8 + 8 / 4) + 4000
    assert found["ZeRO-1"].sent_bytes == found["data"].sent_bytes
    assert found["ZeRO-1"].communication_s == pytest.approx(2 * (2e-5 + 0.75 * 8e-6))
    # per layer 4000 B: two all-gathers and a reduce-scatter
    assert found["ZeRO-3"].sent_bytes == 1.5 * found["data"].sent_bytes
    assert found["ZeRO-3"].memory_bytes == 2000 * 16 / 4 + 4000 + 2 * 4000
    assert found["ZeRO-3"].communication_s == pytest.approx(2 * 3 * (2e-5 + 0.75 * 4e-6))
    assert schemes(case(optimizer="sgd"))["ZeRO-1"].memory_bytes == 2000 * (8 + 4 / 4) + 4000


def test_tensor_parallel_by_hand(golden: Golden) -> None:
    # one-two is a pair: forward all-reduce of 50 numbers of each of 40 samples; the input of the model needs none.
    scheme = schemes(case())["tensor"]

    golden(scheme.name)
    assert scheme.sent_bytes == 1.5 * 50 * 4 * 40
    assert scheme.memory_bytes == 2000 / 4 * 16 + (50 * 4 / 4 + 50 * 4) * 40
    assert scheme.computing_s == pytest.approx(40 * 10_000 / 4 / 1e9), "all of it is split"
    blocks = PLAIN.model_copy(update={"layers": tuple(layer.model_copy(update={"pairs": 2}) for layer in PLAIN.layers)})
    # Two pairs in each layer, forward and backward, but nothing backward into the first layer.
    assert schemes(case(blocks))["tensor"].sent_bytes == 1.5 * (2 * 50 + 4 * 50) * 4 * 40


def test_the_crossover_is_where_both_send_the_same() -> None:
    advice = advise(case())
    assert advice["crossover_batch"] is not None
    # S / (n x 200 B) = 10 samples per worker: the batch of the case.
    assert advice["crossover_batch"] == pytest.approx(10)
    found = schemes(case())
    assert found["data"].sent_bytes == found["tensor"].sent_bytes
    above = schemes(case(batch=11))
    assert above["data"].sent_bytes < above["tensor"].sent_bytes


# ------------------------------------------------------------------------------------------------------ the verdict


def test_a_small_model_is_for_data_parallel(golden: Golden) -> None:
    model = cnn("15-38-197")
    rate = rate_of_step(model, batch=75, step_s=0.0026)
    advice = advise(Case(model=model, batch=75, workers=2, network=NETWORK, flop_per_s=rate, memory_bytes=1e9))
    seconds = 1e-5 + 613_764 / 1e9

    assert advice["best"] == "data"
    golden(advice["verdict"], f"{100 * 2.6e-3 / (2.6e-3 + seconds):.1f}")
    golden(advice["reasons"][1], "3.61 MB", "614 kB")
    least = math.ceil(9 * seconds / (2.6e-3 / 75))
    golden(advice["reasons"][-1], f"{least:,}")
    text = "\n".join(lines(advice))
    assert "P = 153,441 parameters; gradients S = 4 P = 613,764 B = 614 kB" in text
    assert json.loads(json.dumps(advice, allow_nan=False))["model"]["gradient_bytes"] == 613_764


def test_a_model_that_does_not_fit_is_sharded(golden: Golden) -> None:
    # 32,000 B of weights and states and 4,000 B of activations against 25 kB.
    advice = advise(case(memory_bytes=25_000.0))

    assert {way["short"]: way["fits"] for way in advice["ways"]} == {
        "data": False,
        "ZeRO-1": True,
        "ZeRO-3": True,
        "tensor": True,
    }
    assert advice["best"] in ("ZeRO-1", "tensor")
    golden(advice["reasons"][0], "36 kB", "25 kB")
    nothing = advise(case(memory_bytes=1000.0))
    golden(nothing["verdict"], "18 kB")


def test_ties_go_to_the_simpler_way() -> None:
    quick = Link(alpha_s=0.0, bytes_per_s=1e15, source="manually")

    assert advise(case(network=quick))["best"] == "data"


def test_what_is_not_known_says_what_to_run(golden: Golden) -> None:
    advice = advise(Case(model=PLAIN, batch=10, workers=4))

    assert advice["best"] == "data"
    golden(advice["verdict"])
    golden(advice["missing"][0], "--out DIR", "--bench DIR/bench.json")
    assert "give --run RUN_DIR" in advice["missing"][1]
    assert all(way["communication_s"] is None and way["efficiency"] is None for way in advice["ways"])
    golden(advise(Case(model=PLAIN, batch=1, workers=1))["verdict"])


def test_a_network_measured_elsewhere_is_doubted(golden: Golden) -> None:
    within = replace(NETWORK, workers=2)

    golden(advise(case(network=within, workers_per_node=2))["doubts"][0], "2 nodes")
    golden(advise(case(network=within))["doubts"][0])


# ------------------------------------------------------------------------------------------------------- the input


def test_a_model_from_a_file() -> None:
    text = """
    name: mine
    input: 7
    layers:
      - {name: first, parameters: 10, activations: 3, flop: 20}
      - {name: block, times: 2, parameters: 5, activations: 4, output: 2, indices: 1, pairs: 2, flop: 10}
    """
    model = layered_model(yaml.safe_load(text), source="m.yaml")

    assert model.parameters == 20
    assert [layer.name for layer in model.layers] == ["first", "block.1", "block.2"]
    assert model.layers[2] == Layer(name="block.2", parameters=5, activations=4, output=2, indices=1, pairs=2, flop=10)
    assert model.input == 7 and [layer.output for layer in model.layers] == [3, 2, 2]


LAYER = {"name": "x", "parameters": 1, "activations": 1, "flop": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, ""),
        ({"layer": []}, "layer.*layers"),
        ({"layers": [3]}, ""),
        ({"layers": [{**LAYER, "flops": 1}]}, "flops"),
        ({"layers": [LAYER, {"name": "y"}]}, ""),
        ({"layers": [{**LAYER, "flop": -1}]}, ""),
        ({"layers": [{**LAYER, "times": "many"}]}, "many"),
        ({"layers": [{**LAYER, "times": 60_000}] * 2}, "100,000 layers"),
        ({"layers": [{**LAYER, "parameters": 0}]}, ""),
    ],
)
def test_a_bad_model_file_is_one_line(content: dict, message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message or None):
        layered_model(content, source="m")


RUN = {
    "status": "done",
    "requested": {"optimizer": "sgd"},
    "effective": {
        "workers": 2,
        "batch": 50,
        "widths": "15-38-197",
        "precision": "fp32",
        "parameters": 153_441,
        "backend": "mpi",
    },
    "totals": {"step_s": 0.003, "sync_s": 0.0005},
}


def test_a_recorded_run_says_what_it_did(golden: Golden) -> None:
    found = cased(run=(RUN, "runs/x"), alpha_us=20, gb_per_s=2.0)

    assert (found.batch, found.workers, found.optimizer, found.waited_s) == (50, 2, "sgd", 0.0005)
    assert found.flop_per_s == pytest.approx(cnn("15-38-197").train_flop * 50 / 0.0025)
    assert found.network is not None
    assert (found.network.alpha_s, found.network.bytes_per_s, found.network.source) == (2e-5, 2e9, "as given")
    golden(" ".join(advise(found)["reasons"]), "500 us")
    more = cased(run=(RUN, "runs/x"), workers=8, batch=100)
    assert (more.batch, more.workers, more.waited_s) == (100, 8, None)


def test_a_benchmark_brings_its_rate() -> None:
    bench = {
        "workers": 2,
        "fits": {"x": {"alpha_s": 1e-5, "beta_bytes_per_s": 1e9}},
        "roofline": {"flop_per_s": 6e10},
    }

    assert cased(bench=(bench, "b")).flop_per_s == 6e10
    assert cased(bench=(bench, "b"), step_ms=1.0).flop_per_s == rate_of_step(cnn("15-38-197"), batch=75, step_s=1e-3)
    assert cased(bench=(bench, "b"), model=PLAIN).flop_per_s is None, "measured with another model"
    assert cased(memory_of=lambda here: (8e9 / here, f"of {here}"), workers=8, workers_per_node=4).memory_bytes == 2e9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"widths": "15-38-197", "model": PLAIN}, "--widths.*--model"),
        ({"step_ms": 1.0, "flops_per_s": 1.0}, "--step-ms.*--flops-per-s.*--run"),
        ({"alpha_us": 1.0}, "--alpha-us.*--gb-per-s"),
        ({"bench": ({}, "b"), "alpha_us": 1.0, "gb_per_s": 1.0}, "--bench.*--alpha-us"),
        ({"way": "x"}, "--way.*--bench"),
        ({"batch": 0}, "--batch"),
        ({"workers_per_node": 0}, "--workers-per-node"),
        ({"optimizer": "adm"}, "--optimizer.*adm.*adam"),
        ({"precision": "int8"}, "--precision.*int8.*fp32.*tf32.*bf16.*fp16"),
        ({"memory_gb": 0.0}, r"--memory-gb.*0\.0"),
        ({"step_ms": 0.0}, r"--step-ms.*0\.0"),
        ({"alpha_us": -1.0, "gb_per_s": 1.0}, r"--alpha-us.*-1\.0"),
        ({"run": (RUN, "r"), "widths": "4-7-31"}, "153,441.*--widths"),
        ({"run": (RUN, "r"), "model": PLAIN}, "--run.*--model"),
        ({"run": ({**RUN, "status": "running"}, "r")}, ""),
        ({"run": ({**RUN, "totals": {"step_s": 1.0, "sync_s": None}}, "r")}, ""),
    ],
)
def test_contradictions_are_one_line(values: dict, message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, AnalysisError, match=message or None):
        cased(**values)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert (
        main(
            [
                "predict",
                "--model-parallel",
                "--workers",
                "4",
                "--alpha-us",
                "20",
                "--gb-per-s",
                "5",
                "--step-ms",
                "2.6",
                "--json",
            ]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["best"] == "data"
    assert said["memory_bytes"] > 0, "that of this machine"
    path = tmp_path / "model.yaml"
    path.write_text("layers: [{name: x, parameters: 5, activations: 2, flop: 10}]")
    assert main(["predict", "--model-parallel", "--model", str(path)]) == 0
    assert f"{path}, 1 layer" in capsys.readouterr().out
    assert main(["predict", "--model-parallel", "--bench", str(tmp_path / "none.json")]) == 2
    golden(capsys.readouterr().err, "bench.json")
