"""What is trained where: the model's shape, the curriculum's lengths and the batch, for two cores and for one big GPU."""

from dataclasses import dataclass, field

from model import Config
from samples import Stage


@dataclass
class Preset:
    config: Config
    tokens: int  # per step
    rows: int  # sampled for the loss per step
    rate: float  # peak learning rate
    lengths: tuple = (256, 320, 448, 704, 1100)
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self):
        if self.stages:
            return
        a, b, c, d, e = self.lengths
        n = lambda length: max(1, self.tokens // length)
        many = 1 + max(0, (e - 1100) // 800)  # longer samples carry more facts and questions
        # The last wording (value before owner) and quotes from the middle of a sentence require looking back from a
        # match. They are left to machines with enough training time.
        known, middle = (11, 0.0) if many == 1 else (12, 0.3)
        self.stages = [
            Stage("two wordings", a, n(a), 4, 3, wordings=2, forms=3, quotes=0.2, advance=0.75),
            Stage("four wordings", b, n(b), 5, 4, wordings=4, forms=6, quotes=0.2, middle=middle, advance=0.75),
            Stage("eight wordings", c, n(c), 6, 5, wordings=8, forms=9, quotes=0.2, middle=middle, advance=0.75),
            Stage("all wordings", d, n(d), 8, 6, wordings=known, forms=12, quotes=0.2, middle=middle, advance=0.75),
            Stage("full length", e, n(e), 9 * many, 6 * many, wordings=known, forms=12, quotes=0.2, middle=middle, advance=2.0),
        ]

    def crowded(self) -> Stage:
        """Many facts close together: twice the questions per token that a long document has, and all their confusions."""
        last = self.stages[-1]
        length = min(last.length, 480)
        return Stage("crowded", length, max(1, self.tokens // length), 11, 8, wordings=last.wordings, forms=12, quotes=0.08)

    def copying(self, at: int) -> Stage:
        """A piece of a book twice, as long as the present stage's samples: half of its tokens teach copying, and without
        it the rest of the training wears the structured start's copying away (from 97 % to nothing in 300 steps)."""
        length = min(self.stages[at].length, 1024)
        return Stage("copy", length, max(1, self.tokens // length), 0, 0, 1, 1, copy=True)


def preset(name: str) -> Preset:
    if name == "small":  # 3.3 M parameters; two CPU cores, an hour or two
        return Preset(Config(), tokens=2240, rows=704, rate=6e-4)
    if name == "large":  # 17 M parameters; one GPU, under half an hour
        config = Config(width=384, layers=9, heads=6, kv_heads=2, hidden=1024, rope_theta=1e9, context=8192)
        return Preset(config, tokens=98_304, rows=24_576, rate=1e-3, lengths=(256, 512, 1024, 2048, 4096))
    if name == "tiny":  # for trying out the recipe; a minute
        return Preset(Config(layers=4, hidden=128), tokens=2200, rows=512, rate=6e-4, lengths=(192, 192, 256, 256, 384))
    raise SystemExit(f"error: no preset {name}; there are small, large and tiny")
