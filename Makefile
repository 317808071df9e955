# Targets for users and CI. Each target installs its dependencies and prints its actions.

.PHONY: run check test test-window test-programs hostile crashes fuzz dist test-dist models vocabularies lint page bench golden wheel embedded cuda test-gpu bench-gpu setup setup-test

# The folder into which rustup or apt installs cargo if it was missing when make started.
export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO ?= cargo
PYTHON ?= python3
SAMPLE := assets/sample.txt
QUESTION = $(shell sed -n 's/.*"question": *"\([^"]*\)".*/\1/p' assets/sample.json | head -n 1)

# The integration tests start many programs at once, whose waiting threads spin: one thread per program is faster. Unit
# tests run with all threads.
ONE_THREAD := CANDLE_NUM_THREADS=1 RAYON_NUM_THREADS=1

# Open the app with the sample document; without a display, answer the sample question in the terminal. Small real
# models are downloaded first if possible; the built-in model needs no download.
run: setup page
	@scripts/models || echo "Going on without them: the built-in model needs no download."
	$(CARGO) build --release -p kept -p kept-worker -p kept-app --bins
	@scripts/run "$$(scripts/target-dir)" "$(QUESTION)"

# The fast part: formatting, lints, types, unit tests.
check: setup page lint
	cd ui && ../scripts/node npm run --silent test
	$(CARGO) test --workspace --lib --bins
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) deny check bans licenses sources; \
	else \
	    echo "cargo-deny is not installed: licences and sources of dependencies are not checked"; \
	fi

# Everything: what `check` does, goldens, the programs end to end, the real app window. The tests of the window wait more
# than they compute, so the other tests run beside them.
test: setup-test check
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace --no-run --test '*'
	$(MAKE) --jobs 2 --keep-going $(TOGETHER) test-window test-programs

test-window:
	$(ONE_THREAD) $(CARGO) test --workspace --test window

test-programs:
	$(ONE_THREAD) $(CARGO) test --workspace --no-fail-fast --test '[!w]*' --test watched

# Prints the output of each target when it ends (GNU make 4).
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# 5,000 hostile documents, templates and models through the program: minutes.
hostile: setup
	$(CARGO) build --workspace --bins
	scripts/hostile "$$(scripts/target-dir)/debug/kept"

# 1,000 kills of the programs and damages of their files, and what is left runs again: minutes.
crashes: setup page
	$(CARGO) build --workspace --bins
	scripts/crashes "$$(scripts/target-dir)/debug"

# Fuzzing by coverage, a minute for each target of fuzz/ (FUZZ_SECONDS=3600: an hour); the first build takes long.
fuzz: setup
	scripts/fuzz

# Two small real models, into the cache folder: for trying Kept, and for tests (--test models real_models).
models:
	@scripts/models

# Published vocabularies, into the same folder, for tests only (--test models vocabularies).
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

# The programs for Linux in dist/: a .deb, a .tar.gz and a Python wheel; `wheel` makes only that. KEPT_PROGRAMS names a
# folder with programs that are built already.
dist: setup page
	@[ -n "$(KEPT_PROGRAMS)" ] || scripts/build-dist kept kept-worker kept-app kept-capi
	@scripts/dist "$(or $(KEPT_PROGRAMS),target/dist/release)"

wheel: setup
	@[ -n "$(KEPT_PROGRAMS)" ] || scripts/build-dist kept-capi
	@scripts/wheel "$(or $(KEPT_PROGRAMS),target/dist/release)/libkept.so" dist

# Installs the .deb in a fresh Debian, opens a document with it, removes it. Needs root, a network and debootstrap.
test-dist:
	@scripts/test-dist dist/kept_*.deb

# The app's page, which the program embeds.
page: setup
	@scripts/page

# Speed, in one run: kernels, then prefill and decode with and without a full cache.
bench: setup
	$(CARGO) bench -p kept-kernels -p kept-engine
	$(CARGO) build --release -p kept
	scripts/bench "$$(scripts/target-dir)/release/kept"

# Remake the committed goldens with Hugging Face transformers, llama.cpp, kvpress and the oracle (needs Python and the
# network).
golden:
	$(PYTHON) -m venv target/golden-venv
	target/golden-venv/bin/pip install --quiet -r tests/golden/requirements.txt
	target/golden-venv/bin/python tests/golden/make_golden.py
	target/golden-venv/bin/python tests/golden/quantised.py
	$(PYTHON) -m venv target/golden-kvpress
	target/golden-kvpress/bin/pip install --quiet -r tests/golden/requirements-kvpress.txt
	target/golden-kvpress/bin/python tests/golden/kvpress_rows.py
	target/golden-kvpress/bin/python tests/golden/kvpress_kvzip.py
	scripts/models
	scripts/models qwen2.5-1.5b
	scripts/models vocabularies
	target/golden-venv/bin/python tests/golden/real_models.py
	target/golden-venv/bin/python tests/golden/real_tokens.py
	target/golden-kvpress/bin/python tests/golden/kvpress_real.py

# The engine inside another program, in a few lines: engine/examples/ask.rs.
embedded: setup
	$(CARGO) run --release -p kept-engine --example ask -- assets/mini.gguf $(SAMPLE) "$(QUESTION)"

# The terminal program, the worker and their tests for NVIDIA GPUs, into target/cuda/programs; the worker also next to
# the app as kept-worker-cuda, where `make run` finds it. Installs the compiler from packages; the programs need only
# the driver, and name it in an error if it is missing. The first build takes an hour or more on two cores: half of it
# for candle's kernels, most of the rest for linking the tests.
cuda: setup
	scripts/build-cuda

# Tests that need a GPU; builds nothing.
test-gpu:
	@scripts/test-gpu "$$(scripts/target-dir)/cuda/programs"

# Speed and memory on a GPU, against the GPU's limits; builds nothing.
bench-gpu:
	@scripts/bench-gpu "$$(scripts/target-dir)/cuda/programs"

setup:
	@scripts/setup build

setup-test:
	@scripts/setup test
