"""The last part of training: the end of a prompt learns to look at what the answer will copy.

Kept answers from a cut cache. SnapKV and its kin keep the rows that the prompt's last queries attend to (arXiv 2404.14469),
so a reader that looks for a value only while it writes finds the value's last digits gone. Here each prompt's observation
window is scored as SnapKV scores it, and in every kv head through which the answer copies its value, the value's tokens
must score above the rows that a quarter of the cache would keep. Goes on from train.py's last.pt:

`python observe.py --corpus BOOKS --out DIR --minutes 15`
"""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import books
import facts
import tokenizer as tok
from model import Config, Reader
from presets import preset
from samples import RESTATED, STOP, VALUE, Maker, Stage
from train import measure, mixed

WINDOW, KERNEL = 32, 7  # SnapKV's
SHARE = 0.2  # of the prompt kept: slightly less than the quarter used in evaluation
MARGIN = 1.5  # a value's score over the least kept one
WEIGHT = 0.5  # of this loss relative to the answer loss


def asked(maker: Maker, stage: Stage, length: int):
    """One question about one document: ids [length + 1], where the answer begins, the loss weights of its tokens, and per
    value token its place in the answer and in the document."""
    rng, codec = maker.rng, maker.codec
    while True:
        known = facts.draw(rng, stage.facts, maker.unseen)
        planted = [f.sentence(rng.randrange(stage.wordings)) for f in known]
        room = length - 90 - 18 * stage.facts - rng.randrange(length // 2)
        text, _ = maker.document(int(room * 3.1), planted)
        document = maker.open_turn + codec.text(text)
        fact = rng.choice(known)
        value = codec.text(" " + fact.value + ".")[:-1]
        places = [i for i in range(len(document) - len(value)) if document[i : i + len(value)] == value]
        before = codec.text(fact.answer_before_value().rstrip())
        prompt = document + maker.ask + codec.text(fact.question(rng.randrange(stage.forms))) + maker.open_answer
        answer = before + codec.text(" " + fact.value + ".") + [tok.IM_END]
        # A value inside the observation window is kept anyway.
        if len(places) != 1 or places[0] + len(value) > len(prompt) - WINDOW or len(prompt) + len(answer) > length:
            continue
        weights = [RESTATED] * len(before) + [VALUE] * (len(answer) - len(before) - 1) + [STOP]
        first = len(prompt) + len(before)
        copies = [(first + i, places[0] + i) for i in range(len(value))]
        ids = prompt + answer
        return ids + [tok.END_OF_TEXT] * (length + 1 - len(ids)), len(prompt), weights, copies


def window_scores(q, k, begin: int):
    """SnapKV's pooled scores of the prefix: q [heads, n, d], k [kv_heads, n, d] -> [kv_heads, begin - WINDOW]."""
    kv_heads, _, dim = k.shape
    rows = q[:, begin - WINDOW : begin].reshape(kv_heads, -1, WINDOW, dim)
    logits = rows @ k[:, None, :begin].transpose(-1, -2) / dim**0.5
    hidden = torch.ones(WINDOW, begin, dtype=torch.bool).tril(begin - WINDOW).logical_not()
    scores = logits.masked_fill(hidden, -torch.inf).softmax(-1).mean((1, 2))[:, : begin - WINDOW]
    return F.max_pool1d(scores[:, None], KERNEL, 1, KERNEL // 2)[:, 0]


def copying(q, k, copies) -> torch.Tensor:
    """How much each kv head attends to the value's tokens while the answer writes them: [kv_heads], 0 to 1."""
    kv_heads, _, dim = k.shape
    shares = []
    for row, place in copies:
        at = row - 1  # the previous token predicts it
        logits = q[:, at].reshape(kv_heads, -1, dim) @ k[:, : at + 1].transpose(-1, -2) / dim**0.5
        shares.append(logits.softmax(-1)[:, :, place].amax(1))
    return torch.stack(shares).mean(0)


def losses(model: Reader, samples: list) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The answers' loss, the window's loss, and the share of copied value tokens that a cut cache would hold."""
    tokens = torch.tensor([s[0] for s in samples])
    cos, sin = model.tables(tokens.shape[1] - 1, tokens.device)
    x = F.embedding(tokens[:, :-1], model.embedding)
    looked, held, copied = 0.0, 0.0, 0.0
    for block in model.blocks:
        q, k, v = block.heads(x, cos, sin)
        for b, (_, begin, _, copies) in enumerate(samples):
            with torch.no_grad():
                through = copying(q[b], k[b], copies)
            scores = window_scores(q[b], k[b], begin)
            keep = max(1, int(SHARE * begin) - WINDOW - 4)
            least = scores.detach().topk(keep).values[:, -1:]
            mine = scores[:, [place for _, place in copies]]
            short = F.relu((MARGIN * least + 1e-9).log() - (mine + 1e-9).log()).mean(1)
            looked = looked + (through * short).sum()
            held += float((through[:, None] * (mine >= least)).sum() / len(copies))
            copied += float(through.sum())
        x = block.finish(x, q, k, v)
    h = F.rms_norm(x, (model.config.width,), model.norm, model.config.epsilon)
    total, weight = 0.0, 0.0
    for b, (ids, begin, weights, _) in enumerate(samples):
        target = torch.tensor(ids[begin : begin + len(weights)])
        logits = F.linear(h[b, begin - 1 : begin - 1 + len(weights)], model.embedding)
        w = torch.tensor(weights)
        total = total + (F.cross_entropy(logits, target, reduction="none") * w).sum()
        weight += float(w.sum())
    return total / weight, looked / len(samples), held / max(copied, 1e-9)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True, help="where train.py left last.pt")
    p.add_argument("--minutes", type=float, default=15)
    p.add_argument("--preset", default="small")
    p.add_argument("--rate", type=float, default=2e-4)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seed", type=int, default=11)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    plan, codec = preset(args.preset), tok.load(args.out / "tokenizer.json")
    saved = torch.load(args.out / "last.pt", weights_only=False)
    model, stage = Reader(Config(**saved["config"])), plan.stages[-1]
    model.load_state_dict(saved["model"])
    maker = Maker(codec, books.load(args.corpus, validation=False), unseen=False, seed=args.seed)
    held_out = Maker(codec, books.load(args.corpus, validation=True), unseen=True, seed=7)
    codes = [model.embedding]
    others = [q for n, q in model.named_parameters() if n != "embedding"]
    optimizer = torch.optim.AdamW([{"params": codes, "part": 0.3}, {"params": others, "part": 1.0}],
                                  lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    began, step, sums = time.time(), 0, [0.0, 0.0, 0.0]
    while (used := (time.time() - began) / 60 / args.minutes) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = group["part"] * args.rate * min(1.0, (step + 1) / 30) * max(0.05, 1.0 - used)
        optimizer.zero_grad(set_to_none=True)
        answer, looked, held = losses(model, [asked(maker, stage, stage.length) for _ in range(2)])
        (answer + WEIGHT * looked).backward()
        if step % 2 == 0:  # rehearses earlier samples
            tokens, rows, targets, weights = maker.batch(mixed(maker.rng, plan, len(plan.stages) - 1), plan.rows)
            model(tokens, rows, targets, weights)[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        sums = [a + b for a, b in zip(sums, (answer.item(), looked.item(), held))]
        if step % 25 == 0:
            print(f"{(time.time() - began) / 60:5.1f} min  step {step}  answers {sums[0] / 25:.3f}  window {sums[1] / 25:.3f}  "
                  f"values held {sums[2] / 25:.3f}", flush=True)
            sums = [0.0, 0.0, 0.0]
    print("held out", measure(model, held_out, stage, 40, "cpu"))
    saved["model"] = model.state_dict()
    saved["state"]["seconds"] += time.time() - began
    torch.save(saved, args.out / "last.tmp")
    (args.out / "last.tmp").replace(args.out / "last.pt")


if __name__ == "__main__":
    random.seed(0)
    main()
