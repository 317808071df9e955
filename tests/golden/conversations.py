"""llama.cpp in conversations, on the models of `scripts/models`: `python conversations.py [MODEL...]`. Models that are
not named keep their results.

Each question is asked with the earlier questions and llama.cpp's own answers before it, in the model's chat template as
llama.cpp renders it. A file without a template gets the plain text that Kept documents: every message on a line of its
own, then "Answer:".

conversations.json has for each model and conversation the document (a file of tests/qa/documents without the line break at its end, or null) and for each
turn the question, the number of prompt tokens and their fingerprint, and the greedy answer: its ids, their margins over
the runner-up in nats, and its text. The weights are those of the file as f32 (see real_models.py).
"""

import json
import sys
import tempfile
from pathlib import Path

from fetched import HERE, files
from llama_cpp import Llama
from real_models import DOCUMENTS, fingerprint, in_f32

ANSWER = 24
LABEL = "\n\nQuestion: "
CONVERSATIONS = (
    ("letter.txt", ("Who repaired the roof?", "How much did the slater charge in the end?", "Who wrote this letter?")),
    (None, ("Name a fruit that is yellow.", "And one that is red?", "Which of the two is sweeter?")),
)


def prompt_ids(llama: Llama, messages: list[dict], template: bool) -> list[int]:
    if template:
        text = llama._post("/apply-template", {"messages": messages})["prompt"]
    else:
        text = "".join(message["content"] + "\n" for message in messages) + "Answer:"
    parts = [text]
    if template and LABEL in text:
        # Kept encodes a document and a question apart from the text around them: ".\n\n" is no token, and the space before
        # the question is one.
        at = text.index(LABEL)
        parts = [text[:at], LABEL, text[at + len(LABEL) :]]
    ids = []
    for part in parts:
        body = {"content": part, "add_special": not ids, "parse_special": True}
        ids += llama._post("/tokenize", body)["tokens"]
    return ids


def converse(llama: Llama, document: str | None, questions: tuple[str, ...], template: bool) -> dict:
    messages, turns = [], []
    for question in questions:
        content = question
        if document and not messages:
            content = (DOCUMENTS / document).read_text(encoding="utf-8").rstrip() + LABEL + question
        messages.append({"role": "user", "content": content})
        ids = prompt_ids(llama, messages, template)
        answer = llama.greedy(ids, ANSWER, False)
        text = answer["text"].strip()
        turns.append({
            "question": question,
            "tokens": len(ids),
            "fingerprint": fingerprint(ids),
            "answer": text,
            "ids": answer["ids"],
            "gaps": answer["gaps"],
        })
        messages.append({"role": "assistant", "content": text})
    return {"document": document, "turns": turns}


def main() -> None:
    path = HERE / "conversations.json"
    golden = json.loads(path.read_text(encoding="utf-8"))
    for name, file in files(sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            llama = Llama(in_f32(file, Path(folder) / "f32.gguf"), 4096)
            template = "gemma" not in name
            golden[name] = {
                "file": file.name,
                "conversations": [converse(llama, *each, template) for each in CONVERSATIONS],
            }
        for conversation in golden[name]["conversations"]:
            for turn in conversation["turns"]:
                print(name, turn["tokens"], repr(turn["answer"]), min(g for g in turn["gaps"] if g is not None))
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
