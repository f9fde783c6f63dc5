"""The stand-ins for packages of GPU kernels, with PyTorch alone: against other ways to compute the same."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import slime_swe
from slime_swe.launch.slime_cpu.render import PACKAGES

HERE = Path(__file__).parent
BOUNDS = torch.tensor([0, 5, 135, 150])  # of packed sequences, one of which is longer than two chunks


@pytest.fixture
def stand_ins(monkeypatch):
    """They can be imported; another test that imports a package of the same name finds none."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(PACKAGES)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("fla", "transformer_engine"):
            del sys.modules[name]


def one_by_one(q, k, v, g, beta):
    """The gated delta rule of one sequence, T x H x ..., a token at a time."""
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    state, outputs = q.new_zeros(q.size(1), q.size(2), v.size(2)), []
    for token in range(q.size(0)):
        state = state * g[token].exp()[:, None, None]
        held = torch.einsum("hk,hkv->hv", k[token], state)
        written = beta[token][:, None] * (v[token] - held)
        state = state + k[token][:, :, None] * written[:, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[token], state) / math.sqrt(q.size(2)))
    return torch.stack(outputs)


@pytest.mark.parametrize(("kind", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_delta_rule_is_its_recurrence(stand_ins, kind, limit):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    draw = torch.Generator().manual_seed(0)
    heads, tokens = 3, int(BOUNDS[-1])
    q, k, v = (torch.randn(1, tokens, heads, size, generator=draw) for size in (8, 8, 6))
    g = functional.logsigmoid(torch.randn(1, tokens, heads, generator=draw))
    beta = torch.rand(1, tokens, heads, generator=draw)
    given = [part.to(kind).requires_grad_() for part in (q, k, v, g, beta)]
    output, state = chunk_gated_delta_rule(*given, use_qk_l2norm_in_kernel=True, cu_seqlens=BOUNDS)
    exact = [part.detach().double().requires_grad_() for part in given]
    pieces = [one_by_one(*(part[0, a:b] for part in exact)) for a, b in pairwise(BOUNDS.tolist())]
    expected = torch.cat(pieces)[None]
    assert state is None
    assert (output - expected).abs().max() < limit
    weights = torch.randn(output.shape, generator=draw)
    gradients = torch.autograd.grad((output * weights).sum(), given)
    for mine, its in zip(gradients, torch.autograd.grad((expected * weights).sum(), exact), strict=True):
        assert (mine - its).abs().max() < limit * max(1.0, its.abs().max().item())


def test_a_decay_to_nothing_has_finite_gradients(stand_ins):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    q, k, v = (torch.ones(1, 40, 1, 2, requires_grad=True) for _ in range(3))
    g = torch.full((1, 40, 1), -1e4, requires_grad=True)
    output, _ = chunk_gated_delta_rule(q, k, v, g, torch.full((1, 40, 1), 0.5))
    output.sum().backward()
    assert all(part.grad.isfinite().all() for part in (q, k, v, g))


def test_a_convolution_reaches_back_within_its_sequence(stand_ins):
    from fla.modules import ShortConvolution

    torch.manual_seed(0)
    layer, x = ShortConvolution(hidden_size=6, kernel_size=4, bias=False), torch.randn(1, int(BOUNDS[-1]), 6)
    output, state = layer(x=x, cu_seqlens=BOUNDS)
    assert state is None and layer.weight.shape == (6, 1, 4)
    for start, end in pairwise(BOUNDS.tolist()):
        for token in (start, start + 1, start + 3, end - 1):
            back = min(3, token - start)
            total = sum(layer.weight[:, 0, 3 - step] * x[0, token - step] for step in range(back + 1))
            torch.testing.assert_close(output[0, token], functional.silu(total))


def test_a_gate_weighs_what_is_normed(stand_ins):
    from fla.modules import FusedRMSNormGated

    layer = FusedRMSNormGated(4, eps=1e-6, activation="silu")
    x, gate = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(1.0, 5.0))
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * torch.arange(1.0, 5.0) * functional.silu(gate)
    torch.testing.assert_close(layer(x, gate), expected)


def test_experts_get_their_tokens_and_give_them_back(stand_ins):
    from transformer_engine.pytorch import GroupedLinear
    from transformer_engine.pytorch.permutation import moe_permute_with_probs, moe_unpermute

    torch.manual_seed(0)
    tokens, experts = torch.randn(7, 4), 3
    routes = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 1, 1]])
    probs = torch.rand(7, experts) * routes
    layer = GroupedLinear(experts, 4, 5, bias=False)
    rows, weights, places = moe_permute_with_probs(tokens, probs, routes, int(routes.sum()))
    given = layer(rows, routes.sum(0).tolist()) * weights[:, None]
    expected = sum(routes[:, [e]] * probs[:, [e]] * (tokens @ getattr(layer, f"weight{e}").T) for e in range(experts))
    torch.testing.assert_close(moe_unpermute(given, places, restore_shape=(7, 5)), expected)
    merged = moe_unpermute(layer(rows, routes.sum(0).tolist()), places, probs, restore_shape=(7, 5))
    torch.testing.assert_close(merged, expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_of_a_context_parallel_rank_are_those_of_its_tokens(stand_ins, interleaved):
    from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb

    heads, bounds = torch.randn(24, 2, 6), torch.tensor([0, 8, 24])
    speeds = [1.0, 1.0, 0.1, 0.1] if interleaved else [1.0, 0.1, 1.0, 0.1]  # as Megatron lays them out
    freqs = torch.arange(24.0)[:, None, None, None] * torch.tensor(speeds)
    options = {"tensor_format": "thd", "fused": True, "cu_seqlens": bounds, "interleaved": interleaved}
    whole = apply_rotary_pos_emb(heads, freqs, **options)
    assert torch.equal(whole[..., 4:], heads[..., 4:]), "beyond the angles nothing is turned"
    assert torch.equal(whole[[0, 8]], heads[[0, 8]]), "a sequence begins without a turn"
    torch.testing.assert_close(whole.norm(dim=-1), heads.norm(dim=-1))
    for rank in range(2):
        places = [
            part[p] for part in (torch.arange(8).chunk(4), torch.arange(8, 24).chunk(4)) for p in (rank, 3 - rank)
        ]
        own = torch.cat(places)
        turned = apply_rotary_pos_emb(heads[own], freqs, **options, cp_size=2, cp_rank=rank)
        torch.testing.assert_close(turned, whole[own])


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_steps_as_pytorchs(stand_ins, decoupled):
    from transformer_engine.pytorch.optimizers import FusedAdam

    torch.manual_seed(0)
    start, options = torch.randn(5), {"lr": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.1}
    mine, its = (torch.nn.Parameter(start.clone()) for _ in range(2))
    ours = FusedAdam([mine], **options, adam_w_mode=decoupled)
    theirs = (torch.optim.AdamW if decoupled else torch.optim.Adam)([its], **options)
    for _ in range(4):
        gradient = torch.randn(5)
        for parameter, optimizer in ((mine, ours), (its, theirs)):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(mine, its)
    assert ours.param_groups[0]["step"] == 4 and set(ours.state[mine]) == {"exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda te: te.DotProductAttention(4, 8, attention_dropout=0.1), "attention_dropout"),
        (lambda te: te.DotProductAttention(4, 8, window_size=(128, 0)), "window_size"),
        (lambda te: te.Linear(4, 4, delay_wgrad_compute=True), "delay_wgrad_compute"),
    ],
)
def test_what_has_no_stand_in_is_refused(stand_ins, make, said):
    import transformer_engine.pytorch as te

    with pytest.raises(NotImplementedError, match=said):
        make(te)


IMPORTED = """
import transformer_engine.pytorch as te
from megatron.core.extensions import transformer_engine as extension
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
assert extension.HAVE_TE and extension.get_te_version() >= extension.PkgVersion("2.16")
made = get_gpt_layer_with_transformer_engine_spec(4, moe_grouped_gemm=True, qk_layernorm=True).submodules
attention, experts = made.self_attention.submodules, made.mlp.submodules.experts.submodules
print(issubclass(attention.linear_qkv, te.LayerNormLinear), issubclass(attention.linear_proj, te.Linear),
      issubclass(attention.core_attention, te.DotProductAttention), issubclass(experts.linear_fc1, te.GroupedLinear))
"""


def test_megatron_builds_its_layers_of_them():
    """Of the package index's version; of the one that SLiME pins, `tests/contract/test_layouts.py`."""
    pytest.importorskip("megatron.core")
    assert alone("-c", IMPORTED).split() == ["True"] * 4


def test_two_ranks_compute_what_one_does(tmp_path):
    """Outputs and gradients of layers dealt to two ranks; and the mend of SLiME's linear attention."""
    gaps = json.loads(alone(str(HERE / "two_ranks.py"), str(tmp_path / "ranks")))
    assert set(gaps) == {"tensor parallel", "sequence parallel", "context parallel", "linear attention"}
    assert all(gap < 1e-5 for gap in gaps.values()), gaps


@pytest.mark.parametrize("figure", ["before", "loss", "norm", "after"])
def test_megatrons_model_is_the_same_on_two_ranks_and_of_its_own_layers(gpt_model, figure):
    """A step of it: log-probabilities before and after, loss, gradient norm. Two ranks: tensor, sequence and expert
    parallelism."""
    compared = {f"{kind}: {with_}" for kind in ("dense", "experts") for with_ in ("two ranks", "Megatron's own layers")}
    assert gpt_model.keys() == compared
    assert all(gaps[figure] < 1e-5 for gaps in gpt_model.values()), gpt_model


@pytest.fixture(scope="module")
def gpt_model(tmp_path_factory):
    pytest.importorskip("megatron.core")
    folder = tmp_path_factory.mktemp("gpt") / "model"
    return json.loads(alone(str(HERE / "gpt_model.py"), str(folder)).splitlines()[-1])


def alone(*words: str) -> str:
    """What Python prints in a process of its own that finds the stand-ins."""
    source = Path(slime_swe.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(PACKAGES), str(source))), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
