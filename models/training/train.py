"""Trains the built-in model: `python train.py --corpus BOOKS --out DIR --minutes 90` (CPU) or
`python train.py --corpus BOOKS --out DIR --minutes 20 --device cuda --preset large`.

Run again with the same --out to go on where it stopped. The learning rate falls with the time used, so a busy machine
makes a shorter run, not a broken one. Writes into --out: tokenizer.json, counts.pt, last.pt, loss.png, log.jsonl.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch

import books
import start
import tokenizer as tok
from model import Config, Reader
from pictures import draw_losses
from presets import Preset, preset
from samples import RESTATED, Maker, Stage


def learning_rate(step: int, used: float, peak: float) -> float:
    return peak * min(1.0, (step + 1) / 60) * max(0.04, 1.0 - used)


@torch.no_grad()
def measure(model: Reader, maker: Maker, stage: Stage, count: int, device: str, seed: int = 7) -> dict:
    """Held-out books and names: the share of answer tokens, and of whole answers, that are most likely at each step.

    An answer of which every token is the most likely one is what greedy decoding writes, so this is `exact`."""
    maker.rng = random.Random(seed)
    right = total = 0
    exact = {"fact": [0, 0], "quote": [0, 0]}
    for _ in range(count):
        ids, weights = maker.sample(stage)
        spans = answer_spans(weights)
        if not spans:
            continue
        tokens = torch.tensor(ids, device=device)
        at = torch.tensor([i for a, b, _ in spans for i in range(a, b)], device=device)
        hidden = model.hidden(tokens[None, :-1])[0, at - 1]
        hits = (torch.nn.functional.linear(hidden, model.embedding).argmax(-1) == tokens[at]).tolist()
        for a, b, kind in spans:
            mine, hits = hits[: b - a], hits[b - a :]
            right, total = right + sum(mine), total + len(mine)
            exact[kind][0] += all(mine)
            exact[kind][1] += 1
    rates = {k: round(v[0] / v[1], 3) if v[1] else None for k, v in exact.items()}
    return {"tokens": round(right / max(1, total), 3), **rates}


def answer_spans(weights: list[float]) -> list[tuple[int, int, str]]:
    """Runs of positions that belong to an answer; its first weight tells a fact's answer from a quotation."""
    spans, begin = [], None
    for i, w in enumerate(weights + [0.0]):
        if w >= RESTATED and begin is None:
            begin = i
        elif w < RESTATED and begin is not None:
            if i < len(weights):  # a span that extends beyond the sample is incomplete
                spans.append((begin, i, "fact" if weights[begin] == RESTATED else "quote"))
            begin = None
    return spans


def prepare(corpus: Path, out: Path) -> tuple[tok.Codec, torch.Tensor, list]:
    """Tokenizer and token counts (the start scales frequent tokens down), made once, and the training books."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        tok.train(corpus).save(str(out / "tokenizer.json"))
    codec = tok.load(out / "tokenizer.json")
    training = books.load(corpus, validation=False)
    if not (out / "counts.pt").exists():
        ids = (i for book in training for e in codec.texts([" ".join(p) for p in book]) for i in e)
        torch.save(torch.bincount(torch.tensor(list(ids)), minlength=tok.VOCABULARY), out / "counts.pt")
    return codec, torch.load(out / "counts.pt"), training


def worker(queue, stage_index, codec_path, corpus, plan, seed):
    """A process that makes batches, for a device that is faster than one Python."""
    torch.set_num_threads(1)
    maker = Maker(tok.load(codec_path), books.load(corpus, validation=False), unseen=False, seed=seed)
    while True:
        queue.put(maker.batch(mixed(maker.rng, plan, stage_index.value), plan.rows))


def mixed(rng: random.Random, plan: Preset, at: int) -> Stage:
    """Mostly the present stage; the rest rehearses earlier ones and plain copying."""
    draw = rng.random()
    if draw < 0.15:
        return plan.copying(at)
    if draw < 0.6 and at >= 3:
        return plan.crowded()
    return plan.stages[at if draw < 0.92 or at == 0 else rng.randrange(at)]


def batches(args, plan, codec, training, seed, stage_index):
    if args.workers == 0:
        maker = Maker(codec, training, unseen=False, seed=seed)
        while True:
            yield maker.batch(mixed(maker.rng, plan, stage_index.value), plan.rows)
    queue = torch.multiprocessing.Queue(4 * args.workers)
    for i in range(args.workers):
        torch.multiprocessing.Process(
            target=worker, daemon=True,
            args=(queue, stage_index, args.out / "tokenizer.json", args.corpus, plan, seed + 1000 * (i + 1)),
        ).start()
    while True:
        yield queue.get()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=Path, required=True, help="folder of .txt or .txt.gz books")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--minutes", type=float, default=90, help="wall-clock time of the whole training, resumed parts included")
    p.add_argument("--preset", default="small", help="small (CPU), large (GPU), tiny (trying out)")
    p.add_argument("--device", default="cpu", help="cpu or cuda")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--workers", type=int, help="processes that make batches; default 0 on the CPU, 12 on a GPU")
    p.add_argument("--compile", action="store_true", help="torch.compile: pays on a GPU, and on a CPU beyond 500 tokens")
    p.add_argument("--from-stage", type=int, help="go to this stage of the curriculum now")
    p.add_argument("--rate", type=float, help="peak learning rate, instead of the preset's")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    args.workers = (0 if args.device == "cpu" else 12) if args.workers is None else args.workers
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")

    plan = preset(args.preset)
    codec, counts, training = prepare(args.corpus, args.out)
    held_out = Maker(codec, books.load(args.corpus, validation=True), unseen=True, seed=7)
    model = Reader(plan.config)
    state = {"step": 0, "seconds": 0.0, "tokens": 0, "stage": 0, "history": []}
    last = args.out / "last.pt"
    saved = torch.load(last, weights_only=False) if last.exists() else None
    if saved:
        model = Reader(Config(**saved["config"]))
        model.load_state_dict(saved["model"])
        state = saved["state"]
        print(f"resuming at step {state['step']}, {state['seconds'] / 60:.1f} minutes in")
    else:
        start.structured(model, counts, args.seed)
    model.to(args.device)
    if args.from_stage is not None:
        state["stage"] = args.from_stage
    # The embedding has a lower learning rate, because the structured initialisation depends on its codes.
    codes = [model.embedding]
    others = [q for n, q in model.named_parameters() if n != "embedding"]
    optimizer = torch.optim.AdamW(
        [{"params": codes, "part": 0.3}, {"params": others, "part": 1.0}],
        lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    if saved:
        optimizer.load_state_dict(saved["optimizer"])
    trained = torch.compile(model, dynamic=False) if args.compile else model
    stage_index = torch.multiprocessing.Value("i", state["stage"])
    source = batches(args, plan, codec, training, args.seed + state["step"], stage_index)

    def save():
        data = {"config": plan.config.to_dict() if not saved else saved["config"], "model": model.state_dict(),
                "optimizer": optimizer.state_dict(), "state": state}
        torch.save(data, args.out / "last.tmp")
        (args.out / "last.tmp").replace(last)
        draw_losses(state["history"], args.out / "loss.png")

    print(f"{model.parameters_count() / 1e6:.2f} M parameters, preset {args.preset}, on {args.device}", flush=True)
    sums, clock, marked = [0.0, 0, 0], time.time(), time.time()
    while (used := state["seconds"] / 60 / args.minutes) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = group["part"] * learning_rate(state["step"], used, args.rate or plan.rate)
        tokens, rows, targets, weights = (t.to(args.device, non_blocking=True) for t in next(source))
        with torch.autocast("cuda", torch.bfloat16, enabled=args.device == "cuda"):
            loss, right = trained(tokens, rows, targets, weights)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state["step"] += 1
        state["tokens"] += tokens.numel()
        now = time.time()
        state["seconds"] += now - clock
        clock = now
        sums = [sums[0] + loss.detach(), sums[1] + 1, sums[2] + tokens.numel()]
        if state["step"] % 100 == 0:
            stage = plan.stages[state["stage"]]
            held = measure(model, held_out, stage, 12 if args.device == "cpu" else 100, args.device)
            entry = {"step": state["step"], "minutes": round(state["seconds"] / 60, 2), "tokens": state["tokens"],
                     "stage": state["stage"], "loss": round(float(sums[0]) / sums[1], 4), "held_out": held,
                     "tokens_per_second": round(sums[2] / (now - marked))}
            state["history"].append(entry)
            with open(args.out / "log.jsonl", "a") as log:
                log.write(json.dumps(entry) + "\n")
            print(f"{entry['minutes']:6.1f} min  step {entry['step']}  {stage.name} ({stage.length})  loss {entry['loss']:.3f}  "
                  f"held out {held}  {entry['tokens_per_second']} tokens/s", flush=True)
            recent = [h["held_out"]["fact"] or 0 for h in state["history"][-2:] if h["stage"] == state["stage"]]
            # The next stage begins when this one is mastered, or when its share of the first 60 % of the time is used
            # up.
            mastered = len(recent) == 2 and sum(recent) / 2 >= stage.advance
            late = used > 0.6 * (state["stage"] + 1) / (len(plan.stages) - 1)
            if (mastered or late) and state["stage"] + 1 < len(plan.stages):
                state["stage"] += 1
                stage_index.value = state["stage"]
            sums, marked = [0.0, 0, 0], time.time()
            save()
            clock = time.time()  # evaluation and saving do not count as training time in the log ...
            state["seconds"] += clock - now  # ... but do count for the wall-clock budget
    save()
    print("done; next: python export_gguf.py --out", args.out)


if __name__ == "__main__":
    main()
