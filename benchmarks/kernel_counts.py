"""What the fused kernels of a step are made of, compiled for a GPU that need not be here.

    python benchmarks/kernel_counts.py [--batch 75 1024] [--precision fp32 tf32 bf16] [--capability 90]

For each kernel of a step of one worker: the programs of its launch, and of one program the warps, the instructions
(SASS as the disassembler lists it; a loop counts once), how many of them are for the matrix units, registers a thread
and shared memory. Then the launches of a step, and the bytes that they move: those of `microbench.step_bytes`, and
partial sums of gradients, which are written and read. Needs Triton (`make extras`), whose wheel brings the assembler
and the disassembler. Times are measured on hardware, by gpu.sh.
"""

import argparse
import math
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study.programs.microbench import step_bytes
from horovod_study.strain.kernels import BlockSizes, Sizes, adam_rule, partial_widths, plan
from horovod_study.strain.model import WIDTHS, StressCNN

TYPES = {"order": "*i64", "state": "*i64", "winner": "*i8", "winner1": "*i8", "winner2": "*i8"} | {
    "scale": "fp32", "slots": "i32", "advance": "i32", "times": "*i64",
}  # fmt: skip
ACTIVATIONS = {
    ("convolution1", "out"), ("convolution2", "x"), ("convolution2", "out"), ("fc1", "left"), ("head", "dz"),
    ("fc1_input", "left"), ("fc1_input", "out"), ("fc1_weight", "left"), ("fc1_weight", "right"),
    ("weight_gradient", "gradient"), ("weight_gradient", "x"), ("first_gradient", "gradient"),
}  # fmt: skip
"""The arguments that are bfloat16 where the precision is; all others are float32."""

_INSTRUCTION = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z]\w*)"  # after its address, and the predicate if it has one


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One kernel as it came out of the compiler; `programs` of its launch, the rest of one of them, memory in bytes."""

    name: str
    programs: int
    warps: int
    instructions: int
    matrix: int
    registers: int
    local: int
    stack: int
    shared: int


def compile_all(sizes: Sizes, blocks: BlockSizes | None, precision: str, capability: int) -> list[Compiled]:
    """Compile all kernels of a step for a GPU that need not be there, and read what they use of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    chosen = blocks or BlockSizes.fitting(sizes, precision)
    launches = plan(
        sizes, chosen, precision=precision, scaled=True, rule=adam_rule(decay=0.01), merged=True, timed=True
    )
    found = []
    for which, launch in vars(launches).items():
        names = launch.kernel.arg_names
        floats = {name: "*bf16" if (which, name) in ACTIVATIONS and precision == "bf16" else "*fp32" for name in names}
        signature = floats | TYPES | dict.fromkeys(launch.constants, "constexpr")
        signature = {name: signature[name] for name in names}
        aligned = {
            (place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if signature[name].startswith("*")
        }
        options: dict[str, Any] = {"num_warps": launch.warps, "num_stages": launch.stages}
        compiled = triton.compile(
            ASTSource(launch.kernel, signature, launch.constants, aligned),
            target=GPUTarget("cuda", capability, 32),
            options=options,
        )
        usage = _ask(compiled.asm["cubin"], "cuobjdump", "--dump-resource-usage")
        numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        listed = re.findall(_INSTRUCTION, _ask(compiled.asm["cubin"], "nvdisasm", "-c"))
        found.append(
            Compiled(
                name=which,
                programs=math.prod(launch.grid),
                warps=launch.warps,
                instructions=sum(name != "NOP" for name in listed),
                matrix=sum(name.endswith("MMA") for name in listed),
                registers=numbers["REG"],
                local=numbers["LOCAL"],
                stack=numbers["STACK"],
                shared=compiled.metadata.shared,
            )
        )
    return found


def _ask(cubin: bytes, tool: str, option: str) -> str:
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, option, file.name], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print a table for each batch and precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[75, 1024])
    parser.add_argument("--precision", nargs="+", default=["fp32", "tf32", "bf16"], choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--capability", type=int, default=90, help="of the GPU, times ten (default 90: H100, H200)")
    options = parser.parse_args()
    for batch in options.batch:
        for precision in options.precision:
            sizes = Sizes.of(StressCNN(), batch)
            chosen = BlockSizes.fitting(sizes, precision)
            kernels = compile_all(sizes, chosen, precision, options.capability)
            kernels = [each for each in kernels if each.name != "update"]  # one worker's is in `finish`
            print(f"\nbatch {batch}, {precision}, compute capability {options.capability / 10:.1f}\n")
            print("| kernel | programs | warps | instructions | matrix units | registers | shared, KiB |")
            print("|---|--:|--:|--:|--:|--:|--:|")
            for each in kernels:
                numbers = (each.programs, each.warps, each.instructions, each.matrix, each.registers)
                print(f"| {each.name} | {' | '.join(f'{number:,}' for number in numbers)} | {each.shared / 1024:.0f} |")
            whole = sum(each.instructions for each in kernels)
            moved = step_bytes(WIDTHS, batch, kernels="fused") / 1e6
            rows = (chosen.first_chunks, chosen.weight_chunks, -(-batch // chosen.samples))
            partial = 8e-6 * sum(count * width for count, width in zip(rows, partial_widths(sizes), strict=True))
            print(
                f"\n{len(kernels)} launches, {whole:,} instructions; {moved:.1f} MB, and {partial:.1f} of partial sums"
            )


if __name__ == "__main__":
    main()
