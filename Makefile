# The targets need no activated environment and no root; `make` lists them. Options of the set-up:
#   PYTHON=/path/to/python3.12   another Python (default: the first on PATH from 3.11 on)
#   MPI=site | wheel             the mpicc and mpirun on PATH, or Open MPI from its wheel (default)
#   HOROVOD=no | yes             without Horovod no compiler is needed
#   BUILDS="nccl mpi" | none     more builds of Horovod, for GPU tensors over NCCL or over MPI; runs choose with --horovod-build
#                                (default: both where nvcc, a PyTorch for the same CUDA and an NVIDIA GPU are found)
#   SITE=yes | no                use the packages, PyTorch above all, that PYTHON has already; only what lacks goes into .venv
#   TORCH=cpu | cuda             for which processor PyTorch is built (default: for CUDA where there is an NVIDIA GPU, or no
#                                build for CPUs where pip looks)
#   WHEELS=/path/to/folder       no network: every file from a folder that `make wheels` made; said each time
#   DEV=no | yes                 without the development tools (tests, lint, types)
#   JOBS=1                       compilers at once while Horovod is built (default: one per core, fewer when memory is short)
# What was chosen once stays until the other is asked for.

.DEFAULT_GOAL := help
.PHONY: help setup wheels extras hosts study docs check test coverage bench lock clean
MAKEFLAGS += --no-print-directory

RECENT = -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
FIRST = for python in python3 python3.13 python3.12 python3.11; do $$python $(RECENT) && { command -v $$python; break; }; done
PYTHON ?= $(shell $(FIRST))
OPTIONS = $(if $(MPI),--mpi '$(MPI)') $(if $(HOROVOD),--horovod '$(HOROVOD)') $(if $(BUILDS),--builds '$(BUILDS)') \
          $(if $(SITE),--site '$(SITE)') $(if $(DEV),--dev '$(DEV)') $(if $(TORCH),--torch '$(TORCH)') $(if $(WHEELS),--wheels '$(WHEELS)') \
          $(if $(filter environment command,$(origin PYTHON)),--this-python)

# What `make bench` measures; learning (half an hour alone) and coverage only when they are named.
BENCH ?= data loading step native gradients checkpoint throughput stability turns recording ledger analysis simulation allreduce mlperf forecast report

BIN := .venv/bin
START := $(shell date +%s)
# Runs the commands of its argument, then says how it ended and after what total time, the set-up included.
TIMED = { $(1); }; code=$$?; took=$$(( $$(date +%s) - $(START) )); [ $$code = 0 ] && end=done || end=FAILED; \
        echo "make $@: $$end after $$(( took / 60 )) min $$(( took % 60 )) s"; exit $$code

ifeq ($(CI),true)
export HOROVOD_STUDY_REQUIRE_ALL := 1
endif

help:  ## list the targets (default)
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-7s %s\n' "$$name" "$$text"; done

setup:  ## make .venv ready: pinned packages, Open MPI, Horovod, this project
	@python="$(PYTHON)"; test -n "$$python" || { echo "setup: no Python from 3.11 on among python3, python3.13, python3.12, python3.11" \
	  "on PATH: install one, or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 2; }; \
	"$$python" scripts/setup.py $(OPTIONS)

wheels:  ## fill WHEELS=FOLDER for a set-up without network: PYTHON_VERSION=3.12 DEV=no HAVE=its-pip-freeze.txt
	@"$(PYTHON)" scripts/wheels.py $(if $(WHEELS),'$(WHEELS)') $(if $(PYTHON_VERSION),--python-version '$(PYTHON_VERSION)') \
	  $(if $(HAVE),--have '$(HAVE)') $(if $(DEV),--dev '$(DEV)')

extras: setup  ## add what exporting to trackers, recording Lightning and Extra-P need (requirements.extras.lock)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-deps -r requirements.extras.lock

hosts:  ## install the Debian packages that tests with hosts, Slurm, a browser or LaTeX need (as root)
	@"$(PYTHON)" scripts/debian.py

study: setup  ## set up, then run the laptop study: data, baselines, 1..cores workers, report
	@$(call TIMED,$(BIN)/horovod-study run experiments/laptop.yaml)

docs: extras  ## the documentation as a site that reads without a network: build/site/index.html
	@$(call TIMED,$(BIN)/python scripts/docs.py)

# benchmarks/ and scripts/ have a gpu.py each, one module to mypy: hence two calls.
TYPES = MYPYPATH=tests $(BIN)/mypy --strict
LINT = $(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && \
       $(TYPES) horovod_study benchmarks && $(TYPES) scripts && \
       $(BIN)/python scripts/size.py

# As many processes as there are cores, each with whole files; for quick checks one more, because some tests wait.
PROCESSES = logical
check: PROCESSES = $$(($$(nproc) + 1))
SHARE = $(BIN)/python -m pytest -q -n $(PROCESSES) --maxprocesses 5 --dist loadfile
check: extras  ## quick checks before each commit: format, lint, types, fast tests
	@$(call TIMED,{ mkdir -p build; { $(LINT); } > build/lint.txt 2>&1 & lint=$$!; \
	  $(SHARE) -m "not slow and not horovod and not cluster"; tests=$$?; wait $$lint; lint=$$?; cat build/lint.txt; \
	  test $$lint = 0 -a $$tests = 0; })

# Beside format, lint and types three things at once: the tests that start workers of their own, one after the other; those
# with hosts or Slurm, which mostly wait, one after the other; and the others, which share what those leave of the cores.
# Lines are counted only by `make coverage`: that takes about 70 % more time of the processor, and does not see what workers
# run.
WITH = $(shell grep -lE 'mark\.($(1))' tests/test_*.py)
REAL = horovod or cluster
test: extras  ## everything: checks, then all tests, with real Horovod on 2 workers
	@$(call TIMED,$(BIN)/python scripts/debian.py --test && { mkdir -p build; \
	  { $(LINT); } > build/lint.txt 2>&1 & lint=$$!; \
	  nice -n 5 $(SHARE) -m "not ($(REAL))" > build/tests.txt 2>&1 & shared=$$!; \
	  $(BIN)/python -m pytest -q -p no:cacheprovider -m cluster $(call WITH,cluster) > build/hosts.txt 2>&1 & hosts=$$!; \
	  $(BIN)/python -m pytest -q -m "horovod and not cluster" $(call WITH,horovod) > build/horovod.txt 2>&1; real=$$?; \
	  wait $$hosts; hosts=$$?; wait $$shared; shared=$$?; wait $$lint; lint=$$?; \
	  cat build/tests.txt build/hosts.txt build/horovod.txt build/lint.txt; \
	  grep -hE '^(FAILED|ERROR) |snapshots? unused' build/tests.txt build/hosts.txt build/horovod.txt; \
	  test $$real = 0 -a $$hosts = 0 -a $$shared = 0 -a $$lint = 0; })

coverage: extras  ## which lines the tests without real workers reach
	@$(call TIMED,$(SHARE) -m "not ($(REAL))" --cov --cov-report=term:skip-covered)

# Extra-P, which the forecast is compared with, is one of the extras.
bench: $(if $(filter forecast,$(BENCH)),extras,setup)  ## the project's performance tables, side by side with the usual ways (BENCH='data step' for some)
	@$(call TIMED,failed=; for name in $(BENCH); do echo "--- $$name"; $(BIN)/python benchmarks/$$name.py || failed="$$failed $$name"; done; \
	  test -z "$$failed" || { echo "failed:$$failed"; false; })

lock: setup  ## pin the newest packages that setup.cfg allows in requirements.lock and requirements.extras.lock
	@$(BIN)/python scripts/lock.py

clean:  ## remove .venv, what was built, caches in this folder; runs, data and the cache of built wheels stay
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	@find horovod_study tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null; true
