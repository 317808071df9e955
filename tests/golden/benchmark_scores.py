"""LongBench's scores of synthetic answers: `python benchmark_scores.py LONGBENCH`, the folder LongBench of its repository.

Its own metrics.py computes them (packages rouge 1.0.1, fuzzywuzzy 0.18.0 without python-Levenshtein, jieba 0.42.1, numpy).
Answers are made of the words of this project's sample documents.
"""

import json
import random
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
COUNT = 20
FIRST_LINE = ("trec", "triviaqa", "samsum", "lsht")
CLASSES = ["Number", "Number of days", "Date", "Place", "Place or city", "Person", "Other number", "Reason"]
LINES = [
    "    return sum(values) / len(values)",
    "for (int i = 0; i < n; ++i) total += rows[i];",
    "let kept = scores.iter().filter(|s| **s > limit).count();",
    "// the rest is evicted",
    "# not here",
    "```python",
    "x" * 230 + " = yes or no or maybe",
    "",
]


def changed(rng: random.Random, words: list) -> list:
    """Words of which some are left out, doubled, swapped, quoted or written in capitals."""
    out = []
    for word in words:
        kind = rng.random()
        if kind < 0.15:
            continue
        if kind < 0.2:
            word = f"“{word}”"
        elif kind < 0.25:
            word = word.upper() + ","
        elif kind < 0.3:
            out.append(rng.choice(["the", "a", "an", "The"]))
        elif kind < 0.35:
            out.append(word)
        out.append(word)
    if len(out) > 2 and rng.random() < 0.5:
        at = rng.randrange(len(out) - 1)
        out[at], out[at + 1] = out[at + 1], out[at]
    return out


def passage(rng: random.Random, text: list, most: int) -> list:
    at = rng.randrange(len(text) - most)
    return text[at : at + rng.randint(1, most)]


def pair(rng: random.Random, task: str, text: list) -> tuple:
    """An answer and its accepted answers."""
    if task in ("trec", "lsht"):
        accepted = rng.choice(CLASSES)
        named = rng.sample(CLASSES, rng.randint(0, 3)) + [accepted] * rng.randint(0, 1)
        rng.shuffle(named)
        return "\n" * rng.randint(0, 1) + ", ".join(named) + "\nType: Date", [accepted]
    if task.startswith("passage_retrieval"):
        word = "段落" if task.endswith("zh") else "Paragraph "
        numbers = [rng.randint(1, 30) for _ in range(rng.randint(0, 3))]
        right = rng.choice(numbers or [7])
        return ", ".join(f"{word}{n}" for n in numbers), [f"{word}{right}"]
    if task == "passage_count":
        numbers = [rng.randint(1, 9) for _ in range(rng.randint(0, 3))]
        return " of ".join(map(str, numbers)), [str(rng.choice(numbers or [3]))]
    if task in ("lcc", "repobench-p"):
        line = rng.choice(LINES)
        letters = "".join(c for c in line if rng.random() > 0.1)
        before = rng.sample(LINES, rng.randint(0, 2))
        return "\n".join([""] + before + [letters] if rng.random() < 0.7 else [letters]), [line]
    most = 60 if task in ("gov_report", "qmsum", "multi_news", "samsum") else 8
    accepted = [passage(rng, text, most) for _ in range(rng.randint(1, 3))]
    answer = changed(rng, rng.choice(accepted)) if rng.random() < 0.8 else passage(rng, text, most)
    joined = " ".join(answer)
    if rng.random() < 0.3:
        joined = "\n" + joined + "\n" + " ".join(passage(rng, text, 10))
    return joined, [" ".join(a) for a in accepted]


def main():
    sys.path.insert(0, sys.argv[1])
    from eval import dataset2metric

    skipped = ("multifieldqa_zh", "dureader", "vcsum")
    rng = random.Random(20261128)
    documents = sorted((HERE.parent / "qa" / "documents").glob("*.txt"))
    text = re.split(r"\s+", " ".join(path.read_text() for path in documents))
    cases = []
    for task, metric in dataset2metric.items():
        for _ in range(0 if task in skipped else COUNT):
            answer, accepted = pair(rng, task, text)
            scored = answer.lstrip("\n").split("\n")[0] if task in FIRST_LINE else answer
            score = max([0.0] + [metric(scored, a, all_classes=CLASSES) for a in accepted])
            cases.append({"task": task, "answer": answer, "accepted": accepted, "score": round(score, 9)})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    head = json.dumps({"classes": CLASSES}, ensure_ascii=False)[:-1]
    (HERE / "benchmark_scores.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


main()
