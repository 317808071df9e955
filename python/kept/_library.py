"""The functions of include/kept.h."""

import ctypes
import os
import pathlib
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


def call(function, *arguments):
    """Calls a function whose last argument takes its error."""
    error = c_void_p()
    result = function(*arguments, ctypes.byref(error))
    if result:
        return result
    sentence = ctypes.string_at(error.value).decode()
    library.kept_error_free(error)
    raise KeptError(sentence)
