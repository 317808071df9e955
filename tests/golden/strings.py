"""Strings known to break tokenizers, for byte-for-byte agreement on ids."""

import random

SPACES = ["", " ", "  ", "   ", "    ", "     ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", " \n", "\n ", " \n ", "  \n  x", "a \nb",
          "a  b", "a   b", "a    b", " a", "  a", "   a", "a ", "a  ", "\ta", "a\t", "a\tb", "a \t b", "a\n b", "a\n\n b", "\n\n  a", "a\u00a0b",
          "\u00a0", "\u00a0\u00a0a", "a\u2003b", "\u3000a", "a\u200bb", "\u2028", "a\u2029b", "\x0b", "\x0c", "a\x0cb", "\x85", "x\x85y"]
WORDS = ["the", " the", "The", "THE", "tHe", "number", " number", "numbers", "Hello world", "hello,world", "hello , world", "don't", "DON'T", "don’t",
         "it's", "IT'S", "we'll", "WE'LL", "they've", "I'm", "he'd", "you're", "'s", "''s", "'S", " 's", "a's's", "o'clock", "rock'n'roll", "'tis",
         "'twas the night", "can't've", "re-entry", "well-known", "e.g.", "i.e.,", "U.S.A.", "...", "....", " ...", "!?", "?!?!", "--", "---", " — ",
         "a—b", "a–b", "“quoted”", "‘quoted’", "«oui»", "(a)", "[b]", "{c}", "<d>", "a/b\\c", "a_b", "__init__", "snake_case_name", "CamelCaseName",
         "x=y+z*2", "$100", "£5", "€ 9.99", "100%", "#tag", "@user", "a@b.example", "https://a.example/b?c=d&e=f", "~", "`code`", "^", "|", "||", "&&",
         "mmmmmmmmmmmmmmmm", "ababababababab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "  leading and trailing  "]
DIGITS = ["0", "1", "12", "123", "1234", "12345", "0123456789", " 1", "  1", " 12", "a1", "1a", "a1b2", "4711", "The code is 4711.", "1,000,000", "3.14",
          "-5", "+7", "1e10", "0x1F", "2026-11-20", "12:30", "½", "²", "x²", "①", "Ⅻ", "٣", "१२३", "１２", "1½", "1 2 3", "1  2", "12\n34", "v1.2.3"]
LETTERS = ["é", "e\u0301", "café", "naïve", "Ünïcödé", "ß", "ẞ", "ﬁ", "Straße", "œuvre", "ŉ", "ı", "İ", "Ωμέγα", "Привет, мир", "שלום", "مرحبا بالعالم",
           "नमस्ते", "ไทย", "한국어", "日本語のテキスト", "中文字符", "中 文", "ᚠᛇᚻ", "\u0928\u093f", "🙂", "🙂🙂", " 🙂", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "a🙂b", "𝔘𝔫𝔦", "𠜎",
           "\ufeffa", "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "a\u0300\u0301\u0302", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯", "\u202eabc", "a\u00adb", "˙", "ʼs", "a՚s", "ª", "º", "µ"]
CONTROL = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b", " <|im_end|> ", "<|im_end|", "|im_end|>",
           "<|im_end|><|im_end|>", "<|im_ end|>", "<s>", "</s>", "<unk>", "[INST]", "<|eot_id|>", "<0x0A>", "▁", "▁the", "Ġ", "Ġthe", "Ċ", "Ã©", "\x00", "a\x00b",
           "\x01\x02", "\x7f", "\x1b[0m"]


def all_strings() -> list[str]:
    """The lists above, and forty random combinations of their pieces."""
    listed = SPACES + WORDS + DIGITS + LETTERS + CONTROL
    rng = random.Random(7)
    jumbles = ["".join(rng.choice(listed) for _ in range(rng.randint(3, 9))) for _ in range(40)]
    return list(dict.fromkeys(listed + jumbles))
