"""Trains the small vocabularies of `tokenizers/`: `python tokenizer_train.py FOLDER` with a folder of plain-text books
(.txt or .txt.gz).

Run once: the committed vocabularies were trained on public-domain novels and on `tokenizer_texts.py`. Each is written
as a complete llama model whose weights are zeros, so that any engine opens it; the zeros compress to almost nothing.
"""

import gzip
import io
import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tokenizer_families import FAMILIES, Family
from tokenizer_texts import LINES, drawn

HERE = Path(__file__).parent
TOKENS = 3000
DEEPSEEK = next(family.control for family in FAMILIES if family.name == "deepseek-v3")
WIDTH, FFN, HEADS, KV_HEADS, CONTEXT = 64, 64, 2, 1, 65536
SYMBOLS = sorted(pre_tokenizers.ByteLevel.alphabet())


def texts(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.glob("*.txt*"))[::3]:
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        found += data.decode("utf-8", "replace")[:150_000].splitlines(keepends=True)
    return found + (LINES * 40 + drawn(3000, seed=3))


def train_byte_level(family: Family, lines: list[str]) -> tuple[list[str], list[int], list[str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = family.cut
    trainer = trainers.BpeTrainer(vocab_size=TOKENS, initial_alphabet=SYMBOLS, special_tokens=list(family.control), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    merges = [" ".join(pair) for pair in model["merges"]]
    if family.ignore_merges:
        # Whole words without a merge that produces them: only a tokenizer that looks the piece up first finds them.
        merges = [line for i, line in enumerate(merges) if not (i > 600 and i % 97 == 0)]
    types = [3 if token in family.control else 1 for token in tokens] + [4] * len(family.user)
    return tokens + list(family.user), types, merges


def train_pieces(lines: list[str], family: Family) -> tuple[list[str], list[int], list[float]]:
    gemma = not family.prefix
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line.rstrip("\n") if not gemma else line for line in lines), model_writer=out, vocab_size=TOKENS, model_type="bpe", byte_fallback=True,
        character_coverage=0.9995, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=family.prefix,
        split_digits=True, allow_whitespace_only_pieces=True, max_sentence_length=100_000, minloglevel=2, num_threads=1,
        user_defined_symbols=[] if not gemma else [token for token in family.user], unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    own = [(piece, 6 if processor.is_byte(i) else 1, processor.get_score(i)) for i, piece in enumerate(pieces)
           if i > 2 and piece not in family.user]
    types = {"<unk>": 2}
    rows = [(token, types.get(token, 3), 0.0) for token in family.control]
    # GGUF files have the runs of spaces as literal spaces.
    rows += [(token.replace("▁", " "), 4, 0.0) for token in family.user] + own
    assert len({token for token, _, _ in rows}) == len(rows)
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def write(family: Family, tokens: list[str], types: list[int], merges: list[str] | None, scores: list[float] | None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name(f"zeros {family.name}")
        writer.add_block_count(1)
        writer.add_embedding_length(WIDTH)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_context_length(CONTEXT)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(WIDTH // HEADS)
        writer.add_rope_freq_base(10000.0)
        writer.add_tokenizer_model(family.kind)
        writer.add_tokenizer_pre(family.pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if merges is not None:
            writer.add_token_merges(merges)
        if scores is not None:
            writer.add_token_scores(scores)
            writer.add_add_space_prefix(family.prefix)
        first, last = {"qwen2": ("<|endoftext|>", "<|im_end|>"), "smollm": ("<|im_start|>", "<|im_end|>"), "gpt-2": ("<|endoftext|>",) * 2,
                       "llama3": ("<|begin_of_text|>", "<|eot_id|>"), "gpt-4o": ("<|endoftext|>", "<|endoftext|>"), "gemma-spm": ("<bos>", "<eos>"),
                       }.get(family.name, DEEPSEEK[:2] if "deepseek" in family.name else ("<s>", "</s>"))
        writer.add_bos_token_id(tokens.index(first))
        writer.add_eos_token_id(tokens.index(last))
        if family.kind == "llama":
            writer.add_unk_token_id(tokens.index("<unk>"))
        writer.add_add_bos_token(family.name not in ("qwen2", "smollm", "gpt-2", "gpt-4o"))

        def zeros(name: str, *shape: int) -> None:
            writer.add_tensor(name, np.zeros(shape, dtype=np.float32))

        head = WIDTH // HEADS
        zeros("token_embd.weight", len(tokens), WIDTH)
        zeros("output_norm.weight", WIDTH)
        for part, shape in {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (KV_HEADS * head, WIDTH),
                            "attn_v": (KV_HEADS * head, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_gate": (FFN, WIDTH), "ffn_up": (FFN, WIDTH),
                            "ffn_down": (WIDTH, FFN)}.items():
            zeros(f"blk.0.{part}.weight", *shape)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


if __name__ == "__main__":
    lines = texts(Path(sys.argv[1]))
    for family in FAMILIES:
        merges = scores = None
        if family.kind == "gpt2":
            tokens, types, merges = train_byte_level(family, lines)
        else:
            tokens, types, scores = train_pieces(lines, family)
        data = gzip.compress(write(family, tokens, types, merges, scores), mtime=0)
        (HERE / "tokenizers" / f"{family.name}.gguf.gz").write_bytes(data)
        print(family.name, len(tokens), "tokens", len(data), "bytes packed")
