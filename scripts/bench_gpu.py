#!/usr/bin/env python3
"""Kept's performance on a GPU, as shares of the GPU's limits; medians of alternating runs.

bench_gpu.py --kept KEPT --folder FOLDER [--out DIR] [--quick] [--runs N] [--parts gpu,peers] [--device cuda:0]
             [--seconds N] [--resume]
(called by scripts/bench-gpu)

Part `gpu`:
1. The GPU's limits: copies, f16 products on its tensor cores, attention over a prompt (`kept bench --bandwidth`).
2. Decode: an 8B and a 1B model in Q4_K_M after 2K tokens, as a share of the copy bandwidth; the 8B after 128K tokens
   with 2,048 rows, and against the full cache after 32K and 128K tokens, with the ratio of the bytes moved per token.
3. The time to the first token after 8K, 32K and 128K tokens, the share of selection in it, and peak GPU memory: the
   ledger's prediction, and the driver's figure.
4. The headline: 128K tokens on the 8B model within 8 GiB of GPU memory, stored in a vault, and a second question
   from it.

Parts `hbw-kv`, `pyramidkv`, `chunkkv`, `ems`: tables of these papers (bench_gpu_papers.py).
Part `peers`: against Hugging Face transformers with kvpress and llama.cpp, where installed (bench_gpu_peers.py).
Parts run in the order of PARTS, the longest last.

A point that does not fit the GPU, or fails, is reported and left out; after a failure the exit code is 1. Writes
gpu.json and gpu.md into DIR (default: FOLDER), and prints the latter; every run is appended to DIR/gpu-runs.jsonl as
soon as it has ended. Models are in FOLDER.
"""
import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time

# Leave no bytecode in the folder of the scripts.
sys.dont_write_bytecode = True
import bench_gpu_papers
import bench_gpu_peers

LARGE, SMALL, ROWS = "llama-8b-q4_k_m", "llama-1b-q4_k_m", 2048
LIMIT = 8 << 30
READ = [8192, 32768, 131072]
# The papers' tables with answers of thousands of tokens take longest.
PARTS = ["gpu", "hbw-kv", "pyramidkv", "peers", "chunkkv", "ems"]


class Bench:
    def __init__(self, options):
        self.o = options
        self.left_out = []
        self.failed = False
        self.late = False
        # On the monotonic clock; the time since the caller's start counts too.
        begun = time.monotonic() - (time.time() - options.started if options.started else 0)
        self.ends = begun + options.seconds if options.seconds else None
        self.runs = pathlib.Path(options.out) / "gpu-runs.jsonl"
        self.runs.parent.mkdir(parents=True, exist_ok=True)
        # Results of earlier starts, in order; each is used once.
        self.known = {}
        if not options.resume or not self.runs.exists():
            self.runs.write_text("")
            return
        text, others = self.runs.read_text(), 0
        for line in text.splitlines():
            try:
                run = json.loads(line)
            except ValueError:
                # The writer was killed in the middle of a line.
                continue
            if run.get("programs", "") == options.programs:
                self.known.setdefault(tuple(run["run"]), []).append(run["found"])
            else:
                others += 1
        if text and not text.endswith("\n"):
            self.append("")
        if others:
            print(f"{others} runs of other programs or on another GPU are not taken", file=sys.stderr, flush=True)

    def append(self, line):
        with self.runs.open("a") as runs:
            runs.write(line + "\n")

    def note(self, run, found):
        """Records a result, for a later start with --resume."""
        self.append(json.dumps({"run": in_words(run), "programs": self.o.programs, "found": found}))

    def noted(self, run):
        """The result of an earlier start, or None."""
        known = self.known.get(tuple(in_words(run)))
        return known.pop(0) if known else None

    def left(self):
        """Seconds that a process may take, or None without a limit; at 0 no process is started."""
        if self.ends is None:
            return None
        left = max(self.ends - time.monotonic(), 0)
        self.late |= left == 0
        return left

    def process(self, command, **more):
        """A finished process, or None if time ran out."""
        left = self.left()
        if left == 0:
            return None
        try:
            return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=left, **more)
        except subprocess.TimeoutExpired:
            self.late = True
            return None

    def run(self, *arguments):
        """The JSON of one `kept bench`, or None if it does not fit the GPU's memory, failed, or time ran out."""
        if known := self.noted(arguments):
            return known
        command = [self.o.kept, "bench", "--json", "--device", self.o.device, *arguments]
        done, what = self.process(command), " ".join(in_words(arguments))
        if done is None:
            self.left_out.append(f"{what}: {bench_gpu_peers.NO_TIME}")
            return None
        if done.returncode == 0:
            found = json.loads(done.stdout)
            self.note(arguments, found)
            return found
        said = done.stderr.strip().splitlines()
        said = said[-1] if said else f"code {done.returncode}"
        # Too little GPU memory is a one-sentence error, and no failure.
        self.failed |= "more are needed" not in said and "needs" not in said
        print(f"{what}: {said}", file=sys.stderr, flush=True)
        self.left_out.append(f"{what}: {said}")
        return None

    def together(self, points):
        """Medians over alternating runs: `points` is {name: arguments}. If time runs out, fewer runs count, which is
        reported."""
        found = {name: [] for name in points}
        ended = set()
        for _ in range(self.o.runs):
            for name, arguments in points.items():
                if name in ended:
                    continue
                report = self.run(*arguments)
                if report is not None:
                    found[name].append(report)
                    continue
                ended.add(name)
                if not self.late:
                    found[name] = []
                elif found[name]:
                    self.left_out[-1] += f" (the figures are of {len(found[name])} of {self.o.runs} runs)"
        return {name: middle(reports) if reports else None for name, reports in found.items()}

    def model(self, name):
        """The path of a synthetic model, made if it does not exist; None if time ran out."""
        path = pathlib.Path(self.o.folder) / f"{name}.gguf"
        if path.exists():
            return path
        done = self.process([sys.executable, "-B", pathlib.Path(__file__).with_name("bench_models.py"), self.o.folder, name])
        if done is None:
            self.left_out.append(f"making {name}: {bench_gpu_peers.NO_TIME}")
            return None
        if done.returncode:
            sys.exit(f"{name} was not made: {done.stderr.strip()}")
        return path


def in_words(run):
    """The arguments of a run, without the model's folder."""
    return [part.name if isinstance(part, pathlib.PurePath) else str(part) for part in run]


def middle(reports):
    """The first report, with medians for all measured numbers."""
    out = dict(reports[0])
    for key, value in out.items():
        if isinstance(value, float):
            out[key] = statistics.median(report[key] for report in reports)
    if out.get("again"):
        out["again"] = [statistics.median(report["again"][0] for report in reports), out["again"][1]]
    if out.get("gpu_bytes"):
        out["gpu_bytes"] = [max(report["gpu_bytes"][i] for report in reports) for i in range(2)]
    return out


def gib(number):
    return f"{number / 2**30:.2f} GiB"


def of_the_gpu(bench, large, small, models, lengths, rates):
    """Parts 1 to 4: results, and their Markdown."""
    o = bench.o
    on_cpu = o.device == "cpu"
    copy = rates["copy_gbs"]

    def answer(name, after, method="snapkv", budget=ROWS):
        budget = ["--budget", budget] if budget else []
        return ["--model", models[name], "--after", after, "--decode-tokens", 32 if o.quick else 128, "--method", method, *budget]

    far, near = (512, 256) if o.quick else (131072, 2048)
    middle_far = 384 if o.quick else 32768
    answers = bench.together(
        {
            "large near": answer(large, near, "full", None),
            "small near": answer(small, near, "full", None),
            "large far": answer(large, far),
            "full middle": answer(large, middle_far, "full", None),
            "full far": answer(large, far, "full", None),
        }
    )
    reads = bench.together({n: ["--model", models[large], "--prompt-tokens", n, "--decode-tokens", 8, "--method", "snapkv", "--budget", min(ROWS, n)] for n in lengths})

    longest = lengths[-1]
    limit = [] if on_cpu else ["--memory", f"{LIMIT >> 30}GiB"]
    asked = ["--model", models[large], "--prompt-tokens", longest, "--decode-tokens", 8, "--method", "snapkv", "--budget", min(ROWS, longest)]
    headline = bench.together({"headline": [*asked, "--again", *limit]})["headline"]

    text = [f"Copies {copy:.1f} GB/s (read and written)."]
    if not on_cpu:
        share = rates["attention_tflops"] / rates["matrix_tflops"]
        text[-1] += f" Products of halves by mma.sync, as our kernels make them, with operands that stay as they are {rates['matrix_tflops']:.1f} TFLOP/s; attention over a prompt at 32K {rates['attention_tflops']:.1f} TFLOP/s, {share:.0%} of it (wanted: 60 %)."
    text += ["", "| answering | tokens/s | GB/s | of copies | wanted |", "| --- | --- | --- | --- | --- |"]
    rows = [
        ("large near", f"{large} after {near:,} tokens", "85 %"),
        ("small near", f"{small} after {near:,} tokens", "70 %"),
        ("large far", f"{large} after {far:,} tokens with {ROWS:,} rows", f"within 5 % of {near:,} tokens"),
        ("full middle", f"{large} after {middle_far:,} tokens, all rows", ""),
        ("full far", f"{large} after {far:,} tokens, all rows", ""),
    ]
    for name, what, wanted in rows:
        report = answers[name]
        if report:
            text.append(f"| {what} | {report['decode_tokens_per_second']:.1f} | {report['bandwidth_gbs']:.1f} | {report['bandwidth_gbs'] / copy:.0%} | {wanted} |")
    compact, near_by = answers["large far"], answers["large near"]
    if compact and near_by:
        share = compact["decode_tokens_per_second"] / near_by["decode_tokens_per_second"]
        text += ["", f"After {far:,} tokens with {ROWS:,} rows {share:.1%} of the speed after {near:,} (wanted: 95 %)."]
    for name, what in (("full middle", middle_far), ("full far", far)):
        full = answers[name]
        if full and compact:
            speed = compact["decode_tokens_per_second"] / full["decode_tokens_per_second"]
            moved = full["bytes_per_token"] / compact["bytes_per_token"]
            text += ["", f"{ROWS:,} rows against all of {what:,} tokens: {speed:.2f} times the speed, with {moved:.2f} times fewer bytes a token."]
    text += ["", "| reading | first token | tokens/s | selecting (wanted: under 1 %) | taken of the GPU | expected | apart (wanted: 5 % at most) |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for n, report in reads.items():
        if report:
            selecting = report["select_seconds"] / report["prefill_seconds"]
            expected, taken = report["gpu_bytes"] or (report["ledger_peak_bytes"], report["peak_bytes"])
            text.append(
                f"| {n:,} tokens | {report['first_token_seconds']:.2f} s | {report['prefill_tokens_per_second']:.0f} | {selecting:.2%} "
                f"| {gib(taken)} | {gib(expected)} | {abs(taken - expected) / expected:.1%} |"
            )
    if headline:
        again, known = headline["again"]
        # Keys and values as f16: a block of 32 takes 34 bytes in the vault.
        rows = headline["kv_bytes_full"] / headline["prompt_tokens"] * known / 2 * 34 / 32
        expected, taken = headline["gpu_bytes"] or (headline["ledger_peak_bytes"], headline["peak_bytes"])
        text += [
            "",
            f"{longest:,} tokens on {large} within {gib(LIMIT)} of the GPU, with a vault: first token after {headline['first_token_seconds']:.2f} s, "
            f"{gib(taken)} taken (expected {gib(expected)}, {abs(taken - expected) / expected:.1%} apart). A second question: {again:.2f} s, {again / headline['prefill_seconds']:.2%} of reading; "
            f"the vault's rows are {gib(rows)}, {rows / again / 1e9:.1f} GB/s.",
        ]
        if not on_cpu:
            transfer = rows / rates["to_gpu_gbs"] / 1e9
            text[-1] += f" Sending them to the GPU takes {transfer:.2f} s at the {rates['to_gpu_gbs']:.1f} GB/s that were measured: {again / transfer:.2f} times that (wanted: 1.2)."
    return {"answers": answers, "reads": reads, "headline": headline}, text


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--kept", required=True)
    a.add_argument("--folder", required=True)
    a.add_argument("--out", help="where what was found goes; FOLDER without")
    a.add_argument("--device", default="cuda:0")
    a.add_argument("--runs", type=int, default=3)
    a.add_argument("--parts", default=",".join(PARTS), help=f"with commas between [{','.join(PARTS)}]")
    a.add_argument("--seconds", type=float, help="end within so many, with what there is, and exit with 3")
    a.add_argument("--started", type=float, help="from when on --seconds count, in seconds since 1970; without, from this program's start")
    a.add_argument("--programs", default="", help="what tells these programs from others: runs of others are not taken")
    a.add_argument("--resume", action="store_true", help="take what DIR/gpu-runs.jsonl has of an earlier start, and go on")
    a.add_argument("--quick", action="store_true", help="the smallest model and short prompts, once: whether the benchmark itself works")
    o = a.parse_args()
    o.out = o.out or o.folder
    parts = o.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        a.error(f"--parts {','.join(unknown)}: there are {', '.join(PARTS)}")

    large, small, lengths = (("toy-q4_k_m", "toy-q4_k_m", [512]) if o.quick else (LARGE, SMALL, READ))
    o.runs = 1 if o.quick else o.runs
    bench = Bench(o)
    found, text = {}, []

    def write():
        left = ["", "Left out:", *[f"- {what}" for what in bench.left_out]] if bench.left_out else []
        whole = "\n".join([*(text or ["# Nothing was measured"]), *left]) + "\n"
        (pathlib.Path(o.out) / "gpu.json").write_text(json.dumps({**found, "left_out": bench.left_out}, indent=1))
        (pathlib.Path(o.out) / "gpu.md").write_text(whole)
        return whole

    # On a signal, report the results so far.
    def stopped(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        bench.left_out.append("what came after: this was stopped; go on with --resume")
        print(write())
        sys.exit(3)

    signal.signal(signal.SIGTERM, stopped)

    rates = bench.run("--bandwidth")
    if rates is None and not bench.late:
        sys.exit("without the GPU's rates there are no shares")
    if rates:
        found["rates"] = rates
        runs = "Figures are single runs" if o.runs == 1 else f"Figures are medians of {o.runs} runs"
        text += [f"# {rates.get('gpu', 'the processor')}", "", f"{runs}."]
    models = {name: bench.model(name) for name in ((large, small) if "gpu" in parts else (large,))} if rates else {}
    # Written after each part: the later ones take long.
    for part in PARTS if all(models.values()) and rates else []:
        if part not in parts:
            continue
        if part == "gpu":
            more, lines = of_the_gpu(bench, large, small, models, lengths, rates)
            found |= more
        elif part == "peers":
            found[part], lines = bench_gpu_peers.beside(bench, models[large], large.rsplit("-", 1)[0], lengths, ROWS, 8 if o.quick else 128)
        else:
            more, lines = bench_gpu_papers.repeat(bench, models[large], part)
            found.setdefault("papers", {})[part] = more
        text += ["", *lines]
        write()
    print(write())
    sys.exit(1 if bench.failed else 3 if bench.late else 0)


if __name__ == "__main__":
    main()
