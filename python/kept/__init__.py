"""Kept answers questions about long documents with a compressed KV cache, on this computer.

>>> import kept
>>> answer = kept.ask("lease.pdf", "How much is the deposit?", budget="25%")
>>> answer.text, answer.sources[0].page
>>> answer.map.retention.shape   # layers, KV heads, tokens
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from ._library import Handle, KeptError, Question, Turn, Watcher, call, library

__all__ = ["Answer", "Document", "KeptError", "Map", "Model", "Source", "ask", "map"]
__version__ = library.kept_version().decode()


class Document:
    """A document: ``Document("lease.pdf")`` reads a file, ``Document(text=...)`` takes a text."""

    def __init__(self, path: str | os.PathLike | None = None, *, text: str | None = None):
        if (path is None) == (text is None):
            raise TypeError("a document is made from a path or from text=")
        if path is not None:
            opened = library.kept_document_open, os.fsencode(path)
        else:
            content = _text("text", text)
            opened = library.kept_document_of, b"text.txt", content, len(content)
        self._handle = call(*opened, free=library.kept_document_free)

    @functools.cached_property
    def text(self) -> str:
        """The text that the model reads."""
        length = ctypes.c_size_t()
        text = library.kept_document_text(self._handle, ctypes.byref(length))
        return ctypes.string_at(text, length.value).decode()


@dataclass(frozen=True)
class Source:
    """A passage that the answer relies on. ``start`` and ``end`` are bytes of the document's text in UTF-8."""

    text: str
    start: int
    end: int
    page: int | None
    weight: float


@dataclass(frozen=True)
class Map:
    """Which tokens of the prompt (template, document, question) are kept."""

    retention: np.ndarray
    """uint8 [layers, KV heads, tokens]: 0 evicted, 1 kept, 2 merged into another token's row."""
    windows: np.ndarray
    """int64 [layers]: last positions that a sliding-window layer sees, 0 for a recurrent layer, -1 for a global one.
    Only global layers are compressed."""
    shares: np.ndarray
    """float32 [tokens]: share of the heads of all global layers that keep the token."""
    spans: np.ndarray
    """int64 [tokens, 2]: bytes of the token in the document's text in UTF-8; -1 outside the document."""


@dataclass(frozen=True)
class Answer:
    """An answer."""

    text: str
    sources: list[Source]
    facts: dict[str, Any]
    """Method, rows, bytes, seconds, notes: the fields of ``kept ask --json``."""
    map: Map


class Model:
    """An open model: the path of a GGUF file, ``"mini"`` for the built-in one, or a name of ``kept models list``.

    Without a name: the model that ``kept ask`` uses. Several threads may ask one model at once.
    """

    def __init__(self, model: str | os.PathLike | None = None):
        name = None if model is None else os.fsencode(model)
        self._handle = call(library.kept_model_open, name, free=library.kept_model_close)

    def ask(
        self,
        document: Document | str | os.PathLike,
        question: str,
        *,
        method: str = "auto",
        budget: str | None = None,
        memory: str | None = None,
        cache: str | None = None,
        vault: bool | str | os.PathLike = False,
        turns: Sequence[tuple[str, str]] = (),
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
        seed: int = 0,
        thinking: bool = False,
        on_text: Callable[[str], None] | None = None,
        on_progress: Callable[[int, int, float], None] | None = None,
    ) -> Answer:
        """Asks about a document, which is a :class:`Document` or a path.

        ``budget`` is what may be kept (``"25%"``, ``"512"`` rows per head, ``"64MiB"``), ``memory`` limits all memory
        (``"6GiB"``), ``cache`` is the type of the rows (``"f16"``), ``vault`` a folder for the full keys and values of
        read documents, or ``True`` for that of ``kept ask``. ``turns`` are earlier questions with their answers.

        ``on_text(piece)`` receives the answer while it is written, ``on_progress(done, total, seconds_left)`` the
        tokens that are read, both on the calling thread. An exception in them ends the question, as Ctrl-C does.

        Raises :class:`KeptError`.
        """
        if not isinstance(document, Document):
            document = Document(document)
        watcher = Watcher(_telling(on_text, on_progress))
        asked = Question(
            question=_text("question", question),
            turns=(Turn * len(turns))(*(Turn(_text("turns", q), _text("turns", a)) for q, a in turns)),
            turn_count=len(turns),
            method=_text("method", method),
            budget=_written(budget),
            memory=_written(memory),
            cache=_written(cache),
            vault=_vault(vault),
            max_tokens=0 if max_tokens is None else _whole("max_tokens", max_tokens, 1),
            temperature=temperature,
            top_p=top_p or 0.0,
            seed=_whole("seed", seed),
            thinking=thinking,
            watch=watcher.function,
        )
        handles = self._handle, document._handle
        return _answer(call(library.kept_ask, *handles, asked, free=library.kept_answer_free, watcher=watcher))

    def map(self, document: Document | str | os.PathLike, question: str, **options: Any) -> Map:
        """What the model keeps of a document for a question; the options are those of :meth:`ask`."""
        return self.ask(document, question, **{"max_tokens": 1, **options}).map


def _telling(on_text, on_progress):
    """Passes an event to the callbacks of a question; ``None`` if there are none."""

    def tell(text, *progress):
        if text is None:
            if on_progress:
                on_progress(*progress)
        elif on_text:
            on_text(text.decode())

    return tell if on_text or on_progress else None


def _text(name: str, value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{name} takes a text, not {value!r}")
    return value.encode()


def _whole(name: str, value: int, least: int = 0) -> int:
    if not isinstance(value, Integral) or not least <= value < 2**64:
        raise KeptError(f"{name}={value!r} is not a whole number from {least} to {2**64 - 1}")
    return int(value)


def _vault(value: bool | str | os.PathLike) -> bytes | None:
    if isinstance(value, bool):
        return b"" if value else None
    if value in ("off", "q8_0", "f16"):
        raise KeptError(f"vault={value!r} is no folder: leave it out for no vault, or give True for that of `kept ask`")
    return os.fsencode(value)


def _written(value: object | None) -> bytes | None:
    return None if value is None else str(value).encode()


def _array(pointer, *shape: int) -> np.ndarray:
    return np.ctypeslib.as_array(pointer, shape).copy()


def _answer(handle: Handle) -> Answer:
    facts = json.loads(library.kept_answer_json(handle))
    names = Source.__dataclass_fields__
    sources = [Source(**{name: source[name] for name in names}) for source in facts.pop("sources")]
    arrays = library.kept_answer_map(handle)
    kept = Map(
        retention=_array(arrays.retention, arrays.layers, arrays.heads, arrays.tokens),
        windows=_array(arrays.windows, arrays.layers),
        shares=_array(arrays.shares, arrays.tokens),
        spans=_array(arrays.spans, arrays.tokens, 2),
    )
    return Answer(text=facts.pop("answer"), sources=sources, facts=facts, map=kept)


@functools.lru_cache(maxsize=1)
def _opened(model: str | os.PathLike | None) -> Model:
    return Model(model)


def ask(
    document: Document | str | os.PathLike,
    question: str,
    *,
    model: str | os.PathLike | None = None,
    **options: Any,
) -> Answer:
    """:meth:`Model.ask` of the model, which stays open for the next question."""
    return _opened(model).ask(document, question, **options)


def map(
    document: Document | str | os.PathLike,
    question: str,
    *,
    model: str | os.PathLike | None = None,
    **options: Any,
) -> Map:
    """:meth:`Model.map` of the model, which stays open for the next question."""
    return _opened(model).map(document, question, **options)
