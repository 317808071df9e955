"""Asks the built-in model: ask.py SAMPLE QUESTION ANSWER. Run where the wheel is installed."""

import pathlib
import sys
import tempfile
import threading

import numpy as np

import kept

sample, question, expected = sys.argv[1:]


def refused(*words, ask=lambda **options: kept.ask(sample, question, model="mini", **options), **options):
    try:
        ask(**options)
    except kept.KeptError as error:
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
refused("absent.txt", ask=lambda: kept.ask("absent.txt", question, model="mini"))
refused("absent.gguf", ask=lambda: kept.ask(sample, question, model="absent.gguf"))


def interrupt(piece):
    raise KeyboardInterrupt


for name in ("on_text", "on_progress"):
    try:
        model.ask(sample, question, **{name: interrupt if name == "on_text" else lambda *_: interrupt("")})
    except KeyboardInterrupt:
        continue
    raise AssertionError("the exception is lost")
print("all checks passed")
