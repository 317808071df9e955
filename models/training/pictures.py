"""The picture of a training: loss, held-out accuracy and the stages, over the tokens seen."""

from pathlib import Path


def draw_losses(history: list[dict], path: Path) -> None:
    if len(history) < 2:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    millions = [h["tokens"] / 1e6 for h in history]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    top.plot(millions, [h["loss"] for h in history], color="#444444")
    top.set_ylabel("loss")
    for kind, colour in (("tokens", "#999999"), ("fact", "#1f6f54"), ("quote", "#b4562b")):
        points = [(m, h["held_out"][kind]) for m, h in zip(millions, history) if h["held_out"].get(kind) is not None]
        if points:
            bottom.plot(*zip(*points), label={"tokens": "answer tokens", "fact": "facts, exact", "quote": "quotes, exact"}[kind], color=colour)
    bottom.set_ylim(0, 1)
    bottom.set_ylabel("held-out books and names")
    bottom.set_xlabel("million tokens")
    for before, after, m in zip(history, history[1:], millions[1:]):
        if before["stage"] != after["stage"]:
            top.axvline(m, color="#cccccc", zorder=0)
            bottom.axvline(m, color="#cccccc", zorder=0)
    bottom.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
