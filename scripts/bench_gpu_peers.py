#!/usr/bin/env python3
"""Kept's peers on a GPU: Hugging Face transformers with kvpress on the same shape, and llama.cpp on the same file.

bench_gpu_peers.py hugging-face [--shape llama-8b] [--lengths 8192,32768] [--rows N] [--decode N] [--runs N]
                                [--device cuda:0] [--quick]
bench_gpu_peers.py llama.cpp --model FILE [--flash on|off] [--lengths ...] ...

Prints a line of JSON for each point as soon as it is measured, medians of runs. bench_gpu.py starts it as a separate
process, so that its memory is freed, and compares it with Kept (`beside`). Nothing is downloaded: the transformers
Llama has random weights created on the device.

transformers reads the prompt at once into a DynamicCache, the one that kvpress compresses, and which is copied for each
token; attention is PyTorch's own (sdpa). kvpress' SnapKV uses Kept's observation window and kernel. `--quick` is a
smoke test: a toy shape and short prompts.
"""
import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from importlib.util import find_spec

LENGTHS, ROWS, DECODE = [8192, 32768, 131072], 2048, 128
NO_TIME = "no time was left; go on with --resume"


def say(**found):
    print(json.dumps(found), flush=True)


def rows_of(o, tokens):
    """Rows to keep: never more than a quarter, so that `--quick` evicts too."""
    return min(o.rows, tokens // 4)


def middle(runs):
    """Medians, and the maximum of bytes."""
    whole = {key: [run[key] for run in runs] for key, value in runs[0].items() if value is not None}
    return {key: max(values) if key == "peak_bytes" else statistics.median(values) for key, values in whole.items()}


# Hugging Face, in a separate process.


def hugging_face(o):
    missing = [name for name in ("torch", "transformers") if not find_spec(name)]
    if missing:
        return say(not_measured=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
    # No network access, whatever is missing.
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    import torch

    gpu = o.device != "cpu"
    if gpu and not torch.cuda.is_available():
        return say(not_measured=f"torch {version('torch')} finds no CUDA device")
    from bench_models import SHAPES
    from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

    try:
        import kvpress

        without = None
    except ImportError as e:
        kvpress, without = None, "it is not installed" if e.name == "kvpress" else f"it does not load here: {e}"

    if gpu:
        torch.cuda.set_device(torch.device(o.device))
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads()))
    kind = torch.float32 if not gpu else torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
    s = SHAPES[o.shape]
    config = LlamaConfig(
        vocab_size=s["vocab"], hidden_size=s["width"], intermediate_size=s["ffn"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"], max_position_embeddings=s["context"], rms_norm_eps=1e-5, tie_word_embeddings=s.get("tied", True),
        rope_parameters={"rope_type": "default", "rope_theta": s["base"]},
    )
    wait = torch.cuda.synchronize if gpu else lambda: None

    @torch.no_grad()
    def once(model, tokens, rows):
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        ids = (300 + torch.arange(tokens, device=o.device) * 7919 % (s["vocab"] - 300))[None]
        cache = DynamicCache()
        wait()
        begun = time.perf_counter()
        if rows:
            # kvpress keeps int(tokens * (1 - ratio)) rows; the half compensates for floating-point rounding.
            with kvpress.SnapKVPress(1 - (rows + 0.5) / tokens, window_size=32, kernel_size=7)(model):
                logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
        else:
            logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
        token = logits[:, -1:].argmax(-1)
        wait()
        first = time.perf_counter()
        there = cache.get_seq_length()
        if there != (rows or tokens):
            sys.exit(f"{there} rows are there of {tokens}, not {rows or tokens}")
        for step in range(o.decode):
            at = torch.tensor([[tokens + step]], device=o.device)
            token = model(token, past_key_values=cache, position_ids=at, logits_to_keep=1).logits[:, -1:].argmax(-1)
        wait()
        speed = o.decode / (time.perf_counter() - first)
        return {"first_token_seconds": first - begun, "decode_tokens_per_second": speed, "peak_bytes": torch.cuda.max_memory_allocated() if gpu else None}

    try:
        with torch.device(o.device):
            model = AutoModelForCausalLM.from_config(config, dtype=kind, attn_implementation="sdpa").eval()
        # Libraries load their kernels on first use.
        once(model, 128, 64 if kvpress else None)
    except torch.OutOfMemoryError:
        return say(not_measured=f"a {o.shape} in {str(kind).removeprefix('torch.')} does not fit the GPU")
    what = f"transformers {version('transformers')}, torch {version('torch')}, {str(kind).removeprefix('torch.')}"
    if kvpress:
        what += f", kvpress {version('kvpress')}"
    say(what=what, without_kvpress=without, weights_bytes=sum(p.numel() * p.element_size() for p in model.parameters()))
    for tokens in o.lengths:
        for rows in (None, rows_of(o, tokens)) if kvpress else (None,):
            point = {"tokens": tokens, "rows": rows}
            try:
                say(**point, **middle([once(model, tokens, rows) for _ in range(o.runs)]))
            except torch.OutOfMemoryError:
                say(**point, left_out="the GPU has no room for it")
            # A traceback that is being handled would keep the cache alive.
            gc.collect()
            if gpu:
                torch.cuda.empty_cache()


# llama.cpp by xllamacpp, in a separate process.


def llama_cpp(o):
    import xllamacpp as x

    if o.device != "cpu" and not any(device["type"].name.endswith("GPU") for device in x.get_device_info()):
        return say(not_measured="xllamacpp is installed, but not with CUDA, and the program llama-bench is not on the PATH")
    say(what=f"llama.cpp of xllamacpp {version('xllamacpp')}")
    for tokens in o.lengths:
        ids = [300 + (i * 7919) % 3000 for i in range(tokens)]
        p = x.CommonParams()
        p.model.path = o.model
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_parallel = tokens + o.decode + 64, 2048, 512, 1
        p.n_gpu_layers = 0 if o.device == "cpu" else 99
        p.flash_attn_type = getattr(x.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{'ENABLED' if o.flash == 'on' else 'DISABLED'}")
        server = x.Server(p)
        runs = []
        # The first run is a warm-up.
        for _ in range(1 + o.runs):
            found = server.handle_completions(
                {"prompt": ids, "n_predict": o.decode, "ignore_eos": True, "temperature": 0, "top_k": 1, "cache_prompt": False, "id_slot": 0}
            )
            timings = (found if isinstance(found, dict) else json.loads(found))["timings"]
            runs.append({"prefill_tokens_per_second": timings["prompt_per_second"], "decode_tokens_per_second": timings["predicted_per_second"]})
        del server
        say(tokens=tokens, rows=None, **middle(runs[1:]))


# Called by bench_gpu.py.


def only(device):
    """An environment in which llama.cpp, which would otherwise use all GPUs, sees only this one."""
    found = dict(os.environ)
    if device != "cpu":
        number, there = device.partition(":")[2] or "0", found.get("CUDA_VISIBLE_DEVICES")
        found["CUDA_VISIBLE_DEVICES"] = there.split(",")[int(number)] if there else number
    return found


def child(bench, *arguments, heard=lambda found: None, env=None):
    """Output of a peer process, also passed to `heard` line by line, and its error, if any. Limited to the remaining
    time."""
    left = bench.left()
    if left == 0:
        return [], NO_TIME
    found = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        end = threading.Timer(left, process.kill) if left else None
        try:
            if end:
                end.start()
            for line in process.stdout:
                if line.startswith('{"'):
                    found.append(json.loads(line))
                    heard(found[-1])
            code = process.wait()
        finally:
            if end:
                end.cancel()
            process.kill()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if bench.left() == 0:
        return found, NO_TIME
    return found, None if code == 0 else said[-1] if said else f"code {code}"


def transformers(bench, o):
    """Results of Hugging Face's process at all lengths, including those of an earlier start."""
    def key(tokens, rows):
        return ["transformers", o.shape, tokens, rows or "all", o.decode, o.runs]

    points, lengths = {}, []
    for tokens in o.lengths:
        # Without kvpress there are no compressed points.
        asked = [(tokens, rows) for rows in (None, rows_of(o, tokens)) if not rows or find_spec("kvpress")]
        points |= {point: found for point in asked if (found := bench.noted(key(*point)))}
        lengths += [] if points.keys() >= set(asked) else [tokens]
    head, died = bench.noted(["transformers", o.shape]), None

    def heard(line):
        if "what" in line:
            bench.note(["transformers", o.shape], line)
        elif "tokens" in line:
            points[line["tokens"], line["rows"]] = line
            bench.note(key(line["tokens"], line["rows"]), line)

    if lengths or not head:
        lines, died = child(bench, "hugging-face", *o.passed(*lengths), heard=heard)
        head = next((line for line in lines if "what" in line or "not_measured" in line), head) or {"not_measured": died or "it said nothing"}
    return {**head, "points": list(points.values()), **({"died": died} if died and "what" in head else {})}


def llama_bench(bench, program, model, o, tokens, flash):
    """llama.cpp's own benchmark at one length, or its error message."""
    base = [program, "-m", model, "-r", o.runs, "-ngl", 0 if o.device == "cpu" else 99, "-fa", 1 if flash == "on" else 0, "-o", "json"]
    speeds = {}
    for key, what in (("prefill_tokens_per_second", ["-p", tokens, "-n", 0]), ("decode_tokens_per_second", ["-p", 0, "-n", o.decode, "-d", tokens])):
        run = ["llama-bench", o.runs, flash, *what]
        report = bench.noted(run)
        if not report:
            done = bench.process([*base, *what], env=only(o.device))
            if done is None:
                return None, NO_TIME
            try:
                report = json.loads(done.stdout)[0]
                report["samples_ts"][0]
            except (ValueError, LookupError):
                said = done.stderr.strip().splitlines()
                return None, said[-1] if said else f"code {done.returncode}"
            bench.note(run, report)
        speeds[key] = statistics.median(report["samples_ts"])
    backends = report.get("backends", "")
    if o.device != "cpu" and "CUDA" not in backends:
        return {"not_measured": f"the llama-bench on the PATH computes with {backends or 'something unknown'}, not with CUDA"}, None
    return {"what": f"llama.cpp {report.get('build_commit', '')} ({backends})", "tokens": tokens, "rows": None, **speeds}, None


def by_xllamacpp(bench, model, o, tokens, flash):
    """The same by the Python module, in a separate process."""
    run = ["xllamacpp", o.runs, flash, tokens, o.decode]
    if known := bench.noted(run):
        return known, None
    found, died = child(bench, "llama.cpp", "--model", model, "--flash", flash, *o.passed(tokens), env=only(o.device))
    if not died and any("tokens" in f for f in found):
        bench.note(run, found)
    return found, died


def best_of_llama_cpp(bench, o, model):
    """The better of flash attention on and off for prefill and for decode, at each length."""
    program = shutil.which("llama-bench")
    if not program and not find_spec("xllamacpp"):
        return {"not_measured": "neither the program llama-bench nor xllamacpp with CUDA is installed"}
    what, points = None, []
    for tokens in o.lengths:
        tried, failed = [], []
        for flash in ("on", "off"):
            if program:
                found, died = llama_bench(bench, program, model, o, tokens, flash)
                found = [found] if found else []
            else:
                found, died = by_xllamacpp(bench, model, o, tokens, flash)
            if found and "not_measured" in found[0]:
                return found[0]
            what = next((f["what"] for f in found if "what" in f), what)
            tried += [f for f in found if "tokens" in f]
            failed += [died] if died else []
        if tried and NO_TIME not in failed:
            best = {key: max(f[key] for f in tried) for key in ("prefill_tokens_per_second", "decode_tokens_per_second")}
            points.append({"tokens": tokens, "rows": None, "first_token_seconds": tokens / best["prefill_tokens_per_second"], **best})
        else:
            # With time for only one of the two settings, the better one is unknown.
            points.append({"tokens": tokens, "rows": None, "left_out": failed[-1] if failed else "nothing was found"})
    return {"what": what or "llama.cpp", "points": points}


class Asked:
    def __init__(self, lengths, rows, decode, runs, device, shape):
        self.lengths, self.rows, self.decode, self.runs, self.device, self.shape = lengths, rows, decode, runs, device, shape

    def passed(self, *lengths):
        lengths = ",".join(map(str, lengths or self.lengths))
        return ["--lengths", lengths, "--rows", self.rows, "--decode", self.decode, "--runs", self.runs, "--device", self.device, "--shape", self.shape]


def beside(bench, path, shape, lengths, rows, decode):
    """Kept, transformers with kvpress, and llama.cpp: the results, and their Markdown."""
    o = Asked(lengths, rows, decode, bench.o.runs, bench.o.device, shape)
    points = {}
    for tokens in lengths:
        for left in (None, rows_of(o, tokens)):
            method = ["snapkv", "--budget", left] if left else ["full"]
            points[f"{tokens} {left or 'all'}"] = ["--model", path, "--prompt-tokens", tokens, "--decode-tokens", decode, "--method", *method]
    kept = bench.together(points)
    others = {"transformers with kvpress": transformers(bench, o), "llama.cpp": best_of_llama_cpp(bench, o, path)}
    return {"kept": kept, **others}, markdown(o, kept, others)


def markdown(o, kept, others):
    text = ["## Beside others, in the same run", "", "| | tokens | rows | first token | answering, tokens/s | memory at most |", "| --- | --- | --- | --- | --- | --- |"]

    def row(name, tokens, rows, point, peak):
        memory = f"{peak / 2**30:.2f} GiB" if peak else ""
        left = f"{rows:,}" if rows else "all"
        text.append(f"| {name} | {tokens:,} | {left} | {point['first_token_seconds']:.2f} s | {point['decode_tokens_per_second']:.1f} | {memory} |")

    def of(name, tokens, rows):
        return next((p for p in others[name].get("points", []) if (p["tokens"], p["rows"]) == (tokens, rows) and "left_out" not in p), None)

    for tokens in o.lengths:
        for rows in (None, rows_of(o, tokens)):
            report = kept[f"{tokens} {rows or 'all'}"]
            if report:
                row("Kept", tokens, rows, report, (report["gpu_bytes"] or [0, report["peak_bytes"]])[1])
            for name, called in (("transformers with kvpress", "kvpress, SnapKV" if rows else "transformers"), ("llama.cpp", "llama.cpp")):
                point = of(name, tokens, rows)
                if point:
                    row(called, tokens, rows, point, point.get("peak_bytes"))
    notes = []
    for name, found in others.items():
        if "not_measured" in found:
            notes.append(f"**Not measured: {name}**: {found['not_measured']}.")
            continue
        if found.get("without_kvpress"):
            notes.append(f"**Not measured: kvpress**: {found['without_kvpress']}.")
        weights = f", weights {found['weights_bytes'] / 2**30:.2f} GiB" if "weights_bytes" in found else ""
        same = " The same file as Kept's, the better of flash attention on and off; the first token is the reading alone." if name == "llama.cpp" else ""
        notes.append(f"{name}: {found['what']}{weights}.{same}")
        notes += [f"{name}: left out at {p['tokens']:,} tokens, {p['rows'] or 'all'} rows: {p['left_out']}." for p in found["points"] if "left_out" in p]
        if "died" in found:
            notes.append(f"{name}: ended before its end: {found['died']}")
    text += ["", *[f"- {note}" for note in notes]]
    text.append("- Memory is what the driver says of the GPU for Kept (of the processor: of the process), and what PyTorch has given out at most for transformers.")
    return text


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("what", choices=["hugging-face", "llama.cpp"])
    a.add_argument("--shape", default="llama-8b", help="a shape of scripts/bench_models.py")
    a.add_argument("--model", help="a GGUF file, for llama.cpp")
    a.add_argument("--flash", choices=["on", "off"], default="on")
    a.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")], default=LENGTHS)
    a.add_argument("--rows", type=int, default=ROWS)
    a.add_argument("--decode", type=int, default=DECODE)
    a.add_argument("--runs", type=int, default=3)
    a.add_argument("--device", default="cuda:0")
    a.add_argument("--quick", action="store_true")
    o = a.parse_args()
    if o.quick:
        o.shape, o.lengths, o.decode, o.runs = "toy", [512], 8, 1
    if o.what == "llama.cpp" and not o.model:
        a.error("llama.cpp needs --model FILE")
    sys.dont_write_bytecode = True
    {"hugging-face": hugging_face, "llama.cpp": llama_cpp}[o.what](o)


if __name__ == "__main__":
    main()
