"""Token ids of difficult strings by published vocabularies: `python real_tokens.py` (after `make models vocabularies`).

The families of `make vocabularies` use Hugging Face's `tokenizers`, which reads the published tokenizer.json; the
models of `make models` use llama.cpp. real_tokens.json.gz has for each

    ids         of each of `texts`
    documents   of each document of tests/qa: its number of tokens, and their fingerprint

The vocabularies themselves remain in the cache folder. Control tokens in a text are text, as in a document. Which
tokens are control tokens is decided by llama.cpp's converter: it counts more of them than a tokenizer.json does
(Gemma's `<unused3>`).

gemma3 and gemma-3-270m are one vocabulary, so both have the same ids. The two engines differ on it only in these cases;
the script fails at any other:

    "</s>"            a tag of HTML that is one token: llama.cpp treats it as an end of answer and splits it.
                      Golden: Hugging Face's ids.
    U+2581 in a text  next to another one or a space: `tokenizers` maps two signs to the token of two spaces, and counts
                      mixed ones in two ways; llama.cpp maps only spaces to it, and so does Kept. Golden: llama.cpp's ids.
"""

import gzip
import json
import re

from tokenizers import Tokenizer

from fetched import HERE, fetched
from llama_cpp import Llama
from real_models import DOCUMENTS, fingerprint
from tokenizer_texts import hard_strings

WRITTEN = 687  # handwritten difficult strings; of the others every fourth is used
# SmolLM2's vocabulary has no token for six of these characters, nor for the first byte of the last two.
BARE = [f"the{chr(code)} end{chr(code)}" for code in [*range(0x20), 0x7F, 0x40000, 0x80000]]
SIGNS = re.compile("\u2581[\u2581 ]| \u2581")


def looks_special(token: str) -> bool:
    """Tokens that llama.cpp's converter treats as control tokens regardless of the file."""
    ends = [("<|", "|>"), ("<｜", "｜>"), ("<unused", ">")]
    return token in ("<pad>", "<mask>") or any(token.startswith(start) and token.endswith(end) for start, end in ends)


def hugging_face(file) -> Tokenizer:
    published = json.loads(file.read_text(encoding="utf-8"))
    for token in published["added_tokens"]:
        token["special"] |= looks_special(token["content"])
    tokenizer = Tokenizer.from_str(json.dumps(published))
    tokenizer.encode_special_tokens = True
    return tokenizer


def settled(text: str, by_hf: list[int], by_llama: list[int]) -> list[int]:
    """Gemma's ids of a text."""
    if by_hf == by_llama or "</s>" in text:
        return by_hf
    assert SIGNS.search(text), (text, by_hf, by_llama)
    return by_llama


def main() -> None:
    models = fetched()
    hard = hard_strings()
    texts = hard[:WRITTEN] + hard[WRITTEN::4] + BARE
    documents = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.iterdir())}
    everything = texts + list(documents.values())
    found = {}
    for name, model in (models.VOCABULARIES | {name: models.MODELS[name] for name in models.SMALL}).items():
        file = models.folder() / model["file"]
        if not models.is_whole(file, model):
            raise SystemExit(f"{file} is not there: run `make models vocabularies`")
        if name in models.MODELS:
            llama = Llama(file, 512)
            found[name] = [llama.ids(text) for text in everything]
        else:
            found[name] = [encoding.ids for encoding in hugging_face(file).encode_batch(everything, add_special_tokens=False)]
        print(name, sum(map(len, found[name])), "tokens", flush=True)
    gemma = [settled(*each) for each in zip(everything, found["gemma3"], found["gemma-3-270m"])]
    found["gemma3"] = found["gemma-3-270m"] = gemma
    golden = {"texts": texts}
    for name, ids in found.items():
        golden[name] = {
            "ids": ids[: len(texts)],
            "documents": {document: [len(said), fingerprint(said)] for document, said in zip(documents, ids[len(texts) :])},
        }
    packed = gzip.compress(json.dumps(golden, separators=(",", ":"), ensure_ascii=False).encode(), 9, mtime=0)
    (HERE / "real_tokens.json.gz").write_bytes(packed)
    print(f"{len(packed)} bytes")


if __name__ == "__main__":
    main()
