"""Measures the built-in model: exact answers on documents made from the validation books, seeds fixed.

    python evaluate.py --corpus BOOKS --out DIR                     the exported weights (Q8_0) in PyTorch
    python evaluate.py --corpus BOOKS --gguf mini.gguf              the file itself, in llama.cpp (package xllamacpp)
    python evaluate.py --corpus BOOKS --kept PATH --method snapkv --budget 25%    through the `kept` program
    python evaluate.py --corpus BOOKS --write DIR                   only write the cases, for other programs

The bar is `facts, 1000 tokens`: 200 documents with one planted fact and eight distractors with unseen names.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import books
import cases as measuring
import tokenizer as tok

# name -> (kind, cases, tokens of a document)
SETS = {
    "facts, 1000 tokens": ("fact", 200, 1000),
    "quotes, 1000 tokens": ("quote", 100, 1000),
    "value before owner, 1000 tokens": ("value_first", 50, 1000),
    "facts, 2000 tokens": ("fact", 50, 2000),
    "facts, 3900 tokens": ("fact", 50, 3900),
}
LONGEST = 96  # maximum tokens of an answer


class InTorch:
    """Greedy decoding without a cache: the expected answer is a guess that is checked in one pass, so only what
    differs from it is generated token by token. The result is exactly that of plain greedy decoding."""

    def __init__(self, out: Path, device: str):
        import torch

        import export_gguf
        from model import Config, Reader

        saved = torch.load(out / "last.pt", map_location="cpu", weights_only=False)
        self.torch, self.device, self.codec = torch, device, tok.load(out / "tokenizer.json")
        self.model = Reader(Config(**saved["config"]))
        self.model.load_state_dict(export_gguf.as_exported(saved["model"]))
        self.model.to(device).eval()

    def answer(self, case) -> str:
        torch = self.torch
        prompt = self.codec.prompt(case.document, case.question)
        guess = self.codec.text(case.answer) + [tok.IM_END]
        given: list[int] = []
        with torch.no_grad():
            while len(given) < LONGEST and (not given or given[-1] != tok.IM_END):
                ids = torch.tensor([prompt + given + guess], device=self.device)
                hidden = self.model.hidden(ids)[0, len(prompt) + len(given) - 1 :]
                likely = torch.nn.functional.linear(hidden, self.model.embedding).argmax(-1).tolist()
                agreed = 0
                while agreed < len(guess) and guess[agreed] == likely[agreed]:
                    agreed += 1
                given += guess if guess and agreed == len(guess) else likely[: agreed + 1]
                guess = []
        if tok.IM_END in given:
            given = given[: given.index(tok.IM_END)]
        return self.codec.decode(given)


class InLlamaCpp:
    def __init__(self, gguf: Path, codec: tok.Codec, threads: int):
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = str(gguf)
        p.n_ctx, p.n_parallel, p.n_gpu_layers = 8192, 1, 0
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
        self.server, self.codec = xllamacpp.Server(p), codec

    def answer(self, case) -> str:
        prompt = self.codec.prompt(case.document, case.question)  # token ids, so only our tokenizer is used
        request = {"prompt": prompt, "n_predict": LONGEST, "temperature": 0.0, "top_k": 1, "cache_prompt": False}
        return self.server.handle_completions(request)["choices"][0]["text"]


class InKept:
    def __init__(self, program: Path, model: str | None, method: str, budget: str | None):
        self.command = [str(program), "ask", "--method", method, "--temperature", "0", "--max-tokens", str(LONGEST), "--json"]
        self.command += ["--budget", budget] if budget else []
        self.command += ["--model", model] if model else []

    def answer(self, case) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "document.txt"
            file.write_text(case.document, encoding="utf-8")
            done = subprocess.run(self.command + ["--document", str(file), "--question", case.question],
                                  capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"error: kept ask failed: {done.stderr.strip().splitlines()[-1:]}")
        return json.loads(done.stdout)["answer"]


def codec_of(args) -> tok.Codec:
    if args.out:
        return tok.load(args.out / "tokenizer.json")
    return tok.Codec(tok.from_gguf(args.gguf or Path(__file__).parents[2] / "assets" / "mini.gguf"))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=Path, required=True)
    p.add_argument("--out", type=Path, help="the folder train.py wrote")
    p.add_argument("--gguf", type=Path, help="measure this file in llama.cpp")
    p.add_argument("--kept", type=Path, help="measure through this `kept` program")
    p.add_argument("--method", default="full")
    p.add_argument("--budget")
    p.add_argument("--model", help="passed on to kept; default: its own built-in model")
    p.add_argument("--write", type=Path, help="write the cases into this folder and stop")
    p.add_argument("--sets", help="only the sets whose name contains this, e.g. '1000'")
    p.add_argument("--limit", type=int, help="at most this many cases of a set")
    p.add_argument("--wrong", action="store_true", help="print the answers that are not exact")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--device", default="cpu")
    args = p.parse_args()

    codec = codec_of(args)
    validation = books.load(args.corpus, validation=True)
    chosen = {n: s for n, s in SETS.items() if not args.sets or args.sets in n}
    if not chosen:
        raise SystemExit(f"error: no set named like {args.sets!r}; there are {', '.join(SETS)}")
    made = {n: measuring.make(codec, validation, kind, min(count, args.limit or count), size) for n, (kind, count, size) in chosen.items()}
    if args.write:
        for name, those in made.items():
            measuring.write(those, args.write / name.replace(", ", "-").replace(" ", "-"))
        print(f"{sum(map(len, made.values()))} cases in {args.write}")
        return
    if args.kept:
        reader = InKept(args.kept, args.model, args.method, args.budget)
    elif args.gguf:
        reader = InLlamaCpp(args.gguf, codec, args.threads)
    elif args.out:
        import torch

        torch.set_num_threads(args.threads)
        reader = InTorch(args.out, args.device)
    else:
        raise SystemExit("error: say what to measure: --out, --gguf or --kept")

    for name, those in made.items():
        by_wording: dict = defaultdict(lambda: [0, 0])
        exact = 0
        for i, case in enumerate(those):
            given = reader.answer(case)
            good = case.is_exact(given)
            exact += good
            by_wording[case.wording][0] += good
            by_wording[case.wording][1] += 1
            if args.wrong and not good:
                print(f"  expected {case.answer!r}\n  given    {given!r}   [{case.wording}] {case.question}")
            if sys.stderr.isatty():
                print(f"\r{name}: {i + 1}/{len(those)}, {exact} exact", end="", file=sys.stderr)
        if sys.stderr.isatty():
            print("\r", end="", file=sys.stderr)
        print(f"{name}: {exact}/{len(those)} exact = {exact / len(those):.1%}", flush=True)
        for wording, (good, count) in sorted(by_wording.items()):
            print(f"    {good:3}/{count:<3} {wording}", flush=True)


if __name__ == "__main__":
    main()
