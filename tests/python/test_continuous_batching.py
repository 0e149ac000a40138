# SPDX-License-Identifier: BSD-3-Clause
"""transformers' continuous batching on Strobe: the tokens of eager attention, prompts of different lengths, prefill in chunks."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.generation.continuous_batching")

import strobe.transformers  # noqa: E402

TEXT = (Path(__file__).resolve().parents[2] / "examples/data/text.txt").read_bytes()
SMALL = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
VERSION = tuple(int(n) for n in transformers.__version__.split(".")[:2])
MODELS = {
    "Llama": SMALL,
    "Mistral": SMALL | {"sliding_window": 12},
    "Gemma2": SMALL | {"sliding_window": 12, "query_pre_attn_scalar": 16},  # softcap; every other layer has a window
    "GptOss": SMALL | {"sliding_window": 12, "num_local_experts": 4},  # sinks
}


def fresh(name):
    torch.manual_seed(0)
    model = getattr(transformers, name + "ForCausalLM")(getattr(transformers, name + "Config")(**MODELS[name]))
    model.generation_config.eos_token_id = None
    return model.eval()


def teach(model):
    """Some of a page of Pride and Prejudice, so that its tokens depend on what stands before them."""
    ids = torch.tensor(list(TEXT)).clamp(max=127)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        at = torch.randint(len(ids) - 64, (8,))
        batch = torch.stack([ids[n : n + 64] for n in at])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 3.5  # it has learnt: a guess costs log(128) = 4.9; what is left differs by processor


def generated(model, implementation, prompts, **sizes):
    model.set_attn_implementation(implementation)
    answers = model.generate_batch(
        prompts,
        generation_config=transformers.GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=transformers.ContinuousBatchingConfig(**sizes),
        warmup=False,
    )
    assert [answer.error for answer in answers.values()] == [None] * len(prompts)
    assert model.config._attn_implementation == implementation
    return [answer.generated_tokens for answer in answers.values()]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_eager(name, device, monkeypatch):
    strobe.transformers.register()
    strobe.transformers.register()  # a second time changes nothing
    model = fresh(name)
    if name == "Llama":
        teach(model)
    model = model.to(device)
    calls, gathered = [], []
    real, over_gathered = strobe.transformers.cache_attention, strobe.transformers._over_gathered_cache
    monkeypatch.setattr(
        strobe.transformers, "cache_attention", lambda *q, **options: calls.append(options) or real(*q, **options)
    )
    monkeypatch.setattr(
        strobe.transformers,
        "_over_gathered_cache",
        lambda q, k, v, options, **same: gathered.append(options["max_length_q"]) or over_gathered(q, k, v, options, **same),
    )
    prompts = [list(TEXT[at : at + n]) for at, n in ((0, 5), (100, 70), (300, 1), (500, 33), (700, 48))]
    sizes = {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 40, "max_requests_per_batch": 4}
    model.set_attn_implementation("eager")
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    expected = [
        model.generate(torch.tensor([prompt], device=device), **options)[0, len(prompt) :].tolist() for prompt in prompts
    ]
    got = generated(model, "strobe", prompts, **sizes)
    assert got == expected
    if name == "Llama":
        assert len({token for answer in got for token in answer}) > 8
        assert got == generated(model, "eager", prompts, **sizes)
    if VERSION >= (5, 24):  # the model has gathered K and V
        assert not calls and max(gathered) > 1  # prompts in chunks beside tokens
        return
    assert not gathered
    assert {options["k"].shape[1] for options in calls} == (set() if name == "Mistral" else {16})  # pages, read in place
    assert any(options["max_seqlen_q"] > 1 for options in calls) or name == "Mistral"


@pytest.mark.parametrize("window", [None, 4])
def test_what_the_model_has_gathered(window, device):
    """transformers 5.24 writes to the cache in the model; K and V are then those of all sequences, one after another."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(1, heads, rows, 16, generator=generator, device=device) for heads, rows in ((4, 8), (2, 20), (2, 20)))
    places = {"device": device, "dtype": torch.int32}
    q_ends, k_ends = [0, 1, 6, 8], [0, 9, 18, 20]  # a token behind eight keys, a chunk behind four, a whole prompt
    options = {"cu_seq_lens_q": torch.tensor(q_ends, **places), "cu_seq_lens_k": torch.tensor(k_ends, **places)}
    options |= {"max_length_q": 5, "max_length_k": 9, "write_index": [torch.zeros(8, **places)], "sliding_window": window}
    module = torch.nn.Module()
    got, _ = strobe.transformers.attention_forward(module, q, k, v, None, scaling=0.3, **options)
    seen = (window or 100) - 1
    for q0, q1, k0, k1 in zip(q_ends, q_ends[1:], k_ends, k_ends[1:], strict=False):
        behind = torch.arange(q1 - q0, device=device)[:, None] + (k1 - k0) - (q1 - q0) - torch.arange(k1 - k0, device=device)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q[:, :, q0:q1],
            *(x[:, :, k0:k1].repeat_interleave(2, 1) for x in (k, v)),
            attn_mask=(behind >= 0) & (behind <= seen),
            scale=0.3,
        )
        torch.testing.assert_close(got[:, q0:q1], expected.transpose(1, 2), atol=1e-5, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="block_table is given"):
        strobe.transformers.attention_forward(module, q, k, v, None, block_table=torch.zeros(3, 1, **places), **options)
