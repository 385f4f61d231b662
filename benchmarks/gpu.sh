#!/usr/bin/env bash
# Sets up and measures training on the NVIDIA GPU of this machine, unattended, in less than nine minutes:
#
#     PYTHON=/path/to/python WHEELS=FOLDER benchmarks/gpu.sh
#
#   PYTHON      a Python that has PyTorch for CUDA, whose packages are used as they are; default: the .venv here if it sees
#               a GPU, with nothing set up, else the first python on PATH that does
#   WHEELS      folder with the other packages (`make wheels`), for a machine without a network
#   OUT         where gpu.json, gpu.md and gpu.log go (default benchmarks/results/gpu)
#   DEADLINE_S  seconds for all of it (default 530)
#   BUILD_S     of them, at most so many for compiling Horovod with NCCL and with MPI (default 200)
#
# What needs Horovod is left out if it cannot be built; everything else is measured all the same. docs/gpu.md explains the
# table.
#
# Exit codes: 0 all checks passed and all targets met; 1 not, gpu.md says which; 2 something is missing, nothing measured.
set -u -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 2
out=${OUT:-$root/benchmarks/results/gpu}
deadline_s=${DEADLINE_S:-530}
build_s=${BUILD_S:-200}
least_s=60 # less is not worth a start
log=/dev/null # until there is something to measure

told() { printf '[%s s] %s\n' "$SECONDS" "$*" | tee -a "$log"; }
refused() {
  printf 'gpu.sh: %s\n' "$*" | tee -a "$log" >&2
  exit 2
}
has_torch() { "$1" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; }

# ------------------------------------------------------------------------------------------------ what is here
missing=()
for number in "$deadline_s" "$build_s"; do
  [[ $number =~ ^[0-9]+$ ]] || refused "DEADLINE_S and BUILD_S are whole seconds, not '$number'"
done
set_up=yes
if [ -z "${PYTHON:-}" ] && has_torch "$root/.venv/bin/python"; then
  set_up=no
elif [ -n "${PYTHON:-}" ]; then
  python=$(command -v "$PYTHON") || refused "PYTHON=$PYTHON: there is no such program"
  has_torch "$python" || missing+=("a GPU that the PyTorch of $python sees (or a PyTorch for CUDA in it)")
else
  python=
  for name in python3 python python3.13 python3.12 python3.11; do
    if found=$(command -v "$name") && has_torch "$found"; then
      python=$found
      break
    fi
  done
  [ -n "$python" ] || missing+=("a Python on PATH whose PyTorch sees a GPU (or name it: PYTHON=/path/to/python)")
fi
command -v nvidia-smi >/dev/null || missing+=("the NVIDIA driver (no nvidia-smi)")
if [ -n "${WHEELS:-}" ] && [ ! -d "$WHEELS" ]; then
  missing+=("the folder WHEELS=$WHEELS")
fi
if [ ${#missing[@]} -gt 0 ]; then
  printf -v list '%s; ' "${missing[@]}"
  refused "nothing was measured, this machine lacks: ${list%; }. Without a GPU the same code can be tried:" \
    "python benchmarks/gpu.py --dry-run --out DIR"
fi
absolute() { printf '%s/%s' "$(cd "$(dirname "$1")" && pwd)" "$(basename "$1")"; } # a link stays one
wheels=${WHEELS:+$(absolute "$WHEELS")}
python=${python:+$(absolute "$python")}
if ! mkdir -p "$out" || ! : >"$out/gpu.log"; then
  refused "OUT=$out cannot be written"
fi
out=$(absolute "$out")
log=$out/gpu.log
cd "$root" || exit 2
nvidia-smi | tee -a "$log"

# ------------------------------------------------------------------------------------------------ set-up
setup() { # seconds, options...: ends it when they are over
  local limit_s=$1
  shift
  timeout --kill-after=10 "$limit_s" "$python" scripts/setup.py --this-python --site yes --dev no "$@" \
    ${wheels:+--wheels "$wheels"} 2>&1 | tee -a "$log"
}

if [ "$set_up" = no ]; then
  told "the .venv here sees a GPU and is used as it is; PYTHON=... would set it up"
else
  told "set-up without Horovod, with $python"
  setup 120 --horovod no --builds none || refused "the set-up failed, see $log"
  if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    told "Horovod, built with NCCL and with MPI for GPU tensors, in $build_s s at most"
    # Compilers at work are no time to measure in, but to make data sets and to compile kernels.
    .venv/bin/python benchmarks/gpu.py --prepare --deadline-s "$build_s" >"$out/prepare.log" 2>&1 &
    preparing=$!
    if ! setup "$build_s" --horovod yes --builds "nccl mpi"; then
      told "without Horovod: its build failed or did not end in time; what needs it is left out"
      wait "$preparing" # its Python must not lose its packages meanwhile
      setup 60 --horovod no --builds none || refused "the set-up failed, see $log"
    fi
    wait "$preparing"
    told "prepared: $(tail -n 1 "$out/prepare.log")"
    cat "$out/prepare.log" >>"$log" && rm "$out/prepare.log"
  else
    told "without Horovod: no CUDA toolkit (no nvcc on PATH or below CUDA_HOME)"
  fi
fi

# ------------------------------------------------------------------------------------------------ measurements
left_s=$((deadline_s - SECONDS))
[ "$left_s" -ge "$least_s" ] || refused "the set-up took $SECONDS s of $deadline_s s: nothing is left to measure in"
told "measuring, $left_s s are left"
timeout --kill-after=5 "$((left_s + 10))" .venv/bin/python benchmarks/gpu.py --deadline-s "$left_s" --out "$out" \
  2>&1 | tee -a "$log"
code=${PIPESTATUS[0]}
told "done, exit code $code; results in $out"
exit "$code"
