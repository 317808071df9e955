"""The functions of include/kept.h."""

import ctypes
import os
import pathlib
import queue
import threading
import time
import weakref
from concurrent.futures import Future
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int64, c_size_t, c_uint8, c_uint64, c_void_p

FOLDER = pathlib.Path(__file__).resolve().parent
# Where the engine finds the built-in model, unless the user says otherwise.
os.environ.setdefault("KEPT_ASSETS", str(FOLDER))


class Turn(ctypes.Structure):
    _fields_ = [("question", c_char_p), ("answer", c_char_p)]


class Event(ctypes.Structure):
    _fields_ = [("text", c_char_p), ("tokens_done", c_size_t), ("tokens_total", c_size_t), ("seconds_left", c_double)]


Watch = ctypes.CFUNCTYPE(c_bool, c_void_p, POINTER(Event))


class Question(ctypes.Structure):
    _fields_ = [
        ("question", c_char_p),
        ("turns", POINTER(Turn)),
        ("turn_count", c_size_t),
        ("method", c_char_p),
        ("budget", c_char_p),
        ("memory", c_char_p),
        ("cache", c_char_p),
        ("vault", c_char_p),
        ("max_tokens", c_size_t),
        ("temperature", c_double),
        ("top_p", c_double),
        ("seed", c_uint64),
        ("thinking", c_bool),
        ("watch", Watch),
        ("user", c_void_p),
    ]


class Map(ctypes.Structure):
    _fields_ = [
        ("layers", c_size_t),
        ("heads", c_size_t),
        ("tokens", c_size_t),
        ("retention", POINTER(c_uint8)),
        ("windows", POINTER(c_int64)),
        ("shares", POINTER(c_float)),
        ("spans", POINTER(c_int64)),
    ]


_ERROR = POINTER(c_void_p)
_FUNCTIONS = {
    "kept_version": (c_char_p, []),
    "kept_model_open": (c_void_p, [c_char_p, _ERROR]),
    "kept_model_close": (None, [c_void_p]),
    "kept_document_open": (c_void_p, [c_char_p, _ERROR]),
    "kept_document_of": (c_void_p, [c_char_p, c_char_p, c_size_t, _ERROR]),
    "kept_document_text": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "kept_document_free": (None, [c_void_p]),
    "kept_ask": (c_void_p, [c_void_p, c_void_p, POINTER(Question), _ERROR]),
    "kept_answer_json": (c_char_p, [c_void_p]),
    "kept_answer_map": (Map, [c_void_p]),
    "kept_answer_free": (None, [c_void_p]),
    "kept_error_free": (None, [c_void_p]),
}

library = ctypes.CDLL(str(FOLDER / "libkept.so"))
for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(library, _name)
    _function.restype, _function.argtypes = _result, _arguments


class KeptError(Exception):
    """Why Kept has no answer: one sentence that names the value and the way out."""


class Handle:
    """What the library has made. Freed with its last reference, that of a call on another thread included."""

    def __init__(self, pointer, free):
        self._as_parameter_ = pointer
        # At exit a thread may still use it, and the memory is returned anyway.
        weakref.finalize(self, free, pointer).atexit = False


class Watcher:
    """Takes events on the thread of the library to ``hear(text, done, total, seconds_left)`` on the calling thread."""

    def __init__(self, hear=None):
        self.stopped = False
        self.function = Watch(self._put)
        self._hear = hear
        self._events = queue.SimpleQueue()

    def _put(self, _user, event):
        event = event.contents
        if self._hear:
            self._events.put((event.text, event.tokens_done, event.tokens_total, event.seconds_left))
        return not self.stopped

    def end(self):
        """After the last event."""
        self._events.put(None)

    def listen(self):
        """Passes events on until their end."""
        while True:
            try:
                # A signal that arrives just before the waiting does not end it: it ends by itself.
                event = self._events.get(timeout=0.1)
            except queue.Empty:
                continue
            if event is None:
                return
            self._hear(*event)


def call(function, *arguments, free, watcher=None):
    """What a function makes whose last argument takes its error.

    It runs on another thread, because Python handles Ctrl-C on the calling one only, between its own instructions. An
    exception meanwhile stops and awaits a function with a watcher, and leaves any other to its end.
    """
    made, hearing = Future(), watcher or Watcher()

    def run():
        try:
            made.set_result(_made(function, arguments, free))
        except BaseException as refusal:
            made.set_exception(refusal)
        finally:
            hearing.end()

    thread = threading.Thread(target=run, name="kept", daemon=True)
    try:
        thread.start()
        hearing.listen()
    except BaseException:
        hearing.stopped = True
        while watcher and thread.is_alive():
            try:
                time.sleep(0.02)
            except KeyboardInterrupt:
                pass
        raise
    return made.result()


def _made(function, arguments, free):
    error = c_void_p()
    pointer = function(*arguments, ctypes.byref(error))
    if pointer:
        return Handle(pointer, free)
    sentence = ctypes.string_at(error.value).decode()
    library.kept_error_free(error)
    raise KeptError(sentence)
