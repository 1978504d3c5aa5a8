# Every target makes the environment it needs first. Options for a target go into ARGS:
#   make serve ARGS="--tp 2 --port 9000"      make test ARGS="tests/unit -x"
# PYTHON names another interpreter; pip's own variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) choose its index.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
# Tests in one group (tests/conftest.py) share a server or a fixture and stay on one worker.
PARALLEL := -n auto --dist loadgroup --no-loadscope-reorder

# The site's folder has links to these pages, laid out as here.
BENCHMARKS := $(wildcard benchmarks/*.py $(foreach part,answers images kernels memory processes,benchmarks/$(part)/*.py))
PAGES := README.md CHANGELOG.md CONTRIBUTING.md $(wildcard benchmarks/README.md training/README.md training/*/README.md docs/*.md docs/*.svg docs/*/*.md)

.DEFAULT_GOAL := help
.PHONY: help install serve test faults families nodes ray arm clients mutants fuzz chaos soak check check-code check-types check-pages web web-check browser format docs docs-pages docs-site docs-serve image-test first-picture kernels bench train clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Make .venv with mmserve and its tools in it
	@$(BIN)/mmserve --version
	@echo "installed: $(BIN)/mmserve serve --help"

$(INSTALLED): pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "mmserve needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || true)." >&2; \
		echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "[1/3] making the environment .venv with $$($(PYTHON) -V)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
		echo "could not make .venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "[2/3] installing mmserve and what it needs (torch is large; this takes minutes the first time)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --no-compile \
		--constraint constraints-cpu.txt --editable '.[dev,docs]'
	@echo "[3/3] compiling the modules, on all cores, and checking the installation"
	@$(BIN)/python -m compileall -q -j 0 -x '/tests/' .venv/lib mmserve >/dev/null || true # templates are no Python
	@$(BIN)/mmserve --version >/dev/null
	@touch $@

serve: $(INSTALLED) ## Serve the packaged model on http://127.0.0.1:8000
	@exec $(BIN)/mmserve serve $(ARGS)

test: $(INSTALLED) ## Run the tests, in parallel; ARGS="-n 0 tests/unit/ipc" runs one folder in one process
	@echo "running the tests"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

faults: $(INSTALLED) ## Run the tests that kill or suspend processes of real servers
	@echo "running the tests with faults"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(PARALLEL) -m faults $(ARGS) tests/e2e tests/integration/supervisor

families: $(INSTALLED) ## Compare answers of the whole server with transformers', for a tiny checkpoint of every model family
	@echo "running the tests of model families"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(PARALLEL) -m families $(ARGS) tests/e2e

ray: ## Run the tests of replicas on Ray, in .venv-ray
	@test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints-cpu.txt --editable '.[dev,ray]'
	@echo "running the tests of replicas on Ray"
	@.venv-ray/bin/python -m pytest -n 0 $(ARGS) tests/ray tests/integration/deploy/test_ray_examples.py

nodes: $(INSTALLED) ## Run the tests whose servers are on several machines, which are network namespaces; as root
	@echo "running the tests in network namespaces"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 0 -m nodes $(ARGS) tests/e2e

arm: $(INSTALLED) ## Run the kernels for AArch64 in QEMU; needs qemu-user and g++-aarch64-linux-gnu
	@echo "running the kernels for AArch64 in QEMU"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 0 -m arm $(ARGS) tests/unit/model_backend/platforms/cpu/cross

clients: $(INSTALLED) ## Test with every client, in .venv-clients, and write their table; ARGS="-k litellm" tests some
	@$(BIN)/python -m tests.clients $(ARGS)

mutants: $(INSTALLED) ## Mutation score of the pure modules, 15 minutes; ARGS="'*3'" tests a sample of an eighth
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints-cpu.txt --editable '.[mutation]'
	@$(BIN)/python -m tests.mutation_score $(ARGS)

fuzz: $(INSTALLED) ## Damaged inputs from a fixed seed; ARGS="pictures --count 50000" tries more
	@$(BIN)/python -m tests.fuzz $(ARGS)

chaos: $(INSTALLED) ## Kill and freeze every process under load, 15 minutes; ARGS="--seconds 60" for a short drill
	@$(BIN)/python -m benchmarks.chaos $(ARGS)

soak: $(INSTALLED) ## Mixed traffic at 80 % load, 30 minutes; nothing may grow; ARGS="--minutes 5" for less
	@$(BIN)/python -m benchmarks.soak $(ARGS)

check: check-code check-types check-pages web-check ## Lint, format, types, import rules, links between pages

check-code: $(INSTALLED)
	@echo "lint";         $(BIN)/ruff check .
	@echo "format";       $(BIN)/ruff format --check .
	@echo "import rules"; $(BIN)/lint-imports --config .importlinter.toml

check-types: $(INSTALLED)
	@echo "types";        $(BIN)/mypy

check-pages: $(INSTALLED) docs-pages
	@echo "pages";        $(BIN)/zensical build --strict

# Only who changes web/ needs node: what it makes is committed, and is in the wheel.
web-check:
	@echo "web page"
	@if ! command -v npm >/dev/null; then echo "  not checked: there is no npm here"; \
	elif ! $(MAKE) --no-print-directory web/node_modules/.package-lock.json; then \
		echo "  not checked: npm could not fetch what web/package-lock.json lists"; \
	else cd web && npm run --silent check && npm test --silent; fi

web/node_modules/.package-lock.json: web/package-lock.json
	@cd web && npm ci --silent && touch node_modules/.package-lock.json

web: web/node_modules/.package-lock.json ## Make the web page's files from web/ (needs node)
	@cd web && npm run --silent build && npm run --silent check

# Before .venv is there too: the compiler needs no package.
ANY_PYTHON := $(firstword $(wildcard $(BIN)/python) $(PYTHON))
kernels: ## Build the C++ kernels of all levels that this CPU has; a server builds only the fastest
	@for level in $$($(ANY_PYTHON) -c "from mmserve.model_backend.platforms.cpu.library import levels; print(*(level.name for level in levels.of_this_cpu()))"); do \
		$(ANY_PYTHON) -m mmserve.model_backend.platforms.cpu.library.build warning $$level || exit 1; done

browser: ## Install Chromium for the tests of the web page (Debian, as root); without it they are skipped
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Chromium"; \
		{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends chromium fonts-dejavu-core; } \
			>/dev/null 2>&1 || echo "  Chromium could not be installed: the tests of the web page are skipped"; \
	else echo "  no Chromium here, and it cannot be installed: the tests of the web page are skipped"; fi

format: $(INSTALLED) ## Format the code, fix what lint can fix
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: $(INSTALLED) ## Write the pages of options, fields and metrics from their tables
	@$(BIN)/python -m docs.configuration > docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md
	@$(BIN)/python -m docs.chat_fields > docs/chat_fields.md.new
	@mv docs/chat_fields.md.new docs/chat_fields.md
	@$(BIN)/python -m docs.completion_fields > docs/completion_fields.md.new
	@mv docs/completion_fields.md.new docs/completion_fields.md
	@$(BIN)/python -m docs.metrics > docs/metrics.md.new
	@mv docs/metrics.md.new docs/metrics.md
	@echo "wrote configuration.md, chat_fields.md, completion_fields.md and metrics.md in docs"

docs-pages:
	@rm -rf .site && mkdir -p $(addprefix .site/pages/,$(sort $(dir $(PAGES))))
	@for page in $(PAGES); do ln -s "$(CURDIR)/$$page" .site/pages/$$page; done

docs-site: $(INSTALLED) docs-pages ## Make the pages a site in .site/html, which needs no network
	@$(BIN)/zensical build --strict

docs-serve: $(INSTALLED) docs-pages ## Serve that site on http://127.0.0.1:8001
	@$(BIN)/zensical serve --dev-addr 127.0.0.1:8001 $(ARGS)

image-test: $(INSTALLED) ## Build and run the container image without Docker, as root, 15 minutes
	@$(BIN)/python -m tests.image_check $(ARGS)

first-picture: $(INSTALLED) ## Clone, make serve, paste a picture on the page: the answer must come within three minutes
	@$(BIN)/python -m tests.first_picture $(ARGS)

bench: $(INSTALLED) ## Run every benchmark that needs no arguments, but for make chaos and make soak
	@set -e; for file in $$(grep -l '__main__' $(BENCHMARKS) | xargs grep -L 'required=True' | grep -vE '/(chaos|soak).py'); do \
		name=$$(echo $${file%.py} | tr / .); echo "$$name"; $(BIN)/python -m $$name $(ARGS); done

train: $(INSTALLED) ## Train the packaged model anew into runs/; started again, it goes on where it was
	@$(BIN)/python -m training.schedule $(ARGS)

clean: ## Remove the environment and caches
	@rm -rf .venv .venv-clients .site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache mutants
