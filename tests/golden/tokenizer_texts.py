"""Texts in many scripts, written for training small vocabularies and for comparing tokenizers on difficult strings."""

import random

import strings

LINES = [
    "Das Haus am Ende der Straße gehört Frau Müller, die übermorgen nach Köln fährt.", "Können wir uns später über die Größe der Räume unterhalten?",
    "Le musée sera fermé l'été prochain; où êtes-vous allés à Noël ?", "L'œuvre complète coûte trente-cinq euros, n'est-ce pas ?",
    "El niño pequeño comió una manzana mañana y tarde. ¿Dónde está el ratón?", "A avó não sabe se a canção é sua. Ação, coração, pão.",
    "Il perché non lo so; però è così. Città, virtù, più.", "Zażółć gęślą jaźń, a potem śpij dobrze.", "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Kahvila on kiinni, mutta järvi on jäässä ja lunta sataa.", "İstanbul'da ılık bir gün; çocuklar ağaçların altında oynuyor.",
    "Вчера вечером мы долго говорили о погоде и о старых книгах.", "Дом стоит у реки, а за рекой начинается лес.", "Ο γέρος καθόταν στην πλατεία και κοίταζε τη θάλασσα.",
    "הילד הלך לבית הספר עם ספר כחול ביד.", "שלום לכולם, מה שלומכם היום?", "ذهب الولد إلى المدرسة ومعه كتاب أزرق.", "السلام عليكم، كيف حالكم اليوم؟",
    "लड़का नीली किताब लेकर स्कूल गया। मौसम अच्छा है।", "আজ আকাশ খুব নীল, আমরা নদীর ধারে যাব।", "เด็กผู้ชายไปโรงเรียนพร้อมหนังสือสีน้ำเงิน", "Cậu bé đi đến trường với một quyển sách màu xanh.",
    "那个男孩带着一本蓝色的书去了学校。今天天气很好，我们去公园散步吧！", "圖書館在河的另一邊，開放時間是上午九點到下午五點。", "男の子は青い本を持って学校へ行きました。今日はいい天気ですね。",
    "カタカナとひらがなと漢字を混ぜて書く。「はい」と彼は言った。", "소년은 파란 책을 들고 학교에 갔습니다. 오늘은 날씨가 좋네요.", "Գիրքը սեղանին է։", "წიგნი მაგიდაზეა.", "መጽሐፉ ጠረጴዛው ላይ ነው።",
    "🙂 The meeting 🚀 is at 10:30, ok? 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️", "x² + y² = z², ∑ i=1..n, α ≤ β, ∀x∈ℝ", "Price: $1,299.99 (was €1.450,00) — 12½% off!!!",
    "def read(path: str) -> list[int]:\n    with open(path, \"rb\") as file:\n        return [int(line) for line in file if line.strip()]\n",
    "class Reader(object):\n\tdef __init__(self, n=0):\n\t\tself.n = n\n\t\tself.rows = {}\n", "for (int i = 0; i < count; ++i) {\n    sum += values[i] * 0.5f;\n}\n",
    "pub fn largest<'a>(rows: &'a [Vec<f32>]) -> Option<&'a Vec<f32>> {\n    rows.iter().max_by(|a, b| a.len().cmp(&b.len()))\n}\n",
    "const items = list.filter(x => x !== null).map(({id, name}) => `${id}: ${name}`);\n", "SELECT name, COUNT(*) FROM visits WHERE day >= '2026-01-01' GROUP BY name;",
    "<table class=\"wide\">\n  <tr><td>1</td><td>&nbsp;</td></tr>\n</table>\n", "{\"id\": 17, \"tags\": [\"a\", \"b\"], \"open\": true, \"ratio\": 1.5e-3}",
    "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 42); return 0; }\n", "git commit -m \"Fix the window's width\" && git push origin HEAD:main",
    "I'm sure they've said we'll be there; you're late, he'd know, it's fine, DON'T WE'LL I'VE", "HTTPServer parseXMLFile getURLFromJSON iPhone eBay McDonald's O'Neill",
    "The year 1984, 20,000 leagues, 3.14159, 007, 1e-9, 0xDEADBEEF, v2.0.1, 192.168.0.1", "# Title\n\n- one\n- two\n\n    code\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
]

LOOK_ALIKES = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]",
               "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|end|>", "<｜User｜>", "<｜Assistant｜>",
               "<｜begin▁of▁sentence｜>", "<think>", "</think>", "<tool_call>", "<0x0A>", "<0xE2>", "<unused3>", "<|begin_of_text|>", "[SYSTEM_PROMPT]"]
SPACES = [" ", "  ", "   ", "    ", "        ", " " * 17, " " * 40, "\n", "\n\n", "\n\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\x85", "\x0b"]
MARKS = ["e\u0301", "a\u0308\u0304", "o\u0302\u0301", "\u0301", " \u0301", "\u1112\u1161\u11ab", "\u0928\u093c", "\u212b", "\u2126", "q\u0323\u0307", "\u0344", "\u0958", "\ufb1d", "A\u030a",
         "\u0e40\u0e01\u0e33", "\u0f73", "ö", "Ö\u0304", "\U0001d15e", "\uf900", "\u1100\u1161", "\uac00\u11a8"]
BROKEN = ["\ufffd", "a\ufffdb", "\ufffd\ufffd\ufffd", "caf\ufffd", "\ufffd?", " \ufffd "]
ODD = ["\x00", "\x01", "\x1c", "\x7f", "\u200b", "\u200d", "\ufeff", "\u202e", "\ue000", "\U000f0000", "\U0010ffff", "ǅ", "ǆ", "ʰ", "ª", "ſ", "'ſ", "ß", "ẞ", "ﬁ", "Ⅷ", "ⅷ", "①", "½", "٣٤٥٦", "१२३४", "１２３４５",
       "∑", "€", "´", "`", "^^", "¨", "«", "»", "‘", "’", "“x”", "…", "—", "·", "‿", "_", "__x", "/", "//", "/\n", "./a/b\n\n", "?/\r\n", "aB", "Ab", "ABc", "aBC", "日A", "A日", "A\u0301B", "x'S", "X'LL", "日's", "'s", "''ll",
       "▁", "▁▁", "a▁b", "Ġ", "Ċ"]


def drawn(count: int, seed: int = 11) -> list[str]:
    """Random strings of one to eight pieces, each a word, a slice of a line, or a difficult character sequence."""
    rng = random.Random(seed)
    words = sorted({word for line in LINES for word in line.split(" ")})
    numbers = ["7", "42", "1234", "1234567890", "3.14", "12:30", "1,000"]

    def piece() -> str:
        kind = rng.random()
        if kind < 0.22:
            return rng.choice(words)
        if kind < 0.40:
            line = rng.choice(LINES)
            start = rng.randrange(len(line))
            return line[start:start + rng.randint(1, 24)]
        if kind < 0.58:
            return rng.choice(SPACES)
        if kind < 0.66:
            return " " + rng.choice(words)
        return rng.choice(rng.choice([MARKS, ODD, BROKEN, LOOK_ALIKES, numbers, strings.WORDS, strings.LETTERS]))

    return ["".join(piece() for _ in range(rng.randint(1, 8))) for _ in range(count)]


def hard_strings() -> list[str]:
    """Each of these once: the strings of `strings.py`, the lines, the difficult pieces, and random ones; 2,400 in
    total."""
    listed = strings.all_strings() + LINES + LOOK_ALIKES + SPACES + MARKS + BROKEN + ODD + [left + right for left in ODD for right in ("a", " ", "1", "\n")]
    listed = list(dict.fromkeys(listed))
    for text in drawn(4000):
        if len(listed) == 2400:
            break
        if text not in listed:
            listed.append(text)
    return listed
