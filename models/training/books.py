"""The books: reads `.txt` and `.txt.gz`, cuts them into paragraphs and sentences, and keeps the validation books apart.

Nothing here is committed with the project: a recipe is given a folder (`--corpus`).
"""

import gzip
import re
from pathlib import Path

# Excluded from training and from the tokenizer: all reported figures are measured on these four books.
VALIDATION = ("the-time-machine_35", "treasure-island_120", "frankenstein_84", "the-jungle-book_236")

# A sentence ends at . ! or ?, optionally a closing quote, before white space and a capital or an opening quote.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?:[\"”’'])?\s+(?=[\"“‘'A-Z])")
_TITLES = ("Mr.", "Mrs.", "Ms.", "Dr.", "St.", "M.", "Mme.", "Capt.", "No.", "vs.", "etc.", "i.e.", "e.g.")


def read_book(path: Path) -> str:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read()


def book_paths(corpus: Path, validation: bool) -> list[Path]:
    paths = sorted(p for p in Path(corpus).iterdir() if p.name.endswith((".txt", ".txt.gz")))
    chosen = [p for p in paths if p.name.startswith(VALIDATION) == validation]
    if not chosen:
        raise SystemExit(f"error: no {'validation' if validation else 'training'} books (.txt, .txt.gz) in {corpus}")
    return chosen


def sentences(paragraph: str) -> list[str]:
    """Splits so that `" ".join(sentences(p)) == p` for a paragraph without doubled spaces."""
    pieces, start = [], 0
    for match in _SENTENCE_END.finditer(paragraph):
        # The closing quote belongs to the sentence it closes; the regex matched it together with the space.
        end = match.start() + len(match.group().rstrip())
        if paragraph[start:end].endswith(_TITLES):
            continue
        pieces.append(paragraph[start:end])
        start = match.end()
    pieces.append(paragraph[start:])
    return [p for p in pieces if p]


def paragraphs(text: str) -> list[list[str]]:
    """Paragraphs as lists of sentences; headings and tables of contents (short, without a full stop) are left out."""
    found = []
    for paragraph in text.split("\n\n"):
        paragraph = " ".join(paragraph.split())
        if len(paragraph) >= 40 and any(mark in paragraph for mark in ".!?") and paragraph.upper() != paragraph:
            found.append(sentences(paragraph))
    return found


def load(corpus: Path, validation: bool) -> list[list[list[str]]]:
    """Books -> paragraphs -> sentences. The first paragraphs (title page, notes) are dropped."""
    return [paragraphs(read_book(path))[8:] for path in book_paths(corpus, validation)]
