"""What is trained where: the model's shape, the curriculum's lengths and the batch, for two cores and for one big GPU."""

from dataclasses import dataclass, field

from model import Config
from samples import Stage


@dataclass
class Preset:
    config: Config
    tokens: int  # of one step
    rows: int  # drawn for the loss in one step
    rate: float  # peak learning rate
    lengths: tuple = (256, 256, 384, 512, 768, 1100)
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self):
        if self.stages:
            return
        a, b, c, d, e, f = self.lengths
        n = lambda length: max(1, self.tokens // length)
        many = 1 + max(0, (f - 1100) // 800)  # longer samples carry more facts and questions
        self.stages = [
            Stage("facts alone", a, n(a), 5, 4, wordings=2, forms=3, prose=False, advance=0.8),
            Stage("among sentences", b, n(b), 4, 3, wordings=4, forms=5, quotes=0.25, advance=0.75),
            Stage("more wordings", c, n(c), 6, 4, wordings=6, forms=6, quotes=0.25, middle=0.1, advance=0.75),
            Stage("longer", d, n(d), 7, 5, wordings=9, forms=8, quotes=0.25, middle=0.2, advance=0.75),
            Stage("all wordings", e, n(e), 8, 6, wordings=12, forms=12, quotes=0.25, middle=0.3, advance=0.75),
            Stage("full length", f, n(f), 9 * many, 6 * many, wordings=12, forms=12, quotes=0.25, middle=0.3, advance=2.0),
        ]


def preset(name: str) -> Preset:
    if name == "small":  # 3.3 M parameters; two CPU cores, an hour or two
        return Preset(Config(), tokens=4400, rows=1408, rate=1.5e-3)
    if name == "large":  # 17 M parameters; one GPU, under half an hour
        config = Config(width=384, layers=9, heads=6, kv_heads=2, hidden=1024, rope_theta=1e9, context=8192)
        return Preset(config, tokens=98_304, rows=24_576, rate=1.5e-3, lengths=(256, 512, 1024, 2048, 3072, 4096))
    if name == "tiny":  # for trying the recipe out: a minute
        return Preset(Config(layers=4, hidden=128), tokens=2200, rows=512, rate=1e-3, lengths=(192, 192, 256, 256, 384, 384))
    raise SystemExit(f"error: no preset {name}; there are small, large and tiny")
