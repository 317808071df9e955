#!/usr/bin/env python3
"""Kept against llama.cpp, in one run: prefill and decode, same file, same threads, medians of alternating runs.

bench.py --kept KEPT --folder FOLDER [--quick] [--models A,B] [--runs N] [--threads N]      (called by scripts/bench)

llama.cpp comes from PyPI's `xllamacpp` and gets the better of its settings at each point: flash attention on or off.
Both sides run independently. After 32K tokens both decode over a cache without a prefill: Kept fills its budget of rows
with random numbers (`kept bench --after`), and llama.cpp restores a slot of 32K cells derived from a short slot of its
own (`long_slot`).

Writes FOLDER/bench.json and FOLDER/bench.md, and prints the latter.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

# Methods that score by the observation window.
WINDOW_METHODS = ["snapkv", "pyramidkv", "chunkkv", "hbw_kv", "tova", "pyramidinfer", "adakv", "cam"]
# Methods that measure the keys themselves.
ASKING = ["keydiff", "expected_attention"]
# Also scores by the queries of the whole prompt, unlike the window methods.
SUMMING = "ems"
FAR, BUDGET = 32768, 1024
# Trained models of `make models`, and prompt lengths for them.
TRAINED = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"]
TRAINED_POINTS = [512, 7000]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--kept", required=True)
    a.add_argument("--folder", required=True)
    a.add_argument("--quick", action="store_true", help="two models, short prompts, one run: minutes instead of an hour or two")
    a.add_argument("--models", help="names of scripts/bench_models.py, with commas between, or paths")
    a.add_argument("--points", help="prompt lengths [512,4096]")
    a.add_argument("--runs", type=int)
    a.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--cache", default="f16", help="Kept's cache type")
    a.add_argument("--without", default="", help="parts to leave out, with commas between: speed, trained, far, selection, again, memory, streaming, peer")
    o = a.parse_args()
    sys.dont_write_bytecode = True
    import bench_models

    folder = pathlib.Path(o.folder)
    folder.mkdir(parents=True, exist_ok=True)
    all_models = ["llama-1b-q4_k_m", "llama-1b-q8_0", "qwen-0.5b-q4_k_m", "qwen-0.5b-q8_0"]
    names = o.models.split(",") if o.models else (["qwen-0.5b-q4_k_m", "llama-1b-q4_k_m"] if o.quick else all_models)
    points = [int(p) for p in o.points.split(",")] if o.points else ([256] if o.quick else [512, 4096])
    runs = o.runs or (1 if o.quick else 3)
    without = set(filter(None, o.without.split(",")))
    if o.quick:
        without |= {"memory", "streaming"}
    bench = Bench(o, folder, runs, without)
    if "trained" not in without:
        bench.trained(TRAINED_POINTS[:1] if o.quick else TRAINED_POINTS)
    path = lambda name: pathlib.Path(name) if os.sep in name else bench_models.model(folder, name)
    for name in names:
        for tokens in points if "speed" not in without else []:
            bench.point(path(name), tokens)
        if "far" not in without:
            bench.far(path(name))
    smallest = names[-1]
    if "selection" not in without:
        bench.selection(path(smallest), points[-1])
    if "again" not in without:
        bench.again("mini", 3600)
        bench.again(path(smallest), points[-1] if o.quick else 2 * points[-1])
    if "memory" not in without:
        bench.memory(path(smallest))
    if "streaming" not in without:
        bench.streaming()
    bench.write()


class Bench:
    def __init__(self, o, folder, runs, without):
        self.o, self.folder, self.runs, self.without = o, folder, runs, without
        found = self.kept_json("--bandwidth")
        self.copy, self.read = found["copy_gbs"], found["read_gbs"]
        self.report = {
            "machine": machine(),
            "threads": o.threads,
            "load_at_start": os.getloadavg()[0],
            "copy_gbs": self.copy,
            "read_gbs": self.read,
            "runs": runs,
            "cache": o.cache,
            "peer": peer_version(),
            "speed": [],
            "far": [],
            "selection": [],
            "again": [],
            "memory": [],
            "streaming": [],
        }

    def kept_json(self, *arguments):
        command = [self.o.kept, "bench", "--json", "--threads", str(self.o.threads), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr.strip()}")
        return json.loads(done.stdout)

    def kept(self, model, prompt, decode, *more, cache=None):
        return self.kept_json("--model", model, *(["--prompt-tokens", prompt] if prompt else []), "--decode-tokens", decode, "--cache", cache or self.o.cache, *more)

    def peer(self, model, prompt, decode, flash, far=False):
        if "peer" in self.without:
            return None
        arguments = [str(model), str(prompt), str(decode), str(self.o.threads), "on" if flash else "off", "far" if far else "read"]
        done = subprocess.run([sys.executable, __file__, "peer", *arguments], capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            sys.exit(f"llama.cpp: {done.stderr.strip()[-800:]}")
        return json.loads(lines[-1])

    def turns(self, kept, peer):
        """Medians of alternating runs: of Kept, and of llama.cpp's better setting for prefill and for decode. A setting
        that was a tenth slower than the other at both in the first round is dropped."""
        keys = ("prefill_tokens_per_second", "decode_tokens_per_second")
        mine, theirs = [], {False: [], True: []}
        for _ in range(self.runs):
            mine.append(kept())
            for flash in theirs:
                found = peer(flash)
                if found:
                    theirs[flash].append(found)
            first = [rows[0] for rows in theirs.values() if rows]
            theirs = {flash: rows for flash, rows in theirs.items() if any(rows and rows[0][key] >= 0.9 * max(row[key] for row in first) for key in keys)}
        middle = lambda rows, key: statistics.median(row[key] for row in rows)
        best = lambda key: max(((middle(rows, key), flash) for flash, rows in theirs.items() if rows), default=(None, None))
        return mine, middle, best

    def point(self, model, tokens):
        decode = 16 if self.o.quick else 48
        mine, middle, best = self.turns(
            lambda: self.kept(model, tokens, decode, "--method", "full"),
            lambda flash: self.peer(model, tokens, decode, flash),
        )
        for what, key, moved in (
            ("reading", "prefill_tokens_per_second", "bytes_per_read_token"),
            ("answering", "decode_tokens_per_second", "bytes_per_token"),
        ):
            speed, (theirs, flash) = middle(mine, key), best(key)
            self.row("speed", model, what, tokens, speed, theirs, flash, middle(mine, moved))

    def trained(self, points):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folders = os.environ.get("KEPT_MODELS") or os.path.join(cache, "kept", "models")
        for name in TRAINED:
            found = [path for path in (pathlib.Path(folder) / name for folder in folders.split(os.pathsep)) if path.exists()]
            if not found:
                print(f"{name} is not in {folders}, and not timed: scripts/models brings it", file=sys.stderr)
            for tokens in points if found else []:
                self.point(found[0], tokens)

    def far(self, model):
        decode = 16 if self.o.quick else 32
        near = lambda: self.kept(model, None, decode, "--method", "snapkv", "--budget", BUDGET, "--after", BUDGET)
        after = lambda: self.kept(model, None, decode, "--method", "snapkv", "--budget", BUDGET, "--after", FAR)
        key = "decode_tokens_per_second"
        first = []

        def both():
            first.append(near())
            return after()

        mine, middle, best = self.turns(both, lambda flash: self.peer(model, FAR, decode, flash, far=True))
        theirs, flash = best(key)
        self.row("far", model, f"answering after 1K, {BUDGET} rows", BUDGET, middle(first, key), None, None, middle(first, "bytes_per_token"))
        self.row("far", model, f"answering after 32K, {BUDGET} rows", FAR, middle(mine, key), theirs, flash, middle(mine, "bytes_per_token"))

    def row(self, table, model, what, tokens, kept, peer, flash, moved):
        gbs = kept * moved / 1e9
        row = dict(model=model.stem, what=what, tokens=tokens, kept=kept, llama_cpp=peer, flash_attention=flash,
                   ratio=kept / peer if peer else None, bytes_per_token=moved, gbs=gbs, share_of_copy=gbs / self.copy)
        self.report[table].append(row)
        beside = f"{peer:9.2f} llama.cpp (flash attention {'on' if flash else 'off'})  {kept / peer:5.2f}x" if peer else ""
        print(f"{model.stem:30} {what:32} {tokens:6}  {kept:9.2f} kept {beside}", file=sys.stderr, flush=True)

    def moved(self, bytes_moved, seconds):
        """Minimum bytes moved, the rate, and its share of the memory copy bandwidth."""
        gbs = bytes_moved / seconds / 1e9
        return dict(bytes_moved=bytes_moved, gbs=gbs, share_of_copy=gbs / self.copy)

    def selection(self, model, tokens):
        for method in WINDOW_METHODS + ASKING + [SUMMING]:
            rows = [self.kept(model, tokens, 2, "--method", method, "--budget", min(BUDGET, tokens // 4)) for _ in range(self.runs)]
            share = statistics.median(row["select_seconds"] / row["prefill_seconds"] for row in rows)
            seconds = statistics.median(row["select_seconds"] for row in rows)
            moved = self.moved(rows[0]["select_bytes"], seconds)
            self.report["selection"].append(dict(model=model.stem, method=method, tokens=tokens, share=share, milliseconds=1e3 * seconds, **moved))
            print(f"{model.stem:18} selecting, {method:21} {tokens:6}  {100 * share:6.2f} % of reading", file=sys.stderr, flush=True)

    def memory(self, model):
        found = self.kept(model, FAR - 64, 2, "--method", "snapkv", "--budget", BUDGET)
        above = found["peak_bytes"] - found["base_bytes"] - found["weights_bytes"]
        bound = found["layer_kv_bytes"] + found["residual_bytes"] + (256 << 20)
        seconds = found["prefill_seconds"]
        row = dict(model=model.stem, tokens=FAR - 64, above_weights=above, bound=bound, ledger=found["ledger_peak_bytes"] - found["weights_bytes"],
                   seconds=seconds, **self.moved(found["bytes_per_read_token"] * (FAR - 64), seconds))
        self.report["memory"].append(row)
        print(f"{model.stem:18} reading {FAR - 64} tokens: {above / 2**20:.0f} MiB above the weights, bound {bound / 2**20:.0f}", file=sys.stderr)

    def streaming(self):
        """A million tokens with the built-in model: time per token within the first 100K and within the last."""
        for method in ["streaming_llm", "treekv"]:
            found = self.kept("mini", 1_000_000, 2, "--streaming", "--method", method, "--budget", BUDGET)
            first, last = found["tenths_tokens_per_second"]
            above = found["peak_bytes"] - found["base_bytes"] - found["weights_bytes"]
            seconds = found["prefill_seconds"]
            moved = self.moved(found["bytes_per_read_token"] * 1_000_000, seconds)
            row = dict(model="mini", method=method, tokens=1_000_000, first=first, last=last, above_weights=above, seconds=seconds, **moved)
            self.report["streaming"].append(row)
            print(f"{'mini':18} streaming, {method:21}  first 100K {first:.0f} tokens/s, last 100K {last:.0f}", file=sys.stderr, flush=True)

    def again(self, model, tokens):
        """A second question on a known document, from its vault: `model` may be the name of the built-in model."""
        rows = [self.kept(model, tokens, 2, "--method", "snapkv", "--budget", min(BUDGET, tokens // 4), "--again") for _ in range(self.runs)]
        share = statistics.median(row["again"][0] / row["prefill_seconds"] for row in rows)
        seconds = statistics.median(row["again"][0] for row in rows)
        name = getattr(model, "stem", model)
        row = dict(model=name, tokens=tokens, share=share, milliseconds=1e3 * seconds, **self.moved(rows[0]["again_bytes"], seconds))
        self.report["again"].append(row)
        print(f"{name:18} second question behind {tokens} tokens  {100 * share:6.2f} % of reading", file=sys.stderr, flush=True)

    def write(self):
        self.report["load_at_end"] = os.getloadavg()[0]
        (self.folder / "bench.json").write_text(json.dumps(self.report, indent=1) + "\n")
        text = markdown(self.report)
        (self.folder / "bench.md").write_text(text)
        print(text)


def markdown(r):
    number = lambda x: "" if x is None else f"{x:.0f}" if x >= 100 else f"{x:.1f}"
    ratio = lambda x: "" if x is None else f"{x:.2f}x"
    lines = [
        f"{r['machine']}, {r['threads']} threads; copying memory {r['copy_gbs']:.1f} GB/s, reading it {r['read_gbs']:.1f} GB/s; "
        f"load {r['load_at_start']:.1f} before and {r['load_at_end']:.1f} after; medians of {r['runs']}, taking turns; cache {r['cache']}; "
        f"{r['peer']}.",
    ]
    if r["speed"] + r["far"]:
        lines += ["", "| model | tokens/s | Kept | llama.cpp | | moved a token | GB/s | of copying |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in r["speed"] + r["far"]:
        after = "" if "after" in row["what"] else f"{' after' if row['what'] == 'answering' else ''} {row['tokens']:,} tokens"
        lines.append(
            f"| {row['model']} | {row['what']}{after} | {number(row['kept'])} | {number(row['llama_cpp'])} | {ratio(row['ratio'])} "
            f"| {row['bytes_per_token'] / 1e6:,.1f} MB | {row['gbs']:.1f} | {100 * row['share_of_copy']:.0f} % |"
        )
    moved = lambda row: f"{row['bytes_moved'] / 1e6:,.0f} MB | {row['gbs']:.1f} | {100 * row['share_of_copy']:.0f} %"
    moving = lambda row: f"{row['bytes_moved'] / 1e9:,.0f} GB moved, {row['gbs']:.1f} GB/s, {100 * row['share_of_copy']:.0f} % of copying"
    for table, what in (("selection", "selecting"), ("again", "a second question")):
        if r[table]:
            lines += ["", f"| {what} | behind | of reading | moved | GB/s | of copying |", "| --- | --- | --- | --- | --- | --- |"]
        for s in r[table]:
            lines.append(f"| {s.get('method', 'from its vault')} | {s['tokens']:,} tokens, {s['model']} | {100 * s['share']:.2f} % ({s['milliseconds']:.0f} ms) | {moved(s)} |")
    for m in r["memory"]:
        lines += ["", f"Reading {m['tokens']:,} tokens with {m['model']}: {m['above_weights'] / 2**20:.0f} MiB above the weights "
                  f"(one layer's keys and values, the residual stream and 256 MiB are {m['bound'] / 2**20:.0f} MiB); {moving(m)}."]
    for s in r["streaming"]:
        lines += ["", f"Streaming {s['tokens']:,} tokens with {s['model']}, {s['method']} of {BUDGET} rows: {s['first']:.0f} tokens/s among the first 100K, "
                  f"{s['last']:.0f} among the last, {s['above_weights'] / 2**20:.0f} MiB above the weights; {moving(s)}."]
    return "\n".join(lines) + "\n"


def machine():
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    name = line.split(":", 1)[1].strip()
                    break
    except OSError:
        pass
    return name


def peer_version():
    from importlib.metadata import PackageNotFoundError, version
    try:
        return f"llama.cpp of xllamacpp {version('xllamacpp')}"
    except PackageNotFoundError:
        return "no llama.cpp"


# llama.cpp, in a separate process.


def peer(model, prompt, decode, threads, flash, how):
    import xllamacpp as x

    prompt, decode, threads = int(prompt), int(decode), int(threads)
    ids = [300 + (i * 7919) % 3000 for i in range(prompt)]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(model)) as folder:
        p = x.CommonParams()
        p.model.path = model
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_parallel = prompt + decode + 64, 2048, 512, 1
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
        kind = "ENABLED" if flash == "on" else "DISABLED"
        p.flash_attn_type = getattr(x.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kind}")
        p.slot_save_path, p.endpoint_slots = folder + os.sep, True
        server = x.Server(p)

        def complete(ids, count, cached):
            found = server.handle_completions(
                {"prompt": ids, "n_predict": count, "ignore_eos": True, "temperature": 0, "top_k": 1, "cache_prompt": cached, "id_slot": 0}
            )
            return (found if isinstance(found, dict) else json.loads(found))["timings"]

        if how == "far":
            complete(ids[:64], 2, True)
            slot(server, "save", "short.bin")
            with open(os.path.join(folder, "short.bin"), "rb") as file:
                long = long_slot(file.read(), ids)
            with open(os.path.join(folder, "long.bin"), "wb") as file:
                file.write(long)
            del long
            slot(server, "restore", "long.bin")
            timings = complete(ids + [7], decode, True)
            if timings["prompt_n"] > 2:
                sys.exit(f"the restored slot was not used: {timings['prompt_n']} tokens were read")
        else:
            timings = complete(ids, decode, False)
        print()
        print(json.dumps({"prefill_tokens_per_second": timings["prompt_per_second"], "decode_tokens_per_second": timings["predicted_per_second"]}))


def slot(server, action, name):
    request = urllib.request.Request(
        f"{server.listening_address}/slots/0?action={action}",
        data=json.dumps({"filename": name}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        found = json.loads(answer.read())
    if "error" in found:
        sys.exit(f"{action} of a slot: {found['error']}")


def long_slot(short, ids):
    """A slot file of the tokens `ids`, whose keys and values repeat those of the file `short`.

    Parsed strictly: any deviation from the format of this llama.cpp version ends the run.

        magic, version, words | -1, 1, tokens, ids.., 0 | streams, cells | position, 1, 0 per cell
        | values transposed, layers, 0, 0
        | per layer: type, row bytes (u64), keys | per layer: type, row bytes (u64), values
                                          or, transposed: type, element bytes, rows, values [rows][cells]
    """
    at = 0

    def take(form):
        nonlocal at
        found = struct.unpack_from("<" + form, short, at)
        at += struct.calcsize("<" + form)
        return found

    def expect(found, wanted, what):
        if found != wanted:
            sys.exit(f"llama.cpp writes slots in another way than this benchmark knows: {what} is {found}, not {wanted}")

    out = []
    magic, version, words = take("III")
    first, one, tokens = take("iii")
    expect((first, one, words), (-1, 1, tokens + 4), "the list of tokens")
    take(f"{tokens}i")
    (last,) = take("i")
    expect(last, 0, "the end of the list")
    n = len(ids)
    out.append(struct.pack(f"<III3i{n}ii", magic, version, n + 4, -1, 1, n, *ids, 0))
    streams, cells = take("II")
    expect((streams, cells), (1, tokens), "the number of cells")
    out.append(struct.pack("<II", 1, n))
    for cell in range(cells):
        expect(take("iII"), (cell, 1, 0), "a cell")
    import numpy as np

    meta = np.zeros((n, 3), np.int32)
    meta[:, 0], meta[:, 1] = np.arange(n), 1
    out.append(meta.tobytes())
    turned, layers, zero, none = take("IIII")
    expect((zero, none), (0, 0), "the head of the rows")
    out.append(struct.pack("<IIII", turned, layers, 0, 0))
    times = -(-n // cells)

    def rows():
        kind, size = take("IQ")
        nonlocal at
        data = short[at : at + cells * size]
        at += cells * size
        out.append(struct.pack("<IQ", kind, size))
        out.append((data * times)[: n * size])

    for _ in range(layers):
        rows()
    for _ in range(layers):
        if not turned:
            rows()
            continue
        kind, element, width = take("III")
        data = np.frombuffer(short, np.uint8, width * cells * element, at).reshape(width, cells * element)
        at += data.size
        out.append(struct.pack("<III", kind, element, width))
        out.append(np.ascontiguousarray(np.tile(data, (1, times))[:, : n * element]).tobytes())
    expect(at, len(short), "the length")
    return b"".join(out)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if sys.argv[1:2] == ["peer"]:
        peer(*sys.argv[2:])
    else:
        main()
