# SPDX-License-Identifier: BSD-3-Clause
"""strobe.transformers: small models of every kind of attention, made from their configurations, beside eager attention."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import strobe.transformers  # noqa: E402

COMMON = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = COMMON | {"num_key_value_heads": 2}
MODELS = {
    "Bert": COMMON,
    "Llama": GROUPED,
    "Mistral": GROUPED | {"sliding_window": 4, "head_dim": 8},
    "Gemma2": GROUPED | {"sliding_window": 4, "head_dim": 8, "query_pre_attn_scalar": 8},  # softcap
    "GptOss": GROUPED | {"sliding_window": 4, "head_dim": 8, "num_local_experts": 4},  # sinks
}


@pytest.fixture(autouse=True)
def registered():
    strobe.transformers.register()
    torch.manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [False, True])
def test_models(name, padded):
    suffix = "Model" if name == "Bert" else "ForCausalLM"
    config = getattr(transformers, name + "Config")(**MODELS[name])
    model = getattr(transformers, name + suffix)(config).eval()
    ids = torch.randint(0, 128, (2, 12))
    seen = torch.ones(2, 12, dtype=torch.long)
    if padded:
        seen[0, :5] = 0
    outputs, gradients, texts = [], [], []
    for implementation in ("eager", "strobe"):
        model.set_attn_implementation(implementation)
        assert model.config._attn_implementation == implementation
        answer = model(input_ids=ids, attention_mask=seen)
        out = (answer.last_hidden_state if name == "Bert" else answer.logits)[seen.bool()]
        outputs.append(out)
        parameters = [p for n, p in model.named_parameters() if "q_proj" in n or "query" in n or "sinks" in n]
        gradients.append(
            torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum(), parameters)
        )
        if name != "Bert":
            texts.append(model.generate(ids, attention_mask=seen, max_new_tokens=4, do_sample=False, pad_token_id=0))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * theirs.abs().max().item())
    assert not texts or torch.equal(*texts)


def test_encoder_and_decoder_with_position_bias():
    config = transformers.T5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids, seen = torch.randint(0, 128, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    seen[0, 7:] = 0
    logits = []
    for implementation in ("eager", "strobe"):
        model.set_attn_implementation(implementation)
        logits.append(model(input_ids=ids, attention_mask=seen, decoder_input_ids=ids[:, :5]).logits)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)


def test_the_mask_reaches_attention():
    """Padding must change nothing: it would, if no mask function were registered under the name."""
    model = transformers.BertModel(transformers.BertConfig(**COMMON), add_pooling_layer=False).eval()
    model.set_attn_implementation("strobe")
    ids = torch.randint(1, 128, (1, 8))
    padded = torch.cat([ids, torch.randint(1, 128, (1, 5))], 1)
    seen = (torch.arange(13) < 8).long()[None]
    with torch.no_grad():
        alone, together = model(input_ids=ids), model(input_ids=padded, attention_mask=seen)
    torch.testing.assert_close(together.last_hidden_state[:, :8], alone.last_hidden_state, rtol=1e-4, atol=1e-5)
