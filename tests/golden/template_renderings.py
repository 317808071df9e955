"""Renderings of the templates in `templates/` by Hugging Face's `apply_chat_template`: `templates/renderings.json.gz`.

The templates were written for these tests. Each uses the control tokens of a family and the parts of Jinja that the
family's published template uses: namespaces, macros, slices, loop variables, Python's methods, `tojson`,
`strftime_now`, `raise_exception`, tools.

Differences of Kept's engine (minijinja) that no family's template touches: `"%s" % (a, b)` with several values,
`str.title()` of words that begin with a sign, numbers that Python writes with an exponent (outside `tojson`), and
`''[::-1]`, which it refuses.
"""

import datetime
import gzip
import json
from pathlib import Path

import tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FOLDER = Path(__file__).parent / "templates"
NOW = datetime.datetime(2026, 3, 7, 15, 4, 9)
# Family of the template: begin and end of a sequence.
TEMPLATES = {"llama2": ("<s>", "</s>"), "llama3": ("<|begin_of_text|>", "<|eot_id|>"), "mistral-v1": ("<s>", "</s>"), "mistral-v3": ("<s>", "</s>"),
             "mistral-tekken": ("<s>", "</s>"), "qwen25": (None, "<|im_end|>"), "qwen3": (None, "<|im_end|>"), "phi3": ("<s>", "<|endoftext|>"),
             "phi4-mini": ("<|endoftext|>", "<|endoftext|>"), "gemma2": ("<bos>", "<eos>"), "gemma3": ("<bos>", "<eos>"),
             "smollm2": ("<|im_start|>", "<|im_end|>"), "smollm3": (None, "<|im_end|>"),
             "deepseek-r1": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"), "python": ("<s>", "</s>"), "harmony": (None, "<|return|>"),
             "lfm2": ("<|startoftext|>", "<|im_end|>"), "granite4": ("<|end_of_text|>", "<|end_of_text|>")}

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather <now> in a \"place\" & its 'surroundings' — ça va?",
                                      "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["Köln", "北京", "🙂"]},
                                                                                      "days": {"type": "integer", "minimum": 1, "maximum": 1.5e20}},
                                                     "required": ["place"], "additionalProperties": False}, "return": {"type": "string"}}},
    {"type": "function", "name": "none", "function": {"name": "none", "description": "", "parameters": {}, "examples": [], "default": None, "ratio": 0.1}},
]


def say(*turns: tuple[str, str]) -> list[dict]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[role], "content": content} for role, content in turns]


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln\n\t\"x\" \u0001\u007f", "days": 2, "list": [1, 2.5, None, True, {"a": []}]}}}
CONVERSATIONS = [
    say(("u", "Hi")), say(("u", "  What is\n\nthis?  ")), say(("s", "Be brief."), ("u", "Why?")), say(("s", "  Be brief. /no_think "), ("u", "Why?"), ("a", "Because."), ("u", "And?")),
    say(("u", "One"), ("a", "Two"), ("u", "Three"), ("a", "Four")), say(("u", "One"), ("a", "<think>\nhm\n</think>\n\nTwo"), ("u", "Three")),
    say(("u", "One"), ("a", "<think>\nhm\n</think>\n\nTwo")), say(("u", "a"), ("u", "b")), say(("a", "first")), say(("s", "only")),
    say(("s", ""), ("u", "{{ x }} {% raw %} <b> & 'q' \"d\"")), say(("u", "日本語 🙂 é"), ("a", ""), ("u", "<|im_end|> [INST] </s>")),
    [*say(("u", "Weather?")), {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "abcdefghi"}],
    [*say(("s", "Use tools."), ("u", "Weather?")), {"role": "assistant", "content": "Looking.", "tool_calls": [CALL, CALL]},
     {"role": "tool", "content": "3", "tool_call_id": "abcdefghi"}, {"role": "tool", "content": "4", "tool_call_id": "abcdefghi"}, *say(("a", "So."), ("u", "Thanks"))],
    [*say(("u", "Weather?")), {"thinking": "think of it", "role": "assistant", "content": "", "reasoning_content": "think of it", "tool_calls": [{**CALL, "id": "short"}]}],
    [{"role": "user", "content": [{"type": "text", "text": " in parts "}, {"type": "image"}, {"type": "text", "text": "two"}]}],
    [{"role": "system", "content": [{"type": "text", "text": "sys"}]}, {"role": "user", "content": [{"type": "text", "text": "part"}]}],
    [{"role": "system", "content": "With tools.", "tools": "[{\"name\": \"f\"}]"}, *say(("u", "Go"))],
]
SWITCHES = [{}, {"reasoning_effort": "low"}, {"enable_thinking": True}, {"enable_thinking": False}, {"date_string": "1 Jan 2025"}, {"xml_tools": [{"name": "x", "n": 1}], "enable_thinking": False}]


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def write() -> None:
    chat_template_utils.datetime = Fixed
    found = []
    for name, (bos, eos) in TEMPLATES.items():
        source = (FOLDER / f"{name}.jinja").read_text()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), bos_token=bos, eos_token=eos, chat_template=source)
        refused = 0
        for conversation in CONVERSATIONS:
            for tools in (None, TOOLS):
                for switches in SWITCHES:
                    for generate in (True, False):
                        case = {"template": name, "messages": conversation, "tools": tools, "switches": switches, "generate": generate, "bos": bos, "eos": eos}
                        try:
                            case["text"] = tokenizer.apply_chat_template(conversation, tools=tools, tokenize=False, add_generation_prompt=generate, **switches)
                        except Exception as error:  # noqa: BLE001 - whatever a template does wrong
                            case["error"] = str(error)
                            refused += 1
                        found.append(case)
        print(name, len(found), "renderings so far, refused", refused)
    # Switches and conversations recur: written once, and referenced by number.
    packed = {"now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "conversations": CONVERSATIONS, "tools": TOOLS, "switches": SWITCHES, "cases": [
        {**{key: case[key] for key in ("template", "generate", "bos", "eos")}, "conversation": CONVERSATIONS.index(case["messages"]),
         "tools": case["tools"] is not None, "switches": SWITCHES.index(case["switches"]),
         **({"text": case["text"]} if "text" in case else {"error": case["error"]})} for case in found]}
    (FOLDER / "renderings.json.gz").write_bytes(gzip.compress(json.dumps(packed, separators=(",", ":"), ensure_ascii=False).encode(), mtime=0))


if __name__ == "__main__":
    write()
