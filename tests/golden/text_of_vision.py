"""Shows that the text parts of Qwen2-VL, Qwen2.5-VL and Qwen3-VL compute what Qwen 2 and Qwen 3 compute: without images the
three positions of a token are the same. So `architectures/qwen2`, `qwen3` and `qwen3moe` are goldens for both.

Run by hand, in the environment of `requirements.txt`: python tests/golden/text_of_vision.py
"""

import torch
import transformers

SIZES = dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=2, pad_token_id=0)
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True)
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
PAIRS = [
    ("Qwen2", "Qwen2VLText", {"mrope_section": [1, 1, 2]}, {}),
    ("Qwen2", "Qwen2_5_VLText", {"mrope_section": [1, 1, 2]}, {}),
    ("Qwen3", "Qwen3VLText", {"mrope_section": [2, 1, 1], "mrope_interleaved": True}, {}),
    ("Qwen3Moe", "Qwen3VLMoeText", {"mrope_section": [2, 1, 1], "mrope_interleaved": True}, EXPERTS),
]

torch.manual_seed(0)
for plain, vision, sections, more in PAIRS:
    def build(name: str, rope: dict):
        config = getattr(transformers, f"{name}Config")(**SIZES, **more, rope_parameters=PLAIN | rope)
        config._attn_implementation = config._experts_implementation = "eager"
        return getattr(transformers, f"{name}Model")(config).eval()

    ours, theirs = build(plain, {}), build(vision, sections)
    for name, weight in ours.named_parameters():
        weight.data = 0.3 * torch.randn_like(weight) + ("norm" in name)
    theirs.load_state_dict(ours.state_dict())
    ids = torch.randint(0, 320, (1, 80))
    with torch.no_grad():
        one, other = (model(input_ids=ids).last_hidden_state for model in (ours, theirs))
    assert torch.equal(one, other), (plain, vision)
    print(f"{vision} computes what {plain} computes")
