"""KVzip's selection by kvpress from a tiny model's prompt: `kvpress_kvzip.safetensors`, `kvpress_kvzip.json`. As
`kvpress_rows.py`, in the same environment.

Correspondence between the two:

- kvpress loads a tokenizer from the hub by the model's name; it is given the one that `tiny.py` makes. That tokenizer's
  chat template yields both the tokens before the document (`before`) and those between the request to repeat and the
  repetition.
- kvpress gives the template before the document a score of 0 (it is dropped first, except for the sinks); Kept always
  keeps it. With as many sinks as the template has tokens the two are equal.
- kvpress's `layerwise` is Kept's `spread=layer`; its default, all layers together, is `spread=model`.
- kvpress has no question: the prompt ends with the document.

Also for every model: the tokens of all repetitions as kvpress builds them, and the logits of the model that reads each
of them after the whole prompt (`<model>.repeat_ids`, and of every seventh row `<model>.repeat_logits`): the engine's
reconstruction pass must equal it.
"""

import copy
import json

import numpy as np
import torch
from kvpress import KVzipPress
from kvpress.presses import kvzip_press
from safetensors.numpy import save as serialise
from transformers import DynamicCache, PreTrainedTokenizerFast

import tiny
from kvpress_rows import HERE, MODELS, N, STEPS, draw_ids, press
from selections import ranges

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
CHUNK = 40

# name: (settings of kvpress, rows kept, parameters of Kept)
CASES = {
    "kvzip_layer": ({"layerwise": True, "chunk_size": CHUNK}, 48, f"chunk={CHUNK},spread=layer"),
    "kvzip_layer_small": ({"layerwise": True, "chunk_size": 17}, 16, "chunk=17,spread=layer"),
    "kvzip_layer_whole": ({"layerwise": True}, 48, "spread=layer"),
    "kvzip_model": ({"chunk_size": CHUNK}, 48, f"chunk={CHUNK},spread=model"),
    "kvzip_model_small": ({}, 16, "spread=model"),
}


class Handed:
    """Replaces `AutoTokenizer`."""

    tokenizer = None

    @classmethod
    def from_pretrained(cls, _):
        return cls.tokenizer


def tokenizer() -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=tiny.tokenizer(), eos_token="<|im_end|>",
                                   additional_special_tokens=["<|im_start|>"], clean_up_tokenization_spaces=False)
    made.chat_template = TEMPLATE
    return made


@torch.no_grad()
def repeated(model, ids: torch.Tensor, before: int) -> tuple[np.ndarray, np.ndarray]:
    """[rows] tokens, [rows, vocabulary] logits of each chunk's repetition, independent of the other repetitions."""
    whole = DynamicCache()
    model(ids[None, :N], past_key_values=whole)
    made = KVzipPress(0.5, chunk_size=CHUNK)
    made._context_ids, made.context_length, made.prefix_length = ids[None, :N], N, before
    _, suffix = Handed.tokenizer.apply_chat_template([{"role": "user", "content": "#?#"}], add_generation_prompt=True, tokenize=False).split("#?#")
    made._suffix_ids = Handed.tokenizer.encode(suffix, return_tensors="pt", add_special_tokens=False)
    tokens, logits = [], []
    for _, repeat in made.prepare(model, Handed.tokenizer):
        tokens.append(repeat[0].numpy())
        logits.append(model(repeat, past_key_values=copy.deepcopy(whole)).logits[0].float().numpy())
    return np.concatenate(tokens).astype(np.int32), np.concatenate(logits)


def main() -> None:
    torch.set_num_threads(1)
    Handed.tokenizer = tokenizer()
    kvzip_press.AutoTokenizer = Handed
    ahead = Handed.tokenizer.encode("<|im_start|>user\n", add_special_tokens=False)
    before, tensors, cases = len(ahead), {}, []
    for name in MODELS:
        which = next(m for m in tiny.MODELS if m.name == name)
        model, exact = tiny.build(which), tiny.build(which).double()
        for one in (model, exact):
            one.set_attn_implementation("sdpa")
        drawn = draw_ids(which.seed + 50)
        drawn = drawn[~torch.isin(drawn, torch.tensor(ahead))][:N + STEPS - before]
        ids = torch.cat([torch.tensor(ahead), drawn])
        if len(ids) < N + STEPS:
            raise SystemExit("too few tokens are left")
        tensors[f"{name}.ids"] = ids.numpy().astype(np.int32)
        tensors[f"{name}.repeat_ids"], logits = repeated(model, ids, before)
        tensors[f"{name}.repeat_logits"] = np.ascontiguousarray(logits[::7])
        for case, (settings, rows, values) in CASES.items():
            made = lambda: KVzipPress(1 - rows / N, n_sink=before, **settings)
            kept, logits = press(model, ids, made(), STEPS)
            torch.set_default_dtype(torch.float64)  # kvpress creates its mask in the default dtype
            again, _ = press(exact, ids, made(), 0)
            torch.set_default_dtype(torch.float32)
            assert all(np.array_equal(a, b) for x, y in zip(kept, again) for a, b in zip(x, y)), f"{name} {case}: too close, change the seed"
            total = sum(len(head) for layer in kept for head in layer)
            assert total == rows * which.layers * which.kv_heads, (name, case, total)
            tensors[f"{name}.{case}"] = logits
            values = ",".join(filter(None, (values, f"sinks={before}")))
            cases.append({"model": name, "case": case, "method": "kvzip", "set": values, "budget": rows, "before": before,
                          "kept": [[ranges(head) for head in layer] for layer in kept]})
            print(name, case, [len(head) for layer in kept for head in layer])
    (HERE / "kvpress_kvzip.safetensors").write_bytes(serialise(tensors))
    (HERE / "kvpress_kvzip.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
