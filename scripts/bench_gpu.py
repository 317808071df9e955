#!/usr/bin/env python3
"""What a graphics card does with Kept, as shares of what it can do at most; medians of runs that take turns.

bench_gpu.py --kept KEPT --folder FOLDER [--quick] [--runs N] [--parts card,peers] [--device cuda:0] [--seconds N] [--resume]      (scripts/bench-gpu calls it)

Part `card`:
1. What the card can do: copies, products of halves on its tensor cores, attention over a prompt (`kept bench --bandwidth`).
2. Answering: an 8B and a 1B model in Q4_K_M after 2K tokens, as a share of the copy bandwidth; the 8B after 128K tokens with 2,048 rows, and beside
   the full cache after 32K and 128K tokens, with the ratio of the bytes that a token moves.
3. The time to the first token after 8K, 32K and 128K tokens, the share of it that selecting takes, and the card's memory at the worst moment: as the
   ledger knew it before, and as the driver says.
4. The headline: 128K tokens on the 8B model within 8 GiB of the card, kept in a vault, and a second question behind it.

Parts `hbw-kv`, `ems`, `chunkkv`, `pyramidkv`: tables of these papers (bench_gpu_papers.py), the answers of thousands of tokens once each.
Part `peers`: beside Hugging Face transformers with kvpress and llama.cpp, what there is of them (bench_gpu_peers.py).

What does not fit the card, or fails, is said and left out; after a failure the exit code is 1. Writes FOLDER/gpu.json and FOLDER/gpu.md, and
prints the latter; every single run is in FOLDER/gpu-runs.jsonl as soon as it has ended.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

# Nothing is left in the folder of the scripts.
sys.dont_write_bytecode = True
import bench_gpu_papers
import bench_gpu_peers

LARGE, SMALL, ROWS = "llama-8b-q4_k_m", "llama-1b-q4_k_m", 2048
LIMIT = 8 << 30
READ = [8192, 32768, 131072]
PARTS = ["card", *bench_gpu_papers.PAPERS, "peers"]


class Bench:
    def __init__(self, options):
        self.o = options
        self.left_out = []
        self.failed = False
        self.late = False
        self.ends = time.monotonic() + options.seconds if options.seconds else None
        self.runs = pathlib.Path(options.folder) / "gpu-runs.jsonl"
        self.runs.parent.mkdir(parents=True, exist_ok=True)
        # What an earlier start has found, in its order; each is taken once.
        self.known = {}
        if options.resume and self.runs.exists():
            for line in self.runs.read_text().splitlines():
                run = json.loads(line)
                self.known.setdefault(tuple(run["run"]), []).append(run["found"])
        else:
            self.runs.write_text("")

    def run(self, *arguments):
        """The JSON of one `kept bench`, or None where the card has no room for it or it failed."""
        if known := self.known.get(tuple(map(str, arguments))):
            return known.pop(0)
        command = [self.o.kept, "bench", "--json", "--device", self.o.device, *map(str, arguments)]
        if self.ends and time.monotonic() > self.ends:
            self.late = True
            self.left_out.append(f"{' '.join(command[2:])}: no time was left; go on with --resume")
            return None
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            found = json.loads(done.stdout)
            with self.runs.open("a") as runs:
                runs.write(json.dumps({"run": list(map(str, arguments)), "found": found}) + "\n")
            return found
        said = done.stderr.strip().splitlines()
        said = said[-1] if said else f"code {done.returncode}"
        # A card that is too small is one sentence, and no failure.
        self.failed |= "more are needed" not in said and "needs" not in said
        print(f"{' '.join(command)}: {said}", file=sys.stderr, flush=True)
        self.left_out.append(f"{' '.join(command[2:])}: {said}")
        return None

    def together(self, points):
        """Medians over runs that take turns: `points` is {name: arguments}."""
        found = {name: [] for name in points}
        for _ in range(self.o.runs):
            for name, arguments in points.items():
                if found[name] is None:
                    continue
                report = self.run(*arguments)
                if report is None:
                    found[name] = None
                else:
                    found[name].append(report)
        return {name: reports and middle(reports) for name, reports in found.items()}


def middle(reports):
    """The first report, with the median in place of every number that is measured."""
    out = dict(reports[0])
    for key, value in out.items():
        if isinstance(value, float):
            out[key] = statistics.median(report[key] for report in reports)
    if out.get("again"):
        out["again"] = [statistics.median(report["again"][0] for report in reports), out["again"][1]]
    if out.get("card_bytes"):
        out["card_bytes"] = [max(report["card_bytes"][i] for report in reports) for i in range(2)]
    return out


def gib(number):
    return f"{number / 2**30:.2f} GiB"


def of_the_card(bench, large, small, models, lengths, rates):
    """Parts 1 to 4: what was found, and its Markdown."""
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
        text[-1] += f" Products of halves by mma.sync, as our kernels make them, {rates['matrix_tflops']:.1f} TFLOP/s; attention over a prompt at 32K {rates['attention_tflops']:.1f} TFLOP/s, {share:.0%} of it (wanted: 60 %)."
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
    text += ["", "| reading | first token | tokens/s | selecting (wanted: under 1 %) | taken of the card | expected | apart (wanted: 5 % at most) |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for n, report in reads.items():
        if report:
            selecting = report["select_seconds"] / report["prefill_seconds"]
            expected, taken = report["card_bytes"] or (report["ledger_peak_bytes"], report["peak_bytes"])
            text.append(
                f"| {n:,} tokens | {report['first_token_seconds']:.2f} s | {report['prefill_tokens_per_second']:.0f} | {selecting:.2%} "
                f"| {gib(taken)} | {gib(expected)} | {abs(taken - expected) / expected:.1%} |"
            )
    if headline:
        again, known = headline["again"]
        # Of keys and values as halves: a block of 32 takes 34 bytes in the vault.
        rows = headline["kv_bytes_full"] / headline["prompt_tokens"] * known / 2 * 34 / 32
        expected, taken = headline["card_bytes"] or (headline["ledger_peak_bytes"], headline["peak_bytes"])
        text += [
            "",
            f"{longest:,} tokens on {large} within {gib(LIMIT)} of the card, with a vault: first token after {headline['first_token_seconds']:.2f} s, "
            f"{gib(taken)} taken (expected {gib(expected)}, {abs(taken - expected) / expected:.1%} apart). A second question: {again:.2f} s, {again / headline['prefill_seconds']:.2%} of reading; "
            f"the vault's rows are {gib(rows)}, {rows / again / 1e9:.1f} GB/s.",
        ]
        if not on_cpu:
            transfer = rows / rates["to_card_gbs"] / 1e9
            text[-1] += f" Sending them to the card takes {transfer:.2f} s at the {rates['to_card_gbs']:.1f} GB/s that were measured: {again / transfer:.2f} times that (wanted: 1.2)."
    return {"answers": answers, "reads": reads, "headline": headline}, text


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--kept", required=True)
    a.add_argument("--folder", required=True)
    a.add_argument("--device", default="cuda:0")
    a.add_argument("--runs", type=int, default=3)
    a.add_argument("--parts", default=",".join(PARTS), help=f"with commas between [{','.join(PARTS)}]")
    a.add_argument("--seconds", type=float, help="begin nothing new after so many, and exit with 3")
    a.add_argument("--resume", action="store_true", help="take what FOLDER/gpu-runs.jsonl has of an earlier start, and go on")
    a.add_argument("--quick", action="store_true", help="the smallest model and short prompts, once: whether the benchmark itself works")
    o = a.parse_args()
    parts = o.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        a.error(f"--parts {','.join(unknown)}: there are {', '.join(PARTS)}")
    import bench_models

    large, small, lengths = (("toy-q4_k_m", "toy-q4_k_m", [512]) if o.quick else (LARGE, SMALL, READ))
    o.runs = 1 if o.quick else o.runs
    folder = pathlib.Path(o.folder)
    models = {name: bench_models.model(folder, name) for name in ((large, small) if "card" in parts else (large,))}
    bench = Bench(o)
    rates = bench.run("--bandwidth")
    if rates is None:
        sys.exit("without the card's rates there are no shares")
    found, text = {"rates": rates}, [f"# {rates.get('card', 'the processor')}"]

    def write():
        left = ["", "Left out:", *[f"- {what}" for what in bench.left_out]] if bench.left_out else []
        whole = "\n".join(text + left) + "\n"
        (folder / "gpu.json").write_text(json.dumps({**found, "left_out": bench.left_out}, indent=1))
        (folder / "gpu.md").write_text(whole)
        return whole

    # Written after each part: the later ones take long.
    if "card" in parts:
        more, lines = of_the_card(bench, large, small, models, lengths, rates)
        found |= more
        text += ["", *lines]
        write()
    for paper in bench_gpu_papers.PAPERS:
        if paper in parts:
            more, lines = bench_gpu_papers.repeat(bench, models[large], paper)
            found.setdefault("papers", {})[paper] = more
            text += ["", *lines]
            write()
    if "peers" in parts and not bench.late:
        found["peers"], lines = bench_gpu_peers.beside(bench, models[large], large.rsplit("-", 1)[0], lengths, ROWS, 8 if o.quick else 128)
        text += ["", *lines]
    print(write())
    sys.exit(1 if bench.failed else 3 if bench.late else 0)


if __name__ == "__main__":
    main()
