"""The tokenizers of common model families, as Hugging Face's `tokenizers` builds them, over small vocabularies of our
own.

A family is its pre-tokenizer and normaliser; the vocabulary comes from a GGUF file in `tokenizers/` (trained by
`tokenizer_train.py`). The order of these components is the one published with the family's models; every name in
`tokenizer.ggml.pre` denotes one of them.
"""

from dataclasses import dataclass, field

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers.convert_slow_tokenizer import generate_merges

GPT2_STYLE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SINGLE_DIGITS = GPT2_STYLE.replace(r"\p{N}{1,3}", r"\p{N}")
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = WORD % ("", "") + r"|\p{N}" + REST
GPT4O = WORD % (("(?i:'s|'t|'re|'ve|'m|'ll|'d)?",) * 2) + r"|\p{N}{1,3}" + REST
# Letters with a case, as listed by the first DeepSeek models: code points, because editors normalise some of the
# characters.
CASED_POINTS = ("41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 "
                "3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 "
                "1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 "
                "1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 "
                "213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 "
                "A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 "
                "118A0-118DF 1E900-1E943")
CASED = "".join("-".join(chr(int(end, 16)) for end in points.split("-")) for points in CASED_POINTS.split())
EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_V3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")


def split(*expressions: str) -> list:
    return [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]


def byte_level(*before, regex: bool = False):
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)])


DIGITS = pre_tokenizers.Digits(individual_digits=True)


@dataclass(frozen=True)
class Family:
    """`pre` is the name in the file; control tokens come first in the vocabulary, the user-defined last."""
    name: str
    pre: str
    cut: object
    control: tuple[str, ...]
    user: tuple[str, ...] = ()
    nfc: bool = False
    ignore_merges: bool = False
    kind: str = "gpt2"
    prefix: bool = False
    more: dict = field(default_factory=dict)


DEEPSEEK_MARKS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
FAMILIES = [
    Family("gpt-2", "gpt-2", byte_level(regex=True), ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    Family("smollm", "smollm", byte_level(DIGITS, regex=True), ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    Family("llama3", "llama-bpe", byte_level(*split(GPT2_STYLE)),
           ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|im_start|>", "<|im_end|>",
            *DEEPSEEK_MARKS), ("<think>", "</think>"), ignore_merges=True),
    Family("qwen2", "qwen2", byte_level(*split(SINGLE_DIGITS)), ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *DEEPSEEK_MARKS),
           ("<think>", "</think>", "<tool_call>", "</tool_call>"), nfc=True),
    Family("tekken", "tekken", byte_level(*split(TEKKEN)), ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
           ignore_merges=True),
    Family("gpt-4o", "gpt-4o", byte_level(*split(GPT4O)), ("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|/tool|>")),
    Family("deepseek-llm", "deepseek-llm",
           byte_level(*split(r"[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", EAST), DIGITS), DEEPSEEK_MARKS),
    Family("deepseek-coder", "deepseek-coder", byte_level(*split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST), DIGITS), DEEPSEEK_MARKS),
    Family("deepseek-v3", "deepseek-v3", byte_level(*split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3)), DEEPSEEK_MARKS),
    Family("llama-spm", "default", None, ("<unk>", "<s>", "</s>"), kind="llama", prefix=True),
    Family("marked-spm", "default", None, ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
           kind="llama", prefix=True),
    Family("gemma-spm", "default", None, ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
           ("\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "▁" * 8, "▁" * 16, "\t", "\t\t", "<table>", "</table>"), kind="llama"),
]


def hugging_face(family: Family, tokens: list[str], types: list[int], merges: list[str] | None, scores: list[float] | None) -> Tokenizer:
    """The tokenizer of `family` over a vocabulary; control tokens in a text stay text, as in a document."""
    vocab = {token: i for i, token in enumerate(tokens)}
    if family.kind == "gpt2":
        pairs = [tuple(line.split(" ")) for line in merges]
        tokenizer = Tokenizer(BPE(vocab, pairs, ignore_merges=family.ignore_merges))
        tokenizer.pre_tokenizer = family.cut
        if family.nfc:
            tokenizer.normalizer = normalizers.NFC()
    else:
        # As converted from a SentencePiece model: a merge for each way of splitting a piece in two, the best score
        # first.
        inner = {token: i for token, i in vocab.items() if types[i] in (1, 4)}
        pairs = generate_merges(inner, {token: scores[i] for token, i in inner.items()})
        tokenizer = Tokenizer(BPE(vocab, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        spaces = normalizers.Replace(" ", "▁")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if family.prefix else spaces
    for token, kind in zip(tokens, types):
        if kind in (3, 4):
            # In a published Gemma the runs of spaces are ordinary pieces; the file has them as text.
            tokenizer.add_tokens([AddedToken(token.replace("▁", " ") if family.kind == "llama" and kind == 4 else token, special=kind == 3, normalized=False)]
                                 if not (kind == 4 and family.kind == "llama" and "▁" in token) else [])
    tokenizer.encode_special_tokens = True
    return tokenizer
