"""Training samples: a document of book sentences with facts planted in it, then questions, each with its answer.

A sample asks several questions about one document, as further turns: the document is the expensive part. Lengths are
fixed per stage, so every step has the same shapes. Beside each token stands a weight: how much its prediction counts.
"""

import random
from dataclasses import dataclass

import torch

import facts
from tokenizer import END_OF_TEXT, IM_END, Codec

TEXT, ASKED, RESTATED, VALUE, STOP = 0.03, 0.0, 0.5, 2.0, 0.5  # loss weights by the part of the sample
QUOTE_HEAD, QUOTE_BODY = 1.0, 0.6


@dataclass
class Stage:
    """What one stage of the curriculum is made of."""

    name: str
    length: int  # tokens of a sample
    batch: int
    facts: int  # planted facts
    questions: int
    wordings: int  # how many of facts.WORDINGS, in their order
    forms: int  # how many of facts.QUESTIONS
    quotes: float = 0.0  # share of questions that ask for a sentence
    middle: float = 0.0  # share of those whose words come from the middle of the sentence
    prose: bool = True  # book sentences between the facts
    copy: bool = False  # instead of all the above: a passage of a book, twice
    advance: float = 0.8  # exact answers (token accuracy for `copy`) on unseen names at which the next stage begins


class Maker:
    def __init__(self, codec: Codec, books: list, unseen: bool, seed: int):
        self.codec, self.unseen, self.rng = codec, unseen, random.Random(seed)
        # All sentences of all books, in order, each with a flag for the end of a paragraph.
        self.lines = [(s, i == len(p) - 1) for book in books for p in book for i, s in enumerate(p)]
        self.open_turn = codec.open_turn()
        self.ask = codec.text("\n\nQuestion: ")
        self.open_answer = codec.open_answer()
        self.again = codec.text("\n") + self.open_turn  # the next turn of the same conversation

    def prose(self, characters: int) -> list[tuple[str, bool]]:
        at = self.rng.randrange(len(self.lines) - 2000)
        picked, size = [], 0
        while size < characters:
            line = self.lines[at]
            at += 1
            if len(line[0]) > max(characters - size + 40, 60):
                continue
            picked.append(line)
            size += len(line[0]) + 1
        return picked

    def document(self, characters: int, planted: list[str]) -> tuple[str, list[str]]:
        """Book sentences with the planted ones among them; also the list of all sentences, for quote questions."""
        lines = self.prose(characters) if characters > 60 else []
        quotable = [s for s, _ in lines]
        for sentence in planted:
            lines.insert(self.rng.randint(0, len(lines)), (sentence, self.rng.random() < 0.15))
        text = "".join(s + ("\n\n" if last else " ") for s, last in lines).strip()
        return text, quotable

    def sample(self, stage: Stage) -> tuple[list[int], list[float]]:
        rng = self.rng
        if stage.copy:
            return self.copied(stage)
        known = facts.draw(rng, stage.facts, self.unseen)
        planted = [f.sentence(rng.randrange(stage.wordings)) for f in known]
        # Space left for prose: about 40 tokens per question, 18 per planted fact, 3.1 characters per token of prose.
        room = stage.length - 40 * stage.questions - 18 * stage.facts - 8
        text, quotable = self.document(int(room * 3.1) if stage.prose else 0, planted)
        ids = self.open_turn + self.codec.text(text)
        weights = [TEXT] * len(ids)
        asked = rng.sample(known, min(len(known), stage.questions))
        for i in range(stage.questions + 2):  # two more than planned, if they fit
            if rng.random() < stage.quotes and (quote := self.quote(quotable, rng.random() < stage.middle)):
                question, parts = quote
            else:
                fact = asked[i % len(asked)]
                question = fact.question(rng.randrange(stage.forms))
                before = fact.answer_before_value()
                # A word's token includes the space before it, so the split is before the space.
                parts = [(before.rstrip(), RESTATED), (" " + fact.value + ".", VALUE)]
            head = (self.again if i else []) + self.ask + self.codec.text(question) + self.open_answer
            pieces = [self.codec.text(part) for part, _ in parts]
            if len(ids) + len(head) + sum(map(len, pieces)) > stage.length:
                break
            ids += head
            weights += [ASKED] * len(head)
            for piece, (_, weight) in zip(pieces, parts):
                ids += piece
                weights += [weight] * len(piece)
            ids.append(IM_END)
            weights.append(STOP)
        return self.fit(ids, weights, stage.length)

    def quote(self, quotable: list[str], middle: bool):
        for _ in range(8):
            if not quotable:
                return None
            sentence = self.rng.choice(quotable)
            words = sentence.split(" ")
            if not 6 <= len(words) <= 28 or '"' in sentence:
                continue
            count = self.rng.randint(3, min(6, len(words) - 2))
            first = self.rng.randint(1, len(words) - count) if middle else 0
            fragment = " ".join(words[first : first + count]).rstrip(".,;:!?”’")
            question = self.rng.choice(QUOTE_QUESTIONS).format(f=fragment)
            opening = " ".join(words[:3])
            return question, [(opening, QUOTE_HEAD), (sentence[len(opening):], QUOTE_BODY)]
        return None

    def copied(self, stage: Stage):
        text = " ".join(s for s, _ in self.prose(stage.length * 3))
        piece = self.codec.text(" " + text)[: stage.length // 2]
        return self.fit(piece + piece, [0.0] * len(piece) + [1.0] * len(piece), stage.length)

    @staticmethod
    def fit(ids, weights, length):
        ids, weights = ids[: length + 1], weights[: length + 1]
        gap = length + 1 - len(ids)
        return ids + [END_OF_TEXT] * gap, weights + [0.0] * gap

    def batch(self, stage: Stage, rows: int, batch: int | None = None):
        """Tokens [batch, length], and a fixed number of drawn rows with their targets and weights."""
        made = [self.sample(stage) for _ in range(batch or stage.batch)]
        ids = torch.tensor([m[0] for m in made])
        weights = torch.tensor([m[1] for m in made])[:, 1:].flatten()
        # All answer tokens if they fit, filled up with text tokens; the remaining ones get weight zero.
        keys = torch.rand(weights.shape, generator=torch.Generator().manual_seed(self.rng.getrandbits(40)))
        rows = min(rows, len(weights))
        drawn = torch.where(weights > 0, keys.log() / weights.clamp(min=1e-6), -torch.inf).topk(rows).indices
        return ids[:, :-1].contiguous(), drawn, ids[:, 1:].flatten()[drawn], weights[drawn]


QUOTE_QUESTIONS = [
    'Which sentence says "{f}"?',
    'Which sentence contains "{f}"?',
    'Find the sentence with "{f}".',
    'Quote the sentence that says "{f}".',
]
