"""llama.cpp on the models of `scripts/models`, with documents of this repository: `python real_models.py [MODEL...]`.
Models that are not named keep their results.

The results use the file's weights as f32. With quantised weights llama.cpp rounds the other factor to bytes; on these
texts it then differs by up to 0.018 nats from itself (Gemma, a prompt of 512 tokens), and chooses other tokens at
margins up to 0.15.

real_models.json.gz has for each model

    tokens      ids of the text, up to the longest prompt
    others      of each document of tests/qa: its number of tokens, and their fingerprint
    runs        for each prompt length: greedy tokens, their margins, and the most likely tokens of TOLD steps
                and UNSURE ones
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, dequantize
from fetched import HERE, ROOT, files
from llama_cpp import Llama

DOCUMENTS = ROOT / "tests" / "qa" / "documents"
# Prose, in this order; each document ends with a line break.
TEXT = ("stove_manual.md", "story.txt")
PROMPTS = (64, 512, 1500, 7000)
ANSWER = 64
TOP = 64
TOLD = (0, 1, 2, 4, 8, 16, 32, 63)  # steps whose most likely tokens are recorded,
UNSURE = 0.5  # and those with a margin below this, in nats


def in_f32(file: Path, into: Path) -> Path:
    """The same model with dequantised weights."""
    reader = GGUFReader(file)
    writer = GGUFWriter(into, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        value = 0 if key == "general.file_type" else field.contents()
        writer.add_key_value(key, value, kind, sub_type=field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return into


def fingerprint(ids: list[int]) -> str:
    """FNV-1a of token ids, as in the test."""
    value = 0xCBF29CE484222325
    for token in ids:
        value = ((value ^ token) * 0x100000001B3) % (1 << 64)
    return f"{value:016x}"


def run(llama: Llama, prompt: list[int]) -> dict:
    tokens, tops = llama.followed(prompt, ANSWER, TOP)
    leads = [None if top is None else round(top[0][1] - top[1][1], 4) for top in tops]
    likeliest = {
        str(step): {"ids": [token for token, _ in tops[step]], "log": [round(log, 5) for _, log in tops[step]]}
        for step, top in enumerate(tops)
        if top is not None and (step in TOLD or leads[step] < UNSURE)
    }
    return {"prompt": len(prompt), "ids": tokens, "leads": leads, "likeliest": likeliest}


def main() -> None:
    packed = HERE / "real_models.json.gz"
    golden = json.loads(gzip.decompress(packed.read_bytes())) | {"text": TEXT}
    text = "".join((DOCUMENTS / name).read_text(encoding="utf-8") for name in TEXT)
    for name, file in files(sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            llama = Llama(in_f32(file, Path(folder) / "f32.gguf"), max(PROMPTS) + ANSWER + 8)
            plain, whole = llama.ids(text), llama.ids(text, special=True)
            begin = whole[: len(whole) - len(plain)]
            assert whole == begin + plain and len(whole) >= max(PROMPTS)
            others = {}
            for document in sorted(DOCUMENTS.iterdir()):
                ids = llama.ids(document.read_text(encoding="utf-8"))
                others[document.name] = [len(ids), fingerprint(ids)]
            runs = []
            for count in PROMPTS:
                runs.append(run(llama, whole[:count]))
                print(name, count, "leads below 0.1:", sum(lead is not None and lead < 0.1 for lead in runs[-1]["leads"]), flush=True)
        golden[name] = {
            "file": file.name,
            "begin": begin,
            "tokens": plain[: max(PROMPTS)],
            "others": others,
            "runs": runs,
        }
    packed.write_bytes(gzip.compress(json.dumps(golden, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{packed.stat().st_size} bytes")


if __name__ == "__main__":
    main()
