"""What the benchmark of training steps counts, and what it puts in CUDA's place."""

from __future__ import annotations

import pytest
import torch
from benchmarks.log_probability import LogProbability
from benchmarks.megatron_device import TensorMeter, device

MIB = 2**20


@pytest.mark.parametrize("kind", ("cpu", "meta"))
def test_the_meter_knows_what_there_is_and_what_there_was(kind):
    with TensorMeter(kind) as meter:
        kept = torch.zeros(MIB, dtype=torch.bfloat16, device=kind)
        view = kept.view(2, -1)[1]
        assert meter.allocated() == 2 * MIB
        passing = view.float() + 1  # two of 2 MiB, of which one goes at once
        assert meter.allocated() == 4 * MIB
        assert meter.peak() == 6 * MIB
        del passing
        meter.reset()
        assert meter.allocated() == meter.peak() == 2 * MIB
    del kept, view
    assert meter.allocated() == 0


def test_what_autograd_keeps_is_counted_until_the_backward_pass():
    weight = torch.ones(MIB // 4, requires_grad=True)
    with TensorMeter("cpu") as meter:
        loss = weight.exp().sum()
        assert meter.allocated() == MIB + 4
        loss.backward()
        assert meter.allocated() == MIB + 4  # the exponentials have gone, the gradient has come
    assert weight.grad is not None


@pytest.mark.parametrize("kind", ("cpu", "meta"))
def test_cuda_is_answered_for_and_is_itself_again(kind):
    before = torch.cuda.current_device, torch.cuda.Stream
    with device(kind):
        assert torch.distributed.get_world_size() == 1
        made = torch.zeros(3, device=torch.cuda.current_device())
        assert made.device == torch.ones(3, device="cuda").device == torch.device(kind)
        assert made.bfloat16().type() == "torch.cuda.BFloat16Tensor"
    assert (torch.cuda.current_device, torch.cuda.Stream) == before
    assert not torch.distributed.is_initialized()
    assert torch.zeros(3).type() == "torch.FloatTensor"


def test_the_log_probability_is_pytorchs_and_so_is_its_gradient():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 11, generator=generator).requires_grad_()
    target = torch.randint(11, (7,), generator=generator)
    weights = torch.randn(7, generator=generator)
    expected = torch.log_softmax(logits, dim=-1).gather(1, target[:, None])[:, 0]
    (gradient,) = torch.autograd.grad((weights * expected).sum(), logits)
    found = LogProbability.apply(logits, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad((weights * found).sum(), logits)[0], gradient)


def test_the_log_probability_takes_two_copies_of_the_logits_at_most():
    rows, vocab = 64, 4096
    with TensorMeter("cpu") as meter:
        leaf = torch.zeros(rows, vocab, requires_grad=True)
        start = meter.allocated()
        loss = LogProbability.apply(leaf * 1.0, torch.zeros(rows, dtype=torch.long)).sum()
        loss.backward()
        assert meter.peak() - start < 2.1 * leaf.nbytes
