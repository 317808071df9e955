"""llama.cpp (through `xllamacpp`) on the same files: greedy tokens, log-probabilities and token ids of strings.

In f32 wherever possible (cache too), no flash attention, one thread: the simplest configuration of llama.cpp.
"""

import json
import urllib.request
from pathlib import Path

import xllamacpp


class Llama:
    def __init__(self, path: Path, context: int):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.cpuparams.n_threads = 1
        params.n_gpu_layers = 0
        params.fit_params = False
        params.warmup = False
        params.verbosity = 0
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(params)

    def _post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(self.server.listening_address + path, data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    def ids(self, text: str, special: bool = False) -> list[int]:
        """Plain text: control tokens spelled out in it are just characters. With `special`, the tokens that the file
        prescribes are added."""
        return self._post("/tokenize", {"content": text, "add_special": special, "parse_special": False})["tokens"]

    def _complete(self, ids, count: int, top: int, ignore_eos: bool) -> dict:
        body = {"prompt": [int(i) for i in ids], "n_predict": count, "temperature": 0, "n_probs": top, "return_tokens": True,
                "ignore_eos": ignore_eos, "cache_prompt": False, "repeat_penalty": 1.0}
        return self._post("/completion", body)

    def greedy(self, ids, count: int, ignore_eos: bool) -> dict:
        """`ids` after the prompt; `gaps` are the margins over the runner-up, in nats: a small one may flip in another
        engine.

        Without `ignore_eos` an end token ends the answer, recorded in `ended`; with it, end tokens are never chosen.
        The server gives no probabilities for a token that ends inside a character: its entry in `gaps` is null."""
        answer = self._complete(ids, count, 2, ignore_eos)
        steps = answer.get("completion_probabilities", [])
        gaps = []
        for token in answer["tokens"]:
            if steps and steps[0]["id"] == token:
                first, second = (entry["logprob"] for entry in steps.pop(0)["top_logprobs"])
                gaps.append(round(min(first - second, 99.0), 4))
            else:
                gaps.append(None)
        assert len(steps) <= 1  # the end token
        return {"prompt": [int(i) for i in ids], "ids": answer["tokens"], "gaps": gaps, "ended": answer["stop_type"] == "eos",
                "text": answer["content"]}

    def log_probabilities(self, ids, vocabulary: int) -> dict[int, float] | None:
        """After `ids`, over the vocabulary; None where the next token ends inside a character (see `greedy`)."""
        answer = self._complete(ids, 1, vocabulary, False)
        if "completion_probabilities" not in answer:
            return None
        return {entry["id"]: entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]}

    def followed(self, ids, count: int, top: int) -> tuple[list[int], list[list[tuple[int, float]] | None]]:
        """Greedy tokens, and before each the `top` most likely ones with their log-probabilities over the whole
        vocabulary, most likely first; None where the token ends inside a character (see `greedy`)."""
        answer = self._complete(ids, count, top, False)
        steps = answer.get("completion_probabilities", [])
        tops = []
        for token in answer["tokens"]:
            if steps and steps[0]["id"] == token:
                tops.append([(entry["id"], entry["logprob"]) for entry in steps.pop(0)["top_logprobs"]])
            else:
                tops.append(None)
        return answer["tokens"], tops
