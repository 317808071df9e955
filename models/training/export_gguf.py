"""Writes `last.pt` as a GGUF file: architecture llama, Q8_0 matrices, F32 norms, the tokenizer and chat template inside.

`python export_gguf.py --out DIR --file ../../assets/mini.gguf`
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch

import tokenizer as tok
from model import Config

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def neighbours(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rotary pairs from split halves (i, i + head_dim/2) to neighbours (2i, 2i+1), which GGUF's `llama` rotates.

        head_dim 6, rows of a head before: 0 1 2 3 4 5      pairs (0,3) (1,4) (2,5)
                                    after: 0 3 1 4 2 5      pairs (0,1) (2,3) (4,5)
    """
    heads = rows.shape[0] // head_dim
    return rows.view(heads, 2, head_dim // 2, -1).transpose(1, 2).reshape(rows.shape)


def tensors(weights: dict, c: Config) -> dict[str, torch.Tensor]:
    q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
    named = {"token_embd.weight": weights["embedding"], "output_norm.weight": weights["norm"]}
    for i in range(c.layers):
        block = {k.removeprefix(f"blocks.{i}."): v for k, v in weights.items() if k.startswith(f"blocks.{i}.")}
        q, k, v = block["qkv"].split((q_rows, kv_rows, kv_rows))
        gate, up = block["gate_up"].chunk(2)
        named |= {
            f"blk.{i}.attn_norm.weight": block["attention_norm"],
            f"blk.{i}.attn_q.weight": neighbours(q, c.head_dim),
            f"blk.{i}.attn_k.weight": neighbours(k, c.head_dim),
            f"blk.{i}.attn_v.weight": v,
            f"blk.{i}.attn_output.weight": block["out"],
            f"blk.{i}.ffn_norm.weight": block["ffn_norm"],
            f"blk.{i}.ffn_gate.weight": gate,
            f"blk.{i}.ffn_up.weight": up,
            f"blk.{i}.ffn_down.weight": block["down"],
        }
    return named


def write(weights: dict, c: Config, tokenizer_json: Path, file: Path, name: str = "Kept mini") -> None:
    w = gguf.GGUFWriter(str(file), "llama")
    w.add_name(name)
    w.add_description("Answers from a document: trained from nothing on public-domain books and invented facts.")
    w.add_author("The Kept authors")
    w.add_license("MIT OR Apache-2.0")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_block_count(c.layers)
    w.add_context_length(c.context)
    w.add_embedding_length(c.width)
    w.add_feed_forward_length(c.hidden)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(c.rope_theta)
    w.add_layer_norm_rms_eps(c.epsilon)
    w.add_vocab_size(c.vocabulary)

    data = json.loads(tokenizer_json.read_text())
    vocabulary = sorted(data["model"]["vocab"].items(), key=lambda item: item[1])
    assert [i for _, i in vocabulary] == list(range(c.vocabulary)), "token ids have gaps"
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([t for t, _ in vocabulary])
    w.add_token_types([gguf.TokenType.CONTROL if t in tok.CONTROL else gguf.TokenType.NORMAL for t, _ in vocabulary])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    w.add_bos_token_id(tok.IM_START)
    w.add_eos_token_id(tok.IM_END)
    w.add_pad_token_id(tok.END_OF_TEXT)
    w.add_add_bos_token(False)
    w.add_add_eos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)

    for name, tensor in tensors(weights, c).items():
        array = tensor.detach().cpu().float().contiguous().numpy()
        if array.ndim == 1:
            w.add_tensor(name, array)
        else:
            q = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(name, gguf.quants.quantize(array, q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def as_exported(weights: dict) -> dict:
    """The weights after a round trip through Q8_0: what the file's reader computes with."""
    q = gguf.GGMLQuantizationType.Q8_0
    through = lambda t: torch.from_numpy(np.ascontiguousarray(gguf.quants.dequantize(gguf.quants.quantize(t.numpy(), q), q)))
    return {k: through(v.cpu().float()) if v.dim() == 2 else v.cpu() for k, v in weights.items()}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="the folder train.py wrote")
    p.add_argument("--file", type=Path, help="default: DIR/mini.gguf")
    args = p.parse_args()
    saved = torch.load(args.out / "last.pt", map_location="cpu", weights_only=False)
    file = args.file or args.out / "mini.gguf"
    # Renamed when complete, because a program may have the old file mapped.
    part = file.with_suffix(".part")
    write(saved["model"], Config(**saved["config"]), args.out / "tokenizer.json", part)
    part.replace(file)
    state = saved["state"]
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB, after {state['tokens'] / 1e6:.1f} M tokens, stage {state['stage']}")


if __name__ == "__main__":
    main()
