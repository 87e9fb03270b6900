# The two commands are `make run` and `make test`; `make` lists the rest. Needs Python 3.11 to 3.13 with venv, and nothing else.
.DEFAULT_GOAL := help
.PHONY: help run test test-deploy images lock lint types contracts proto proto-check models metrics dashboards \
        chart-files matrix bench-turn bench-session bench-early-close bench-native-unit bench-native-step bench-native-load bench-native-soak chaos constraints clean

VENV  := .venv
BIN   := $(VENV)/bin
PORT  ?= 8080
WAV   ?= parley/assets/synthetic_question.wav
REPLY ?= reply.wav
ONCE  ?=
# processes that run tests: most of them wait for other processes
JOBS  ?= 3
# what is imported is compiled once and kept, whatever the shell says: tests start hundreds of processes
export PYTHONDONTWRITEBYTECODE :=

EMBEDDED := $(VENV)/.installed-embedded
DEV      := $(VENV)/.installed-dev
PIP      := $(BIN)/python -m pip --disable-pip-version-check
TORCH    := ^(torch|triton|nvidia-|cuda-)
PROTO    := parley_stage/v1/stage
PROTOC    = $(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(1) --grpc_python_out=$(1) --pyi_out=$(1) proto/$(PROTO).proto
DOCKER   ?= docker
COMMA    := ,
TAG      ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
SUFFIX    = $(if $(filter gpu,$(VARIANT)),-gpu)
BUILD     = $(if $(SUFFIX),--build-arg VARIANT=gpu) $(if $(BASE),--build-arg CPU_BASE=$(BASE) --build-arg GPU_BASE=$(BASE)) $(if $(CA),--secret id=ca$(COMMA)src=$(CA))
SUITABLE := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 | \2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' $(MAKEFILE_LIST)

run: $(EMBEDDED) ## start everything, speak a recorded question, serve until Ctrl-C (ONCE=1 ends after it; PORT= WAV= REPLY=)
	@$(BIN)/parley models fetch
	@exec $(BIN)/parley up --port "$(PORT)" --speak "$(WAV)" --reply "$(REPLY)" $(if $(filter-out 0,$(ONCE)),--once)

test: $(DEV) ## lint, types, import contracts, generated code, then all tests
	@$(MAKE) --no-print-directory --jobs=2 types models lint contracts proto-check
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-deploy: $(DEV) ## images, compose, chart, rules: built, started, spoken with (Debian, root; it installs a container engine of its own)
	@$(PIP) install -q -r deploy/test-requirements.txt
	@$(BIN)/python -m pytest tests/helm tests/deploy

lint: $(DEV) ## ruff, buf, and what is generated: the table of metrics, the chart's copies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@cd proto && ../$(BIN)/buf lint
	@$(BIN)/python -m tools.metrics_table --check
	@$(BIN)/python tools/chart_files.py --check

types: $(DEV) ## mypy, strict
	@$(BIN)/mypy

contracts: $(DEV) ## which package may import which
	@$(BIN)/lint-imports

proto: $(DEV) ## generate the code of the contract again
	@$(call PROTOC,proto)

proto-check: $(DEV) ## the generated code is that of the contract
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call PROTOC,$$fresh) && \
	for file in $(PROTO)_pb2.py $(PROTO)_pb2_grpc.py $(PROTO)_pb2.pyi; do \
	  cmp -s "$$fresh/$$file" "proto/$$file" || { echo "proto/$$file is not what its source gives: make proto" >&2; exit 1; }; \
	done

models: $(DEV) ## fetch the embedded models into the cache
	@$(BIN)/parley models fetch

images: ## an image of each process (VARIANT=gpu those for GPUs; TAG= BASE= and CA= choose version, base, and a bundle of authorities)
	@for target in $(if $(SUFFIX),thinker talker vocoder,gateway vad thinker talker vocoder proxy); do \
	  echo "parley/$$target:$(TAG)$(SUFFIX)"; \
	  DOCKER_BUILDKIT=1 $(DOCKER) build -q -f deploy/Dockerfile --target "$$target" -t "parley/$$target:$(TAG)$(SUFFIX)" $(BUILD) . || exit 1; \
	done

lock: $(DEV) ## what goes into images, resolved anew under constraints.txt
	@$(PIP) install -q uv==0.13.9
	@$(BIN)/python tools/lock.py

metrics: $(DEV) ## write docs/metrics.md again
	@$(BIN)/python -m tools.metrics_table

dashboards: $(DEV) ## write the dashboards again, and the chart's copies
	@$(PIP) install -q -r deploy/test-requirements.txt
	@$(BIN)/python -m tools.dashboards
	@$(BIN)/python tools/chart_files.py

chart-files: $(DEV) ## copy profiles, dashboards and rules into the chart
	@$(BIN)/python tools/chart_files.py

matrix: $(DEV) ## behaviours that no test proves yet
	@$(BIN)/python tools/matrix.py

bench-turn: $(DEV) models ## end of voice to first sound, against the same models in one process
	@$(BIN)/python -m benchmarks.bench_turn

bench-session: $(DEV) ## commit, admission, resume, CPU and memory of a gateway, each beside its floor (ARGS="--only resume")
	@$(BIN)/python -m benchmarks.bench_session $(ARGS)

bench-native-unit: $(DEV) ## a unit of the native model on a GPU, full size, random weights (ARGS="--tiny --device cpu" rehearses it)
	@$(BIN)/python -m benchmarks.native_unit $(ARGS)

bench-early-close: $(DEV) models ## how much sooner a unit is over when the user falls silent, on recorded speech with the real detector
	@$(BIN)/python -m benchmarks.early_close $(ARGS)

bench-native-step: $(DEV) ## a step of each native engine on a GPU at 1 to 128 sessions, beside its floor (ARGS="--tiny --device cpu --sessions 1 2" rehearses it)
	@$(BIN)/python -m benchmarks.native_step $(ARGS)

bench-native-load: $(DEV) ## many native conversations in real time on one GPU (ARGS="--tiny --device cpu --sessions 2 --seconds 8" rehearses it)
	@$(BIN)/python -m benchmarks.native_load $(ARGS)

bench-native-soak: $(DEV) ## lasting load with failures and kills on one GPU (ARGS="--tiny --device cpu --sessions 4 --minutes 1.5 --faults" rehearses it)
	@$(BIN)/python -m benchmarks.native_soak $(ARGS)

chaos: $(DEV) ## kill, freeze, drain and starve every process, often; count what was lost (SHORT=1 under 3 minutes; SEED= repeats, ONLY= chooses)
	@SHORT="$(SHORT)" SEED="$(SEED)" ONLY="$(ONLY)" $(BIN)/python -m tests.chaos

constraints: $(DEV) ## pin what is installed now; torch and what it brings apart, since no user of the embedded default needs them
	@$(PIP) freeze --exclude-editable --exclude parley | grep -v ' @ ' | grep -v -E '$(TORCH)' > constraints.txt
	@$(PIP) freeze | grep -E '$(TORCH)' | sed 's/+.*//' > constraints-torch.txt

clean: ## remove the environment and everything that was made (the model cache stays)
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache reply.wav

$(VENV)/pyvenv.cfg:
	@for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	  "$$python" -c '$(SUITABLE)' >/dev/null 2>&1 && break; python=; \
	done; \
	[ -n "$$python" ] || { echo "parley: no suitable Python: 3.11, 3.12 or 3.13 with its venv module is needed (Debian: python3-venv)" >&2; exit 1; }; \
	"$$python" -m venv $(VENV)

$(EMBEDDED): $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing into $(VENV), about a minute the first time"
	@$(PIP) install -q -c constraints.txt -e '.[embedded]'
	@touch $@

# --no-compile: four tenths of the time went into compiling, and most of it is never imported
$(DEV): $(VENV)/pyvenv.cfg pyproject.toml constraints.txt constraints-torch.txt
	@echo "installing into $(VENV) with the tools for tests, about a minute the first time"
	@$(PIP) install -q --no-compile -c constraints.txt -c constraints-torch.txt -e '.[dev]'
	@touch $@ $(EMBEDDED)
