# Everything a person or CI types. Each target installs what it needs and says what it does.

.PHONY: run test models vocabularies lint page bench golden embedded cuda test-gpu bench-gpu setup setup-test

# Where rustup or apt put cargo on a machine that had none when make started.
export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO ?= cargo
PYTHON ?= python3
SAMPLE := assets/sample.txt
QUESTION = $(shell sed -n 's/.*"question": *"\([^"]*\)".*/\1/p' assets/sample.json | head -n 1)

# Tests start many programs at once, and threads that wait for each other spin: one thread each is quicker there. The kernels'
# own tests run before with all threads.
ONE_THREAD := CANDLE_NUM_THREADS=1 RAYON_NUM_THREADS=1

# Open the window with the sample document; without a display, answer the sample question in the terminal. Small real models are fetched
# first where that is possible; the one in the box needs none.
run: setup page
	@scripts/models || echo "Going on without them: the model in the box needs no download."
	$(CARGO) build --release -p kept -p kept-engine -p kept-app --bins
	@scripts/run "$$(scripts/target-dir)" "$(QUESTION)"

# Everything that must hold: formatting, lints, the page, unit tests, goldens, the programs end to end, the real window.
test: setup-test page lint
	cd ui && ../scripts/node npm run --silent test
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace --lib
	$(ONE_THREAD) $(CARGO) test --workspace --no-fail-fast

# Two small real models, into the cache folder: for trying Kept, and for the tests that want one (--test models real_models).
models:
	@scripts/models

# Published vocabularies, beside them and for tests alone (--test models vocabularies).
vocabularies: setup
	@scripts/models vocabularies

lint: setup page
	$(CARGO) fmt --all --check
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
	    set -x; $(CARGO) clippy --workspace --all-targets -- -D warnings; \
	else \
	    echo "clippy is not installed with this Rust: its lints are skipped"; \
	fi
	cd ui && ../scripts/node npm run --silent check

# The page of the window, which the app embeds.
page: setup
	@scripts/page

# Speed, side by side in one run: kernels, then reading and answering with and without a full cache.
bench: setup
	$(CARGO) bench -p kept-kernels -p kept-policies
	$(CARGO) build --release -p kept
	scripts/bench "$$(scripts/target-dir)/release/kept"

# Remake the committed goldens with Hugging Face transformers, llama.cpp, kvpress and the oracle (needs Python and the network).
golden:
	$(PYTHON) -m venv target/golden-venv
	target/golden-venv/bin/pip install --quiet -r tests/golden/requirements.txt
	target/golden-venv/bin/python tests/golden/make_golden.py
	$(PYTHON) -m venv target/golden-kvpress
	target/golden-kvpress/bin/pip install --quiet -r tests/golden/requirements-kvpress.txt
	target/golden-kvpress/bin/python tests/golden/kvpress_rows.py
	target/golden-kvpress/bin/python tests/golden/kvpress_kvzip.py
	scripts/models
	scripts/models vocabularies
	target/golden-venv/bin/python tests/golden/real_models.py
	target/golden-venv/bin/python tests/golden/real_tokens.py

# The engine inside another program, in a few lines: engine/examples/embedded.rs.
embedded: setup
	$(CARGO) run --release -p kept-engine --example embedded -- assets/mini.gguf $(SAMPLE) "$(QUESTION)"

# The terminal program, the window's engine and their tests for NVIDIA GPUs, into target/cuda/programs; the engine also beside
# the window as kept-worker-cuda, where `make run` finds it. Fetches the compiler by package; the programs need the driver only, and say so
# where there is none. The first time it takes an hour or more on two cores: half of it candle's kernels, most of the rest linking the tests.
cuda: setup
	scripts/build-cuda

# What only a GPU can prove; builds nothing.
test-gpu:
	@scripts/test-gpu "$$(scripts/target-dir)/cuda/programs"

# Speed and memory on a GPU, beside what the GPU can do at most; builds nothing.
bench-gpu:
	@scripts/bench-gpu "$$(scripts/target-dir)/cuda/programs"

setup:
	@scripts/setup build

setup-test:
	@scripts/setup test
