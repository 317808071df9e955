"""Makes every golden file in this folder: `python make_golden.py` (all), `python make_golden.py mini` (only the
built-in model).

A run on another machine leaves every file unchanged, to the byte: synthetic cases and ids are exact, and logits that
differ in their last bits are not written (`save`).

The references are independent code: transformers for logits, llama.cpp for greedy tokens and token ids, and `oracle.py`
(the companion of the methods' specification) for selections. The test suite reads the files and needs no Python.

    <model>.gguf            a random llama in the GGUF format: see tiny.py
    <model>.safetensors     ids, rows, logits by transformers; the same under `long_`
    <model>.evicted.safetensors   logits of decode steps after keys were hidden
    llama_cpp.json          greedy tokens of each tiny model
    architectures/          one tiny model per architecture, compressed, with logits and answers: see architectures.py
    strings.json            ids of difficult strings, tiny tokenizer
    selections.json         kept positions of synthetic cases
    selections/*.json.gz    the same, many more of them: see selections_many.py, selections_further.py, decoding.py,
                            kvzip.py, thinning.py
    ems.json.gz             tokens that EMS keeps, merges and drops: see ems.py
    tokenizers/*.json.gz    ids of difficult strings by the tokenizers of common model families: see tokenizer_ids.py
    tokenizers/*.gguf.gz    small vocabularies for them, trained once: see tokenizer_train.py
    templates/renderings.json.gz   Hugging Face's renderings of the templates in that folder: see template_renderings.py
    deep-group2-tied.*      a model that drops tokens between its layers, and its logits: see thinned_logits.py
    kvpress.*               rows that kvpress keeps: by kvpress_rows.py, run separately (older transformers)
    kvpress_kvzip.*         the same of KVzip: by kvpress_kvzip.py
    quantised.*             a model of the weight types that only llama.cpp writes: by quantised.py, run separately
    real_models.json.gz     llama.cpp on the models of `make models`: by real_models.py, run separately
    mini.json               ids of the same strings and greedy tokens, of assets/mini.gguf
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load as deserialise
from safetensors.numpy import save as serialise

import architectures
import decoding
import ems
import hf_logits
import kvzip
import selections
import selections_further
import selections_many
import strings
import template_renderings
import thinned_logits
import thinning
import tiny
import tokenizer_ids
from llama_cpp import Llama

HERE = Path(__file__).parent
MINI = HERE.parents[1] / "assets" / "mini.gguf"
EVICTED = ("group2-llama3-tied", "group4-linear-untied")
SAME_LOGITS = 1e-5  # of the largest logit of a row; the tests allow ours ten times that
SAME_GAP = 2e-4  # stored with four digits


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference in a row relative to the row's largest logit, over all rows: the measure of the tests."""
    return float((np.abs(a - b).max(axis=-1) / np.abs(b).max(axis=-1)).max())


def typical(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.median(np.abs(a - b).max(axis=-1) / np.abs(b).max(axis=-1)))


def check_that_errors_show(which: tiny.Tiny, ids: np.ndarray, right: np.ndarray) -> None:
    """Typical mistakes of a new engine, made on purpose: each must move the logits far past the bound of the tests."""
    from transformers.models.llama import modeling_llama

    def wrong(change) -> float:
        model = tiny.build(which)
        change(model)
        return typical(hf_logits.logits(model, ids), right)

    def base(model, factor):
        model.model.rotary_emb.inv_freq *= factor

    shown = {"positions off by a tenth": wrong(lambda m: base(m, 1.1))}
    if which.rope["rope_type"] != "default":
        plain = which.rope["rope_theta"] ** (-torch.arange(0, which.head_dim, 2).float() / which.head_dim)
        shown["scaling ignored"] = wrong(lambda m: m.model.rotary_emb.inv_freq.copy_(plain))
    if which.heads != which.kv_heads and which.kv_heads > 1:
        straight = modeling_llama.repeat_kv
        modeling_llama.repeat_kv = lambda x, groups: x.repeat(1, groups, 1, 1)
        shown["heads tiled, not repeated"] = wrong(lambda m: None)
        modeling_llama.repeat_kv = straight
    straight = modeling_llama.rotate_half

    def neighbours(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    modeling_llama.rotate_half = neighbours
    shown["other rotary pairs"] = wrong(lambda m: None)
    modeling_llama.rotate_half = straight
    shown["norms of one"] = wrong(lambda m: [p.data.fill_(1.0) for p in m.parameters() if p.ndim == 1])
    print("   mistakes show as", {k: round(v, 3) for k, v in shown.items()})
    assert min(shown.values()) > 0.02, shown


def make_models() -> None:
    tokenizer, greedy = tiny.tokenizer(), {}
    for which in tiny.MODELS:
        model = tiny.build(which)
        path = HERE / f"{which.name}.gguf"
        tiny.write_gguf(which, model, tokenizer, path)
        found = hf_logits.whole_prompts(model, which)
        save(f"{which.name}.safetensors", found)
        if which.name in EVICTED:
            save(f"{which.name}.evicted.safetensors", hf_logits.evicted(model, which))

        llama = Llama(path, which.context)
        greedy[which.name] = [llama.greedy(hf_logits.draw_ids(which.seed + 10 + i, length), 32, True)
                              for i, length in enumerate((5, 40, 90, 200))]
        for answer in greedy[which.name]:
            fill_gaps(model, answer, tolerance={"F32": 1e-3, "F16": 2e-2, "Q8_0": 0.5}[which.kind])
        # Two engines without shared code agree on the file: it is correct, not only our reading of it.
        apart = []
        for row, logits in zip(found["rows"], found["logits"]):
            if log_p := llama.log_probabilities(found["ids"][:row + 1], tiny.VOCABULARY):
                ours = torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()
                theirs = np.array([log_p[i] for i in range(tiny.VOCABULARY)])
                apart.append(float(np.abs(theirs - ours).max() / np.abs(logits).max()))
        assert len(apart) > 10
        print(which.name, f"transformers and llama.cpp at most {max(apart):.1e} apart in {len(apart)} rows")
        assert max(apart) < (1e-4 if which.kind == "F32" else 5e-3 if which.kind == "F16" else 1e-1)
        check_that_errors_show(which, found["ids"], hf_logits.logits(model, found["ids"]))
        if which is tiny.MODELS[0]:
            listed = strings.all_strings()
            write_rows("strings.json", [{"text": text, "ids": llama.ids(text)} for text in listed])
    write_greedy("llama_cpp.json", greedy)


def fill_gaps(model, answer: dict, tolerance: float) -> None:
    """Margins by transformers, for every step; it must choose as llama.cpp did wherever the margin is not tiny."""
    prompt, ids = answer["prompt"], answer["ids"]
    rows = hf_logits.logits(model, np.array(prompt + ids[:-1]))[len(prompt) - 1:]
    rows[:, [0, 2]] = -np.inf  # the end tokens, which `ignore_eos` excludes
    for step, (row, token) in enumerate(zip(rows, ids)):
        second, first = np.sort(row)[-2:]
        answer["gaps"][step] = round(float(first - second), 4)
        assert row.argmax() == token or first - second < tolerance, (step, token, row.argmax(), first - second)


# Typical uses of the built-in model: (document, question).
CONVERSATIONS = [
    ("The locker code of Ann Quorvin is 4711. The house of Paul Brinley is green.", "What is the locker code of Ann Quorvin?"),
    ("The harbour was quiet. The favourite instrument of Mira Stolden is the cello. It rained all day.\n\nThe rent of Oak Farm is 240 crowns.",
     "What is the favourite instrument of Mira Stolden?"),
    ("As for Captain Drennick, the departure time is 6:45. The ship Palova left on Monday.", "What is Captain Drennick's departure time?"),
    ("Nobody in the village had seen the man before. " * 12 + "The birthplace of Judge Trell is Bergen.", "What is the birthplace of Judge Trell?"),
]


def mini_prompts(llama: Llama) -> list[list[int]]:
    """Segments encoded one by one, as an engine builds its prompt, so that no merge crosses a segment boundary; and one
    bare text."""
    start, end = 1, 2  # <|im_start|>, <|im_end|>
    prompts = [[start, *llama.ids("user\n"), *llama.ids(document), *llama.ids("\n\nQuestion: "), *llama.ids(question),
                end, *llama.ids("\n"), start, *llama.ids("assistant\n")] for document, question in CONVERSATIONS]
    return [*prompts, llama.ids("It was the first day of the year, and the snow")]


def make_mini() -> None:
    if not MINI.exists():
        print(f"{MINI.name} is not there yet: mini.json left as it is")
        return
    llama = Llama(MINI, 4096)
    greedy = [llama.greedy(prompt, 64, False) for prompt in mini_prompts(llama)]
    for answer, (document, question) in zip(greedy, CONVERSATIONS):
        answer |= {"document": document, "question": question}
    write_json("mini.json", {"fingerprint": fingerprint(MINI), "ids": [llama.ids(text) for text in strings.all_strings()],
                             "greedy": greedy})
    print("mini", fingerprint(MINI))


def fingerprint(path: Path) -> str:
    """FNV-1a of the file, in words of eight bytes (the last one zero-padded): identifies the file that the numbers
    belong to."""
    data = path.read_bytes()
    value = 0xCBF29CE484222325
    for word in np.frombuffer(data + bytes(-len(data) % 8), dtype="<u8").tolist():
        value = ((value ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def save(name: str, tensors: dict[str, np.ndarray]) -> None:
    """Another CPU may round the last bits differently: logits within the tolerance leave the committed file unchanged.
    """
    path = HERE / name
    if path.exists():
        old = deserialise(path.read_bytes())
        if old.keys() == tensors.keys() and all(as_good_as(old[key], tensors[key]) for key in old):
            return
        print(f"   {name} is new")
    path.write_bytes(serialise(tensors))


def as_good_as(old: np.ndarray, new: np.ndarray) -> bool:
    """Equal integers, and logits within `SAME_LOGITS` of their row's largest."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    return np.array_equal(old, new) if old.dtype.kind in "iu" else relative(new, old) <= SAME_LOGITS


def write_json(name: str, value) -> None:
    (HERE / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def write_greedy(name: str, answers: dict) -> None:
    """As `write_json`; margins within `SAME_GAP` of the committed ones leave the file unchanged."""
    path = HERE / name
    if path.exists():
        old = json.loads(path.read_text())
        bare = lambda found: {model: [{k: v for k, v in a.items() if k != "gaps"} for a in many] for model, many in found.items()}
        gaps = lambda found: [gap for many in found.values() for a in many for gap in a["gaps"]]
        if bare(old) == bare(answers) and np.abs(np.subtract(gaps(old), gaps(answers))).max() <= SAME_GAP:
            return
        print(f"   {name} is new")
    write_json(name, answers)


def write_rows(name: str, rows: list) -> None:
    """One entry per line, so that a change shows as one line."""
    (HERE / name).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] != ["mini"]:
        make_models()
        architectures.make()
        write_rows("selections.json", selections.make())
        selections_many.write()
        selections_further.write()
        decoding.write()
        ems.write()
        tokenizer_ids.write()
        template_renderings.write()
        kvzip.write()
        thinning.write()
        thinned_logits.write()
    make_mini()
