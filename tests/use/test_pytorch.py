"""The page use/pytorch: what works with PyTorch's tools, and what is refused.

Each test is named in a table of the page. CPU, and the meta device.
"""

# --8<-- [start:model]
import copy

import torch
import torch.nn.functional as F
from torch import nn

from attnref import (
    Block,
    Decoder,
    GroupedQueryAttention,
    KVCache,
    MultiHeadLatentAttention,
    causal_mask,
    sdpa,
)


def small_model(**options):
    gqa = GroupedQueryAttention(
        d_model=48, n_heads=6, n_kv_heads=2, rope_theta=10000.0, **options
    )
    mla = MultiHeadLatentAttention(
        d_model=48,
        n_heads=4,
        kv_lora_rank=20,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        **options,
    )
    blocks = [Block(layer, d_model=48, d_ff=80) for layer in (gqa, mla)]
    model = Decoder(blocks, n_tokens=97, d_model=48)
    for weight in model.parameters():
        if weight.dim() == 2:  # with small weights, mistakes hardly show
            nn.init.normal_(weight, std=0.3)
    return model


torch.manual_seed(0)
model = small_model().eval()
tokens = torch.randint(97, (3, 9))
expected = model(tokens).detach()


def error(logits):
    """Of the first tokens: the largest difference, as a part of the largest."""
    exact = expected[: len(logits), : logits.shape[1]]
    return float((logits.detach() - exact).abs().max() / exact.abs().max())


# --8<-- [end:model]

import pytest
import torch.distributed as dist

from tests.conftest import relative_error


def test_compiled():
    torch.compiler.reset()
    # --8<-- [start:compile]
    graphs = []

    def backend(graph, inputs):  # counts; leave `backend` out in your project
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for length in 7, 5, 3:  # of the prompt
        caches = [KVCache(max_len=16) for _ in model.layers]
        parts = tokens[:, : length + 2].split([length, 1, 1], dim=1)
        with torch.no_grad():
            logits = [compiled(part, caches=caches) for part in parts]
        assert error(torch.cat(logits, dim=1)) < 1e-5
    assert len(graphs) == 3
    # --8<-- [end:compile]


def test_compiled_training():
    """Through AOTAutograd, whose graphs a compiler would get."""
    torch.compiler.reset()
    plain, trained = copy.deepcopy(model), copy.deepcopy(model)
    compiled = torch.compile(trained, fullgraph=True, backend="aot_eager")
    for length in 7, 9:
        for each in plain, compiled:
            each.zero_grad()
            each(tokens[:, :length]).logsumexp(-1).sum().backward()
        for ours, theirs in zip(
            trained.parameters(), plain.parameters(), strict=True
        ):
            assert relative_error(ours.grad, theirs.grad) < 1e-5


def test_exported():
    # --8<-- [start:export]
    import io

    from torch.export import Dim

    anyhow = {"tokens": {0: Dim.AUTO, 1: Dim.AUTO}}
    program = torch.export.export(model, (tokens,), dynamic_shapes=anyhow)
    file = io.BytesIO()  # or the path of a .pt2 file
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for batch, length in (3, 9), (2, 5), (1, 2):
        assert error(loaded(tokens[:batch, :length])) < 1e-5
    # --8<-- [end:export]


def test_autocast():
    # --8<-- [start:autocast]
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        """Collects the dtype of each kind of matrix product."""

        def __init__(self):
            super().__init__()
            self.dtypes = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ in ("mm", "bmm"):
                kind = func.overloadpacket.__name__
                self.dtypes.setdefault(kind, set()).add(out.dtype)
            return out

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with Products() as products:
            logits = model(tokens)
        caches = [KVCache(max_len=9) for _ in model.layers]
        model(tokens, caches=caches)
    assert products.dtypes == {
        "mm": {torch.bfloat16},  # projections, SwiGLU, logits
        "bmm": {torch.float32},  # scores, and weights times values
    }
    assert {t.dtype for c in caches for t in c.stored} == {torch.bfloat16}
    assert logits.dtype == torch.bfloat16
    assert 0 < error(logits) < 0.05
    # --8<-- [end:autocast]


def test_dtypes():
    # --8<-- [start:dtypes]
    errors = {}
    for dtype in torch.float64, torch.float16, torch.bfloat16:
        whole = copy.deepcopy(model).to(dtype)
        caches = [KVCache(max_len=9) for _ in model.layers]
        with torch.no_grad():
            parts = [whole(t, caches=caches) for t in tokens.split(3, dim=1)]
        assert {t.dtype for c in caches for t in c.stored} == {dtype}
        errors[dtype] = error(torch.cat(parts, dim=1))
    assert errors[torch.float64] < 1e-5
    assert 1e-4 < errors[torch.float16] < 0.01 < errors[torch.bfloat16] < 0.1
    # --8<-- [end:dtypes]


def test_gradient_scaler():
    # --8<-- [start:scaler]
    trained = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = trained(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].ravel())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 5
    # --8<-- [end:scaler]
    assert all(p.dtype == torch.float32 for p in trained.parameters())


def test_checkpointing():
    # --8<-- [start:checkpoint]
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    def gradients(trained):
        kept = {}  # storages that are kept for the backward pass

        def keep(x):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        torch.manual_seed(1)  # drops the same weights
        trained.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = trained(tokens).logsumexp(dim=-1).sum()
        loss.backward()
        return [p.grad for p in trained.parameters()], sum(kept.values())

    trained = small_model(dropout=0.5).train()
    plain, before = gradients(trained)
    for block in trained.layers:
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False
        )
    again, after = gradients(trained)
    assert all(map(torch.equal, again, plain))
    assert after < before / 2
    # --8<-- [end:checkpoint]
    for weight in trained.parameters():
        assert weight.grad.abs().max() > 0
    # What both keep of a layer that is called by hand, in either way.
    block = small_model(dropout=0.5).train().layers[1]
    x, grads = torch.randn(3, 9, 48, requires_grad=True), []
    for run in (
        block,
        partial(checkpoint, block, use_reentrant=False),
        partial(checkpoint, block, use_reentrant=True),
    ):
        torch.manual_seed(2)
        grads.append(torch.autograd.grad(run(x).square().sum(), x)[0])
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


@pytest.fixture
def process_group():
    yield
    dist.destroy_process_group()


def test_one_process(process_group):
    # --8<-- [start:sharded]
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    # `torchrun` starts the processes; then the first argument is enough.
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    sharded, copied = copy.deepcopy(model), copy.deepcopy(model)
    for block in sharded.layers:
        fully_shard(block)
    fully_shard(sharded)
    copied = DistributedDataParallel(copied)

    caches = [KVCache(max_len=9) for _ in model.layers]
    with torch.no_grad():
        logits = [sharded(t, caches=caches) for t in tokens.split(3, dim=1)]
    assert error(torch.cat(logits, dim=1)) < 1e-5

    for each in model, sharded, copied:
        each.zero_grad()
        each(tokens).logsumexp(dim=-1).sum().backward()
    for exact, shard, synced in zip(
        *(each.parameters() for each in (model, sharded, copied)), strict=True
    ):
        assert torch.equal(shard.grad.full_tensor(), exact.grad)
        assert torch.equal(synced.grad, exact.grad)
    # --8<-- [end:sharded]


def test_quantised():
    # --8<-- [start:quantised]
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantised = copy.deepcopy(model)
    quantize_(quantised, Int8WeightOnlyConfig())  # every nn.Linear
    with torch.no_grad():
        logits = quantised(tokens)
        caches = [KVCache(max_len=9) for _ in model.layers]
        steps = [quantised(t, caches=caches) for t in tokens.split(1, dim=1)]
    assert 1e-4 < error(logits) < 0.1
    assert (torch.cat(steps, dim=1) - logits).abs().max() < 1e-4
    # --8<-- [end:quantised]
