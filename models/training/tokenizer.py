"""A byte-level BPE tokenizer of our own, exactly what GGUF calls `gpt2` with the pre-tokenizer `smollm`.

Single digits first, then the GPT-2 regex: llama.cpp and Kept read it without knowing anything about us.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import books
import facts

END_OF_TEXT, IM_START, IM_END = 0, 1, 2  # ids of the control tokens; padding is END_OF_TEXT
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 4096


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])


def train(corpus: Path, size: int = VOCABULARY) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=CONTROL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # all 256 bytes, so no text is unknown
    )
    # Straight quotes and the words of questions are rare in old books, so about a twentieth of the text is modern
    # wording.
    text = ["\n\n".join(" ".join(p) for p in book) for book in books.load(corpus, validation=False)]
    text += facts.sample_text(seed=1, count=20_000)
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


class Codec:
    """Encodes the two ways a prompt needs: plain text (control tokens are just characters) and with control tokens.

    The Rust library always recognises its special tokens, so plain text goes through a copy that has none; a document
    that spells `<|im_end|>` must not end the turn.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.plain = _without_specials(tokenizer)

    def text(self, text: str) -> list[int]:
        return self.plain.encode(text).ids

    def texts(self, texts: list[str]) -> list[list[int]]:
        return [e.ids for e in self.plain.encode_batch(texts)]

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    # The segments of a prompt are encoded separately and joined, as engines do, so no merge crosses a segment boundary.
    def open_turn(self) -> list[int]:
        return [IM_START] + self.text("user\n")

    def question(self, question: str) -> list[int]:
        return self.text("\n\nQuestion: ") + self.text(question) + self.open_answer()

    def open_answer(self) -> list[int]:
        return [IM_END] + self.text("\n") + [IM_START] + self.text("assistant\n")

    def prompt(self, document: str, question: str) -> list[int]:
        return self.open_turn() + self.text(document) + self.question(question)


def _without_specials(tokenizer: Tokenizer) -> Tokenizer:
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(data))


def load(path: Path) -> Codec:
    return Codec(Tokenizer.from_file(str(path)))


def from_gguf(path: Path) -> Tokenizer:
    """The tokenizer that a GGUF file of ours carries."""
    import gguf

    fields = gguf.GGUFReader(str(path)).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(CONTROL)
    return tokenizer
