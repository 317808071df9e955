"""The measuring set: documents made from the validation books, one question each, seeds fixed.

    facts     one planted fact and eight distractors with unseen names; every third distractor shares the attribute asked
              for, every third the owner; wordings and ways to ask drawn from those of training
    quotes    no planted facts: a sentence of the book is asked for by a few of its words (half from its beginning)
"""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import facts
from samples import QUOTE_QUESTIONS, Maker
from tokenizer import Codec


@dataclass
class Case:
    kind: str  # fact, value_first or quote; `wording` has the fact's wording
    document: str
    question: str
    answer: str  # the whole expected answer
    value: str  # the part that must match exactly
    wording: str
    depth: float  # relative position of the queried sentence in the document, 0 to 1

    def is_exact(self, given: str) -> bool:
        given = given.strip()
        if self.kind == "quote":
            return given == self.answer
        # "The locker code of Ann Quorvin is 4711." and nothing after it: the value is the end of the answer.
        return given.endswith(f" {self.value}.") and given.count(self.value) >= 1 and _owner_kept(self.answer, given, self.value)


def _owner_kept(expected: str, given: str, value: str) -> bool:
    """The words before the value must be the question's: a right value after a wrong name is not an answer."""
    return given[: -len(value) - 1].strip().lower() == expected[: -len(value) - 1].strip().lower()


def make(codec: Codec, books: list, kind: str, count: int, tokens: int, seed: int = 2024, distractors: int = 8) -> list[Case]:
    maker = Maker(codec, books, unseen=True, seed=seed)
    rng: random.Random = maker.rng
    cases = []
    while len(cases) < count:
        if kind == "quote":
            text, quotable = fitted(codec, maker, [], tokens)
            quote = maker.quote([s for s in quotable if text.count(s) == 1], middle=len(cases) % 2 == 1)
            if quote is None:
                continue
            question, parts = quote
            sentence = "".join(part for part, _ in parts)
            fragment = question.split('"')[1]
            if text.count(fragment) != 1:
                continue
            wording = QUOTE_QUESTIONS[0] if len(cases) % 2 == 0 else "from the middle"
            cases.append(Case("quote", text, question, sentence, sentence, wording, text.index(sentence) / len(text)))
            continue
        fact = facts.draw(rng, 1, True)[0]
        around = near(rng, fact, distractors)
        if kind == "value_first":
            wording = rng.choice(facts.VALUE_FIRST)
        else:
            wording = rng.choice(facts.OWNER_FIRST)
        planted = fact.sentence(wording)
        others = [f.sentence(rng.randrange(len(facts.WORDINGS))) for f in around]
        text, _ = fitted(codec, maker, [planted] + others, tokens)
        question = fact.question(rng.randrange(len(facts.QUESTIONS)))
        cases.append(Case(kind, text, question, fact.answer(), fact.value, facts.WORDINGS[wording], text.index(planted) / len(text)))
    return cases


def near(rng: random.Random, fact: facts.Fact, count: int) -> list[facts.Fact]:
    """Distractors: the same attribute with other owners, the same owner with other attributes, and unrelated facts."""
    found, taken = [], {(fact.owner, fact.attribute)}
    while len(found) < count:
        other = facts.draw(rng, 1, True)[0]
        turn = len(found) % 3
        name = fact.owner if turn == 1 else other.owner
        attribute, kind = (fact.attribute, fact.kind) if turn == 0 else (other.attribute, other.kind)
        value = facts.KINDS[kind][1](rng, True)
        if (name, attribute) in taken or value == fact.value:
            continue
        taken.add((name, attribute))
        found.append(facts.Fact(name, attribute, value, kind))
    return found


def fitted(codec: Codec, maker: Maker, planted: list[str], tokens: int) -> tuple[str, list[str]]:
    """A document of about `tokens` tokens (within 5 %), by correcting its number of characters."""
    characters = tokens * 3.9 - sum(map(len, planted))
    while True:
        text, quotable = maker.document(int(characters), planted)
        size = len(codec.text(text))
        if abs(size - tokens) <= tokens * 0.05:
            return text, quotable
        characters += (tokens - size) * 2.0


def write(cases: list[Case], folder: Path) -> None:
    """`cases.json` and a .txt a document, for other programs to measure with."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for i, case in enumerate(cases):
        (folder / f"{i:04}.txt").write_text(case.document, encoding="utf-8")
        entry = asdict(case) | {"document": f"{i:04}.txt"}
        listed.append(entry)
    (folder / "cases.json").write_text(json.dumps(listed, indent=1, ensure_ascii=False), encoding="utf-8")
