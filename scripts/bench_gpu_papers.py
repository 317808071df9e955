"""Tables of speed and memory from four papers, reproduced as closely as `kept bench` can, next to the papers' own
figures (called by bench_gpu.py as `repeat`).

The figures are as printed. GPUs and programs differ, so the tables compare ratios to the full cache of the same table.
In all of them the model has the shape of Llama 3 8B, with synthetic weights in Q4_K_M; it reads random tokens and
answers one request at a time, and no first tokens are protected (`sinks=0`), as in the papers.
"""

# HBW-KV, table 4: rows per head, tokens/s after 16K and after 32K tokens, KV cache in MB. Mistral-7B-Instruct-v0.2 on a
# Tesla V100, mean of five runs. Its cache has the shape of ours (4096 MB are 32,768 tokens of 32 layers with 8 heads of
# 128). Kept runs no prefill: the rows are random (`--after`).
HBW_KV = {None: (9.68, 5.74, 4096), 4096: (16.70, 17.08, 512), 2048: (21.03, 20.66, 256), 1024: (22.08, 22.48, 128)}
HBW_KV_AFTER = [16384, 32768]

# EMS, table 3: tokens of prompt and answer, seconds from end to end with the full cache and with EMS of 256 rows; the
# column of batch size 1, without the larger ones and their throughput. Two RTX 4090; the paper does not name the model.
# How much EMS merges depends on the text, and so on the synthetic weights.
EMS = [(128, 4096, 464, 435), (128, 6144, 955, 673), (4096, 4096, 463, 441), (4096, 8192, 1589, 878)]
EMS_ROWS = 256

# ChunkKV, table 9: tokens of prompt and answer; seconds, relative reduction, tokens/s, relative increase: with the full
# cache, ChunkKV, and ChunkKV with layer-wise reuse of indices. LLaMA-3-8B-Instruct on an A40, batch size 1,
# FlashAttention 2, mean of ten. The paper names neither the kept share nor the layers that share indices: we use 10 %
# in chunks of 10, as in its other timing (section 4.3.1), and pairs of layers. It does not define tokens/s either; ours
# count the tokens read and decoded.
CHUNKKV = [
    (4096, 1024, ("43.60", "", "105.92", ""), ("37.52", "13.9%", "118.85", "12.2%"), ("37.35", "14.3%", "124.09", "17.2%")),
    (4096, 4096, ("175.50", "", "37.73", ""), ("164.55", "6.2%", "40.58", "7.6%"), ("162.85", "7.2%", "41.12", "9.0%")),
    (8192, 1024, ("46.48", "", "184.08", ""), ("37.83", "18.6%", "228.96", "24.4%"), ("36.85", "20.7%", "232.99", "26.5%")),
    (8192, 4096, ("183.42", "", "55.93", ""), ("164.78", "10.2%", "65.14", "16.5%"), ("162.15", "11.6%", "66.05", "18.1%")),
]
CHUNKKV_CACHES = [
    ("all rows", ["full"]),
    ("ChunkKV", ["chunkkv", "--set", "sinks=0,chunk=10,reuse=1"]),
    ("ChunkKV, reuse", ["chunkkv", "--set", "sinks=0,chunk=10,reuse=2"]),
]

# PyramidKV, table 2: mean rows per head, memory in M, per cent of the full cache. LLaMa-3-8B-Instruct, batch size 1,
# 8192 tokens, fp16. The table's task scores cannot be reproduced with synthetic weights.
PYRAMIDKV = {512: (428, 6.3), 1024: (856, 12.5), 2048: (1712, 25.0), None: (6848, 100.0)}
PYRAMIDKV_TOKENS = 8192


class Repeat:
    def __init__(self, bench, model):
        self.bench, self.model, self.quick = bench, model, bench.o.quick

    def tokens(self, number):
        """A length of a prompt, answer or cache: with `--quick` a fraction of the paper's."""
        return max(number // 64, 40) if self.quick else number

    def lengths(self, prompt, answer):
        return f"{self.tokens(prompt):,} + {self.tokens(answer):,}"

    def asked(self, prompt, answer, method, rows=None):
        budget = ["--budget", self.tokens(rows)] if rows else []
        return ["--model", self.model, "--prompt-tokens", self.tokens(prompt), "--decode-tokens", self.tokens(answer), "--method", *method, *budget]

    def hbw_kv(self):
        points = {}
        for after in HBW_KV_AFTER:
            for rows in HBW_KV:
                method = ["hbw_kv", "--set", "sinks=0", "--budget", self.tokens(rows)] if rows else ["full"]
                answer = 8 if self.quick else 128
                points[f"after {after}, {rows or 'all'}"] = ["--model", self.model, "--after", self.tokens(after), "--decode-tokens", answer, "--method", *method]
        found = self.bench.together(points)
        text = ["## HBW-KV, table 4: answering", ""]
        text += table("after", "rows", "tokens/s", "of all rows", "cache", "paper: tokens/s", "of all rows", "cache")
        for place, after in enumerate(HBW_KV_AFTER):
            full = found[f"after {after}, all"]
            for rows, printed in HBW_KV.items():
                report = found[f"after {after}, {rows or 'all'}"]
                if not report:
                    continue
                speed = report["decode_tokens_per_second"]
                # The paper has the cache of 32K tokens only.
                theirs = f"{printed[2]} MB, {printed[2] / HBW_KV[None][2]:.1%}" if after == 32768 else ""
                text.append(
                    f"| {self.tokens(after):,} | {self.tokens(rows) if rows else 'all'} "
                    f"| {speed:.2f} | {times(speed, full and full['decode_tokens_per_second'])} | {kept(report)} "
                    f"| {printed[place]:.2f} | {times(printed[place], HBW_KV[None][place])} | {theirs} |"
                )
        return found, text

    def ems(self):
        found, text = {}, ["## EMS, table 3: seconds from end to end, batch size 1", ""]
        text += table("prompt + answer", "all rows", f"EMS, {self.tokens(EMS_ROWS)} rows", "faster", "paper: all rows", "EMS", "faster")
        for prompt, answer, printed_full, printed in EMS:
            both = self.bench.together({
                "full": self.asked(prompt, answer, ["full"]),
                "ems": self.asked(prompt, answer, ["ems", "--set", "sinks=0"], EMS_ROWS),
            })
            found[f"{prompt} + {answer}"] = both
            full, ems = both["full"], both["ems"]
            text.append(
                f"| {self.lengths(prompt, answer)} | {seconds(full)} | {seconds(ems)} | {times(latency(full), latency(ems))} "
                f"| {printed_full} | {printed} | {times(printed_full, printed)} |"
            )
        return found, text

    def chunkkv(self):
        found, text = {}, ["## ChunkKV, table 9: seconds from end to end, and tokens/s", ""]
        text += table("prompt + answer", "cache", "seconds", "less", "tokens/s", "more", "selecting", "paper: seconds", "less", "tokens/s", "more")
        for prompt, answer, *printed in CHUNKKV:
            full = None
            of = lambda method: self.asked(prompt, answer, method, None if method == ["full"] else prompt // 10)
            reports = self.bench.together({cache: of(method) for cache, method in CHUNKKV_CACHES})
            for (cache, method), theirs in zip(CHUNKKV_CACHES, printed):
                report = reports[cache]
                found[f"{prompt} + {answer}, {cache}"] = report
                if method == ["full"]:
                    full = report
                if not report:
                    continue
                took, whole = latency(report), latency(full)
                both = report["prompt_tokens"] + report["decode_tokens"]
                text.append(
                    f"| {self.lengths(prompt, answer)} | {cache} | {took:.2f} | {less(took, whole)} | {both / took:.2f} | {more(both / took, whole and both / whole)} "
                    f"| {1000 * report['select_seconds']:.1f} ms | {' | '.join(theirs)} |"
                )
        return found, text

    def pyramidkv(self):
        found, text = {}, [f"## PyramidKV, table 2: the cache of {self.tokens(PYRAMIDKV_TOKENS):,} tokens", ""]
        text += table("rows", "cache", "memory at most", "paper: cache")
        of = lambda rows: self.asked(PYRAMIDKV_TOKENS, 8, ["pyramidkv", "--set", "sinks=0"] if rows else ["full"], rows)
        reports = self.bench.together({rows: of(rows) for rows in PYRAMIDKV})
        for rows, (printed, share) in PYRAMIDKV.items():
            report = reports[rows]
            found[f"{rows or 'all'}"] = report
            if report:
                taken = (report["gpu_bytes"] or [0, report["peak_bytes"]])[1]
                text.append(
                    f"| {self.tokens(rows) if rows else 'all'} | {kept(report)} | {taken / 2**20:,.0f} MiB | {printed}M, {share}% |"
                )
        return found, text


def table(*columns):
    return ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]


def latency(report):
    """From the first token of the prompt to the last of the answer, whose first is part of `first_token_seconds`."""
    return report and report["first_token_seconds"] + (report["decode_tokens"] - 1) / report["decode_tokens_per_second"]


def seconds(report):
    return f"{latency(report):.1f}" if report else ""


def kept(report):
    return f"{report['kv_bytes'] / 2**20:,.1f} MiB, {report['kv_bytes'] / report['kv_bytes_full']:.1%}"


def times(number, other):
    return f"{number / other:.2f}x" if number and other else ""


def less(number, other):
    return f"{1 - number / other:.1%}" if number and other and number != other else ""


def more(number, other):
    return f"{number / other - 1:.1%}" if number and other and number != other else ""


def repeat(bench, model, paper):
    """The results for the table of `paper`, and their Markdown."""
    whole = Repeat(bench, model)
    found, text = {"hbw-kv": whole.hbw_kv, "ems": whole.ems, "chunkkv": whole.chunkkv, "pyramidkv": whole.pyramidkv}[paper]()
    return found, text + (["", "Lengths and rows are a part of the paper's: the ratios say nothing."] if whole.quick else [])
