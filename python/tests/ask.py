"""Asks the built-in model: ask.py SAMPLE QUESTION ANSWER. Run where the wheel is installed."""

import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

import numpy as np

import kept

sample, question, expected = sys.argv[1:]


def refused(
    *words, ask=lambda **options: kept.ask(sample, question, model="mini", **options), kind=kept.KeptError, **options
):
    try:
        ask(**options)
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"{options} is accepted")


# The answer, its facts and its source.
pieces, progress = [], []
answer = kept.ask(
    sample,
    question,
    model="mini",
    method="snapkv",
    budget="25%",
    on_text=pieces.append,
    on_progress=lambda *event: progress.append(event),
)
assert expected in answer.text and "".join(pieces) == answer.text, (answer.text, pieces)
assert progress and progress[-1][0] == progress[-1][1]
assert answer.facts["method"] == "snapkv" and answer.facts["finish"] == "end", answer.facts
assert 0 < answer.facts["kv_bytes"] < answer.facts["kv_bytes_full"] / 3
document = kept.Document(sample)
content = document.text.encode()
assert document.text == pathlib.Path(sample).read_text()
source = answer.sources[0]
assert expected in source.text and content[source.start : source.end].decode() == source.text

# The map.
kept_map = answer.map
layers, heads, tokens = kept_map.retention.shape
assert kept_map.retention.dtype == np.uint8 and tokens == answer.facts["prompt_tokens"]
assert kept_map.windows.shape == (layers,) and (kept_map.windows == -1).all()
assert kept_map.spans.shape == (tokens, 2) and kept_map.shares.shape == (tokens,)
rows = (kept_map.retention == 1).sum(axis=(1, 2)) / heads
assert np.allclose(rows, answer.facts["rows_per_layer"]), rows
assert np.allclose((kept_map.retention > 0).mean(axis=(0, 1)), kept_map.shares)
inside = kept_map.spans[kept_map.spans[:, 0] >= 0]
assert inside[0, 0] == 0 and inside[-1, 1] == len(content) and (inside[1:, 0] == inside[:-1, 1]).all()
other = kept.map(sample, question, model="mini", method="snapkv", budget="25%")
assert (other.retention == kept_map.retention).all()
full = kept.map(sample, question, model="mini", method="full")
assert (full.retention == 1).all()

# A text, an earlier turn, and the same model from two threads.
model = kept.Model("mini")
fact = kept.Document(text="The gate code of Edgar Tollen is 8154.")
answers = {}


def ask(name):
    answers[name] = model.ask(fact, "What is the gate code of Edgar Tollen?", turns=[("Is there a code?", "Yes.")])


threads = [threading.Thread(target=ask, args=(name,)) for name in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert all("8154" in answers[name].text for name in range(2)), answers

# The vault: the second question need not read the document.
with tempfile.TemporaryDirectory() as folder:
    model.ask(sample, question, vault=folder)
    assert model.ask(sample, question, vault=folder).facts["tokens_from_vault"] > 1000

# Errors are sentences; an exception of the caller passes through.
refused("much", budget="much")
refused("snapkw", method="snapkw")
refused("1 elephant", memory="1 elephant")
refused("f17", cache="f17")
refused("top-p=2", top_p=2.0)
refused("max_tokens=-1", max_tokens=-1)
refused("seed=0.5", seed=0.5)
refused("question", "None", ask=lambda: kept.ask(sample, None, model="mini"), kind=TypeError)
refused("method", "7", method=7, kind=TypeError)
refused("absent.txt", ask=lambda: kept.ask("absent.txt", question, model="mini"))
refused("absent.gguf", ask=lambda: kept.ask(sample, question, model="absent.gguf"))


def interrupted(document, **options):
    """The seconds until Ctrl-C has ended a question."""
    started = time.monotonic()
    try:
        model.ask(document, question, **options)
    except KeyboardInterrupt:
        return time.monotonic() - started
    raise AssertionError(f"the interrupt of {options} is lost")


def raising(*_):
    raise KeyboardInterrupt


def signalled(*_):
    signal.raise_signal(signal.SIGINT)


# A program that a shell has started in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
for callback in (raising, signalled):
    interrupted(sample, on_text=callback)
    interrupted(sample, on_progress=callback)
# While a book is read that takes minutes, with and without callbacks.
book = kept.Document(text=document.text * 400)
for seconds, callbacks in [(0.1, {}), (0.3, {}), (1.5, {}), (1.5, {"on_progress": lambda *_: None})]:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    took = interrupted(book, method="streaming_llm", budget="512", **callbacks)
    assert took < seconds + 20, took
# Callbacks run on the thread that asks; the model answers as before.
callers = []
after = model.ask(fact, "What is the gate code of Edgar Tollen?", on_text=lambda _: callers.append(threading.get_ident()))
assert "8154" in after.text and set(callers) == {threading.get_ident()}
print("all checks passed")
