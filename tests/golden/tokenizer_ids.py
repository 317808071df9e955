"""Ids of 2,400 difficult strings by every family's tokenizer: `tokenizers/<family>.json.gz`, over the vocabularies in
that folder.

Each string is tokenized by Hugging Face's `tokenizers`, built as the models' makers publish them, by llama.cpp, and for
the SentencePiece kind by `sentencepiece` itself. Kept must give exactly Hugging Face's ids, which the files contain.
The other engines differ only in these cases; the script fails at any other:

    qwen2, llama.cpp       Qwen's tokenizers compose their text first (Unicode's form C), llama.cpp does not: "e" and
                           U+0301 are one "é" for the former. With the text composed beforehand llama.cpp agrees.
    tekken, gpt-4o,        the published expressions count combining marks as parts of words, llama.cpp's replacements
      llama.cpp            do not: Hindi "की" is one piece, or two. In llama.cpp, capitals beyond A to Z begin no new
                           word ("aÉ"), and small letters beyond a to z do not end a run of capitals.
    deepseek-llm,          eight spaces before U+3000, which is a space and a sign at once: llama.cpp leaves the last
      llama.cpp            space with the others.
    gemma, sentencepiece   two literal signs U+2581 in a text: `sentencepiece` reads them as two spaces, the others do
                           not.

All agree on all other strings (code, CJK, emoji, combining marks, white space, digits, contractions, U+FFFD, text that
looks like a control token). `smaug-bpe` also differs in merges: llama.cpp merges, while SmolLM3's tokenizer takes whole
pieces as Llama 3's does.
"""

import gzip
import json
import tempfile
import unicodedata
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm

from llama_cpp import Llama
from tokenizer_families import FAMILIES, Family, hugging_face
from tokenizer_texts import hard_strings

FOLDER = Path(__file__).parent / "tokenizers"


def fields(path: Path) -> dict:
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items() if name.startswith("tokenizer.")}


def sentence_piece(family: Family, tokens: list[str], types: list[int], scores: list[float]) -> sentencepiece.SentencePieceProcessor:
    """The model file that the vocabulary could have come from. In a plain text only pieces that are not control tokens
    matter."""
    proto = spm.ModelProto()
    for token, kind, score in zip(tokens, types, scores):
        proto.pieces.add(piece=token.replace(" ", "▁") if kind == 4 else token, type=kind, score=score)
    proto.trainer_spec.model_type = spm.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id = tokens.index("<unk>")
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = family.prefix
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def make(family: Family, texts: list[str]) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(gzip.decompress((FOLDER / f"{family.name}.gguf.gz").read_bytes()))
        found = fields(path)
        llama = Llama(path, 512)
        by_llama = [llama.ids(text) for text in texts]
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    merges, scores = found.get("tokenizer.ggml.merges"), found.get("tokenizer.ggml.scores")
    tokenizer = hugging_face(family, tokens, types, merges, scores)
    by_hf = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    others = {"llama.cpp": by_llama}
    if scores:
        processor = sentence_piece(family, tokens, types, scores)
        others["sentencepiece"] = [processor.encode(text) for text in texts]
    for name, ids in others.items():
        apart = [i for i, (a, b) in enumerate(zip(by_hf, ids)) if a != b]
        print(f"{family.name}: {name} differs from Hugging Face in {len(apart)} of {len(texts)}")
        for i in apart:
            known = explained(family.name, name, texts[i], by_hf[i], llama)
            assert known, (texts[i], [tokens[t] for t in by_hf[i]], [tokens[t] for t in ids[i]])
    return by_hf


def explained(family: str, engine: str, text: str, right: list[int], llama: Llama) -> bool:
    """Whether a difference is one of those in the module's list."""
    beyond_ascii = any(ord(c) > 127 and unicodedata.category(c) in ("Lu", "Ll", "Lt", "Mn", "Mc", "Me") for c in text)
    return {("qwen2", "llama.cpp"): lambda: llama.ids(unicodedata.normalize("NFC", text)) == right,
            ("tekken", "llama.cpp"): lambda: beyond_ascii, ("gpt-4o", "llama.cpp"): lambda: beyond_ascii,
            ("deepseek-llm", "llama.cpp"): lambda: " \u3000" in text,
            ("gemma-spm", "sentencepiece"): lambda: "\u2581\u2581" in text or "\u2581 " in text or " \u2581" in text,
            }.get((family, engine), lambda: False)()


def write_packed(path: Path, value) -> None:
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(data, mtime=0))


def write() -> None:
    texts = hard_strings()
    assert len(texts) >= 2400
    write_packed(FOLDER / "strings.json.gz", texts)
    for family in FAMILIES:
        write_packed(FOLDER / f"{family.name}.json.gz", make(family, texts))


if __name__ == "__main__":
    write()
