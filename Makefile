# One target for each intention; `make` lists them. Every one sets up what it needs first.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up
SERVERS := .venv/servers/.set-up .venv/servers/kfake .venv/servers/kafka/.set-up
ENTRY := $(BIN)/python -m
PIP := --quiet --disable-pip-version-check
# The newer ones among those that pyproject.toml names; `make test` runs on the oldest.
PYTHONS := python3.12 python3.13
OTHER ?= build/$(notdir $(PYTHON))

# Where it is set, each of the hundreds of processes that tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Tests and simulations have small frames: what Polars' own threads say to each other takes longer than the work.
test test-python unit dear spark sim soak: export POLARS_MAX_THREADS := 1
# A process that crashes in C code says where.
test test-python unit dear spark soak: export PYTHONFAULTHANDLER := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo kafka docs test test-python check style unit servers dear spark sim fuzz chaos soak bench-peers bench bench-guard release clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: $(STAMP)  ## make .venv with pinned dependencies and Headrace in it

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headrace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1 | cut -d" " -f2). Try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing Headrace and the tools to work on it in .venv: about 2 GB, and some minutes the first time" >&2
	@rm -rf .venv && $(PYTHON) -m venv .venv

# Modules are compiled when they are first imported: most of them never are.
$(STAMP): requirements/run.txt requirements/dev.txt pyproject.toml | $(BIN)/pip
	$(ENTRY) pip install $(PIP) --no-compile -r requirements/run.txt -r requirements/dev.txt
	$(ENTRY) pip install $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# Servers that tests start. Tests that need one are skipped, and say so, where it can't be installed.
.venv/servers/.set-up: requirements/servers/package.json requirements/servers/package-lock.json | $(BIN)/pip
	@mkdir -p $(@D) && cp $^ $(@D)
	@if npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --loglevel=error; then touch $@; \
	  else echo "The servers that stand in for Kinesis are not installed (npm has failed): tests on them will be skipped" >&2; fi

.venv/servers/kfake: $(wildcard requirements/servers/kfake/*) | $(BIN)/pip
	@mkdir -p $(@D)
	@go build -C requirements/servers/kfake -trimpath -ldflags="-s -w" -o $(CURDIR)/$@ . || \
	  echo "kfake is not installed (go build has failed): tests on this small broker will be skipped" >&2

.venv/servers/kafka/.set-up: requirements/servers/kafka/pom.xml | $(BIN)/pip
	@rm -rf $(@D) && mkdir -p $(@D)
	@if $(JARS)/jars; then touch $@; else echo "Apache Kafka is not installed (mvn has failed): tests on it will be skipped" >&2; fi

# Tests start dozens of JVMs with Spark. This spares each a third of its start; where it can't be written, they take longer.
.venv/spark.jsa: $(STAMP) tests/spark_classes.py
	@$(BIN)/python tests/spark_classes.py $@ || echo "No archive of Spark's classes: tests on Spark will take longer" >&2

# pip, npm, Go and Maven wait for the network most of the time, so they work side by side.
.PHONY: installed
installed:
	@$(MAKE) --no-print-directory -j4 $(STAMP) $(SERVERS)

demo: $(STAMP)  ## run the page-view app in containers on local Spark, about 20 s
	$(BIN)/python demo/page_views.py

kafka: $(STAMP) .venv/servers/kafka/.set-up  ## run the lesson on Kafka with an Apache Kafka of its own (it needs Java and Maven)
	$(ENTRY) chaos.on_kafka $(BIN)/python examples/29_kafka.py {}

# tests/dealing.py deals all tests on Spark to one of the processes, as they share one session. There are three for two
# processors, because tests that start processes mostly wait. One of the tests runs mypy.
test: installed  ## check, then run all tests
	@$(MAKE) --no-print-directory -j2 style .venv/spark.jsa compiled
	$(ENTRY) pytest -n 3 --dist loadgroup

# In a new clone, each process of the tests would compile all of them. What is wrong with one is said when tests run.
.PHONY: compiled
compiled: $(STAMP)
	@test -d tests/__pycache__ || $(ENTRY) pytest --collect-only -qq > /dev/null || true

check: style  ## lint, format, types, import directions
	$(BIN)/mypy

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

unit: $(STAMP)  ## the tests that need no Spark and no other process, in a third of the time of all
	$(ENTRY) pytest -n 2 -m "not spark and not process" tests/unit tests/plan tests/tidy

# It shares nothing with .venv, in which everything else runs.
$(OTHER)/.set-up: requirements/run.txt requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP) --no-compile -r requirements/run.txt -r requirements/dev.txt
	$(@D)/bin/python -m pip install $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

test-python: $(OTHER)/.set-up  ## the tests of `make unit` on another Python, in an environment of its own: PYTHON=python3.13 (OTHER=FOLDER)
	$(OTHER)/bin/python -m pytest -n 2 -m "not spark and not process" tests/unit tests/plan tests/tidy

servers: $(SERVERS)  ## install Kafka and what stands in for Kinesis, for tests and chaos

# Time on the clock says little on a machine that others use too.
dear: installed .venv/spark.jsa  ## show which tests take most processor time, with their processes (TESTS=tests/unit)
	$(ENTRY) pytest -q -p tests.processor_time $(TESTS)

spark: $(STAMP) .venv/spark.jsa  ## the tests on real Spark
	$(ENTRY) pytest -m spark

sim: $(STAMP)  ## simulate the protocol in virtual time, with faults (SEEDS=n, SEED=first; SEED alone tells its story)
	$(ENTRY) simulator $(if $(SEEDS)$(SEED),,--seeds 1000) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED))

fuzz: $(STAMP)  ## feed damaged bytes to all decoders: MINUTES=10, SEED=1
	$(ENTRY) fuzz --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

# The second one ends with 3, and says why, where no namespaces may be made for its machines.
chaos: $(STAMP) $(SERVERS)  ## kill and freeze a real app's processes and cut the power, then kill machines of a cluster, a minute each (SEED=n)
	$(ENTRY) chaos --seconds 60 $(if $(SEED),--seed $(SEED))
	$(ENTRY) chaos --cluster --seconds 60 $(if $(SEED),--seed $(SEED)) || test $$? -eq 3

soak: $(STAMP) $(SERVERS) .venv/spark.jsa  ## repeat what `make test` does once: more power cuts, kills, examples, seeds and seams, each connector deleted, three quarters of an hour
	$(ENTRY) pytest -n 2 --dist loadgroup -m soak
	HEADRACE_EXAMPLES=4 $(ENTRY) pytest -n 2 --dist loadgroup -m "hypothesis and not soak"
	$(ENTRY) simulator --seeds 3000 --stages bare,moved,apps,cuts,restores,objects,power
	$(ENTRY) seams

# Others that the benchmark measures, each in an environment of its own. It says so if one isn't there.
.venv/peers/%/.set-up: requirements/peers/%.txt | $(STAMP)
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@if $(@D)/bin/python -m pip install $(PIP) -r $<; then touch $@; \
	  else echo "$* is not installed (pip has failed): it will not be measured" >&2; rm -rf $(@D); fi

JARS = mvn -q -B -Dstyle.color=never -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(@D)

.venv/peers/flink/jars/.set-up: requirements/peers/flink/pom.xml .venv/peers/flink/.set-up
	@if $(JARS); then touch $@; else echo "flink is not complete (mvn has failed): it will not be measured" >&2; fi

.venv/peers/kafka-streams/.set-up: requirements/peers/kafka-streams/pom.xml | $(STAMP)
	@rm -rf $(@D) && mkdir -p $(@D)
	@if $(JARS)/jars; then touch $@; else echo "Kafka Streams is not installed (mvn has failed): it will not be measured" >&2; fi

PEERS := bytewax/.set-up flink/jars/.set-up quix/.set-up kafka-streams/.set-up
bench-peers: $(SERVERS) $(PEERS:%=.venv/peers/%)  ## install what the benchmark compares Headrace with

bench: $(STAMP)  ## measure everything in an hour; writes bench/results (afterwards: python -m bench.page)
	$(ENTRY) bench

# It ends with 3 if the machine was too busy to judge.
bench-guard: $(STAMP)  ## fail if a ratio to others fell more than 15 % below bench/recorded, within ten minutes
	$(ENTRY) bench.guard || test $$? -eq 3

.venv/docs/.set-up: requirements/docs.txt | $(STAMP)
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP) -r $<
	@touch $@

docs: .venv/docs/.set-up  ## build the documentation as a site, in build/manual/site
	$(ENTRY) manual --builder $(CURDIR)/.venv/docs/bin/zensical

# What is missing then is a tag, and the upload of both files by whoever may do that.
release: $(STAMP)  ## test on newer Pythons, build the wheel and the source archive, check them and install each in a fresh environment; uploads nothing
	@for python in $(PYTHONS); do \
	  if $$python -V > /dev/null 2>&1; then $(MAKE) --no-print-directory test-python PYTHON=$$python || exit 1; \
	  else echo "$$python isn't installed here: its tests are not run, though pyproject.toml names it" >&2; fi; done
	@rm -rf dist build .venv/release && $(PYTHON) -m venv .venv/release
	.venv/release/bin/python -m pip install $(PIP) build twine
	.venv/release/bin/python -m build --outdir dist .
	.venv/release/bin/python -m twine check --strict dist/*
	$(BIN)/python tests/released.py dist

clean:  ## remove the environment and everything built
	rm -rf .venv build dist bench/results .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
