"""New cases of every method through the real program: `python sweep.py KEPT [--seed N] [--count N] [METHOD ...]`.

The committed goldens are fixed; this script generates others (with a new seed each time, printed), runs `kept select`
on them and compares the result with the oracle. Exits with 1 if anything differs, after naming every case. Cases that
f32 could decide differently are replaced, as for the goldens.
"""

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import ems
import kvzip
import selections
import selections_further
import selections_many
import thinning

CUTS = selections_many.CUTS | selections_further.CUTS
WRAPPED = ("snapkv", "pyramidkv", "chunkkv", "hbw_kv", "keydiff", "expected_attention", "pyramidinfer", "streaming_llm",
           "h2o", "tova", "treekv")


def drawn(method: str, number: int, rng):
    """A case, the rows kept by its KV heads and (EMS) the merged ones, or None where f32 could decide differently."""
    if method == "cam":
        base = WRAPPED[number % len(WRAPPED)]
        found = drawn(base, number, rng)
        if found is None:
            return None
        case, kept, merged = found
        case["set"] = case["set"] | {"base": base, "m": int(rng.integers(1, 9)), "mode": ("expected", "sample")[number // 2 % 2]}
        return case | {"method": "cam"}, kept, merged
    if method == "ems":
        case = ems.draw_case(number, rng)
        case["answer"] = 0
        heads, decisions, _ = ems.run(case, None)
        if any(ems.run(dict(case), np.random.default_rng(seed))[1] != decisions for seed in range(3)):
            return None
        case["set"] = {name: value for name, value in case["set"].items() if value is not None}
        merged = [[pair for pair in head if pair[0] != pair[1]] for head in decisions[0]]
        return case, [sorted({centre for _, centre in head}) for head in decisions[0]], merged
    if method == "kvzip":
        case = kvzip.draw_case(number, rng)
        kept = kvzip.cut(case)
        return None if kept is None else (case, kept, None)
    if method == "pyramidinfer_faithful":
        case = thinning.draw_case(number, rng)
        alive = thinning.entering(case)
        return None if alive is None else (case, [alive] * case["kv_heads"], None)
    where = selections_many if method in selections_many.CUTS else selections_further
    case = where.draw_case(method, number, False, rng) if where is selections_many else where.draw_case(method, number, rng)
    kept = CUTS[method](case)
    return None if kept is None or told_apart(method, case, kept) else (case, kept, None)


def told_apart(method: str, case: dict, kept) -> bool:
    """Whether queries that differ by a few parts in a million change the selection. Repeated keys remain ties;
    different keys with equal scores in f64 do not, and rounding may distinguish them in f32."""
    exact = selections.tensors

    def blurred(of: dict):
        q, k, v = exact(of)
        return q * (1 + 4e-6 * np.random.default_rng(of["seed"]).standard_normal(q.shape)), k, v
    selections.tensors = blurred
    try:
        again = CUTS[method](case)
    finally:
        selections.tensors = exact
    return again is None or any(list(a) != list(b) for a, b in zip(again, kept))


def ask(kept: str, case: dict, path: Path) -> dict:
    q, k, v = (np.ascontiguousarray(x, dtype=np.float32) for x in selections.tensors(case))
    tensors = {"q": q, "k": k, "v": v}
    if "chunks" in case:
        repeated = kvzip.drawn_repeat(case)[:2]
        tensors |= {name: np.ascontiguousarray(x, dtype=np.float32) for name, x in zip(("q_repeat", "k_repeat"), repeated)}
        tensors["chunks"] = np.array(case["chunks"], dtype=np.int64)
    save_file(tensors, path)
    settings = ",".join(f"{name}={value}" for name, value in case["set"].items())
    run = subprocess.run([kept, "select", "--json", "--method", case["method"], "--budget", str(case["budget"]), "--set", settings,
                          "--layer", str(case.get("layer", 0)), "--layers", str(case.get("layers", 1)), "--input", str(path)],
                         capture_output=True, text=True)
    return json.loads(run.stdout) if run.returncode == 0 else {"error": run.stderr.strip()}


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("kept")
    arguments.add_argument("--seed", type=int, default=int(np.random.SeedSequence().entropy % 2**32))
    arguments.add_argument("--count", type=int, default=200)
    arguments.add_argument("methods", nargs="*")
    given = arguments.parse_args()
    methods = given.methods or [*CUTS, "ems", "cam", "kvzip", "pyramidinfer_faithful"]
    print("seed", given.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.safetensors"
        for method in methods:
            rng, groups, made, again, failed = np.random.default_rng([given.seed, *method.encode()]), collections.Counter(), 0, 0, 0
            cut = 0
            while made < given.count:
                found = drawn(method, made + again, rng)
                if found is None:
                    again += 1
                    continue
                case, expected, merged = found
                answer = ask(given.kept, case, path)
                same = answer.get("kept") == [[int(p) for p in head] for head in expected]
                same = same and (merged is None or answer["merged_per_head"] == merged)
                if not same:
                    failed += 1
                    print("  differs:", json.dumps(case), json.dumps(answer)[:300])
                made += 1
                cut += any(len(head) < case["n"] for head in expected)
                groups[case["q_heads"] // case["kv_heads"]] += 1
            wrong += failed
            print(f"{method:20} {made} cases, {cut} cut, groups {dict(sorted(groups.items()))}, {again} drawn again, {failed} differ", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
