# Everything a person or CI types. Each target installs what it needs and says what it does.

.PHONY: run test lint bench golden embedded setup

CARGO ?= cargo
PYTHON ?= python3
SAMPLE := assets/sample.txt
QUESTION = $(shell sed -n 's/.*"question": *"\([^"]*\)".*/\1/p' assets/sample.json | head -n 1)

# Ask the sample document the sample question with the model in the box, and paint what was kept.
run: setup
	$(CARGO) build --release -p kept
	@echo
	@echo "kept ask --document $(SAMPLE) --question \"$(QUESTION)\" --paint"
	@echo
	@"$$(scripts/target-dir)/release/kept" ask --document $(SAMPLE) --question "$(QUESTION)" --paint
	@echo
	@echo "Ask a file of your own:  $$(scripts/target-dir)/release/kept ask --document my.pdf --question \"...\""

# Everything that must hold: formatting, lints, unit tests, goldens, the program end to end.
test: setup lint
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Speed, side by side in one run: kernels, then reading and answering with and without a full cache.
bench: setup
	$(CARGO) bench -p kept-kernels
	$(CARGO) build --release -p kept
	scripts/bench "$$(scripts/target-dir)/release/kept"

# Remake the committed goldens with Hugging Face transformers, llama.cpp and the oracle (needs Python and the network).
golden:
	$(PYTHON) -m venv target/golden-venv
	target/golden-venv/bin/pip install --quiet -r tests/golden/requirements.txt
	target/golden-venv/bin/python tests/golden/make_golden.py

# The engine inside another program, in a few lines: engine/examples/embedded.rs.
embedded: setup
	$(CARGO) run --release -p kept-engine --example embedded -- assets/mini.gguf $(SAMPLE) "$(QUESTION)"

setup:
	@scripts/setup
