"""The page use/pytorch: what works with PyTorch's tools, and what is refused.

Each test is named in a table of the page. CPU, and the meta device.
"""

# --8<-- [start:imports]
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
)

# --8<-- [end:imports]
# isort: split
import io
import re
import warnings
from datetime import timedelta
from functools import partial

import pytest
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from attnref import causal_mask, flash, flex, fused, padding_mask, sdpa
from sitekit import ROOT
from tests.kit.attention import qkv
from tests.kit.compare import relative_error


# --8<-- [start:model]
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


def test_compiled():
    # --8<-- [start:compile]
    torch.compiler.reset()  # forgets what was compiled before
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
    small = [KVCache(max_len=4) for _ in model.layers]
    message = re.escape("0 stored and 9 new make 9 > max_len=4")
    for call, wrong in ((compiled, "Unsupported"), (model, "ValueError")):
        with torch.no_grad(), pytest.raises(Exception) as raised:
            call(tokens, caches=small)
        assert type(raised.value).__name__ == wrong
        assert bool(re.search(message, str(raised.value))) == (call is model)


@pytest.mark.audit
def test_compiled_training():
    """Through AOTAutograd, whose graphs a compiler would get."""
    torch.compiler.reset()
    plain, trained = copy.deepcopy(model), copy.deepcopy(model)
    compiled = torch.compile(trained, fullgraph=True, backend="aot_eager")
    for each in plain, compiled:
        each.zero_grad()
        each(tokens).logsumexp(-1).sum().backward()
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
    outs = []
    for block in model.layers:
        block.register_forward_hook(lambda *call: outs.append(call[2].dtype))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(tokens)
        with Products() as products:
            model.layers[1].self_attn(torch.randn(3, 5, 48), form="absorbed")
    for block in model.layers:
        block._forward_hooks.clear()
    assert outs == [torch.float32] * 2  # of the sums with residuals
    assert products.dtypes["bmm"] == {torch.float32, torch.bfloat16}


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
        saved = {}  # storages that are kept for the backward pass

        def keep(x):
            saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        torch.manual_seed(1)  # drops the same weights
        trained.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = trained(tokens).logsumexp(dim=-1).sum()
        loss.backward()
        return [p.grad for p in trained.parameters()], sum(saved.values())

    trained = small_model(dropout=0.5).train()
    plain, before = gradients(trained)
    for block in trained.layers:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    again, after = gradients(trained)
    assert all(map(torch.equal, again, plain))
    assert after < before / 2
    # --8<-- [end:checkpoint]


def test_checkpointing_of_a_layer_called_by_hand():
    grads = []
    mask = padding_mask(torch.arange(9) < torch.tensor([[9], [4], [7]]))
    for kind in (None, False, True):
        torch.manual_seed(1)
        block = small_model(dropout=0.5).train().layers[1]
        x = torch.randn(3, 9, 48, requires_grad=True)
        masked = partial(block, mask=mask)
        call = partial(checkpoint, masked, use_reentrant=kind)
        out = masked(x) if kind is None else call(x)
        out.square().sum().backward()
        grads.append([x.grad, *(p.grad for p in block.parameters())])
    assert all(map(torch.equal, grads[0], grads[1]))
    assert all(map(torch.equal, grads[0], grads[2]))


@pytest.fixture
def process_group():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_one_process(process_group):
    # --8<-- [start:sharded]
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    # `torchrun` starts the processes; then the first argument is enough.
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    sharded, copied = copy.deepcopy(model), copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (1,))  # of GPUs unless it is given
    for block in sharded.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
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
    dist.destroy_process_group()
    # --8<-- [end:sharded]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's
@torch.no_grad()
def test_which_attention_functions_compile_whole():
    for attend in (sdpa, fused, flash, flex):
        torch.compiler.reset()
        layer = GroupedQueryAttention(
            d_model=48, n_heads=6, n_kv_heads=2, attend=attend
        )
        x = torch.randn(2, 7, 48)
        whole = torch.compile(layer, fullgraph=True, backend="eager")
        with torch.no_grad():  # `flex` has no gradients on a CPU
            got = whole(x)
        layer.attend = sdpa
        assert relative_error(got, layer(x)) <= 1e-6


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap
@pytest.mark.parametrize(
    ("core", "refused"),
    [(sdpa, ()), (fused, ("jvp",)), (flash, ("vmap", "grad", "jacrev", "jvp"))],
)
def test_which_attention_functions_run_under_torch_func(core, refused):
    q, k, v = qkv(B=3, D=13)
    above, mask = torch.randn_like(q), causal_mask(*q.shape[2:3], k.shape[2])
    leaf, rows = q.clone().requires_grad_(), [x[:, None] for x in (q, k, v)]

    def of_q(x, core=core):
        return core(x, k, v, mask)

    want = of_q(leaf, sdpa)
    (slope,) = torch.autograd.grad(want, leaf, above)
    for name, call in {
        "vmap": lambda: (torch.vmap(core)(*rows, mask.expand(3, -1, -1)), want),
        "grad": lambda: (
            torch.func.grad(lambda x: (of_q(x) * above).sum())(q),
            slope,
        ),
        "jacrev": lambda: (
            torch.einsum("abcd,abcdefgh", above, torch.func.jacrev(of_q)(q)),
            slope,
        ),
        "jvp": lambda: (
            (torch.func.jvp(of_q, (q,), (q,))[1] * above).sum(),
            (slope * q).sum(),
        ),
    }.items():
        if name in refused:
            with pytest.raises((RuntimeError, NotImplementedError)):
                call()
        else:
            got, right = call()
            assert relative_error(got.view_as(right), right) <= 1e-12


# --8<-- [start:parallel]
def half_the_heads(rank, whole, x, file, results):
    """What one of two processes does: its heads, then the sum of both."""
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    part = GroupedQueryAttention(  # half of each number of heads
        d_model=48, n_heads=3, n_kv_heads=1, head_dim=8, rope_theta=10000.0
    )
    weights = whole.state_dict()
    for name, weight in weights.items():  # rows of q, k, v; columns of o
        axis = 1 if name.startswith("o_proj") else 0
        weights[name] = weight.chunk(2, dim=axis)[rank]
    part.load_state_dict(weights)
    with torch.no_grad():
        out = part(x)
        dist.all_reduce(out)
    results[rank].copy_(out)
    dist.destroy_process_group()


# --8<-- [end:parallel]


def test_two_processes_share_the_heads(tmp_path):
    whole = GroupedQueryAttention(
        d_model=48, n_heads=6, n_kv_heads=2, rope_theta=10000.0
    )
    x, results = torch.randn(2, 9, 48), torch.zeros(2, 2, 9, 48)
    given = (whole, x, tmp_path / "group", results.share_memory_())
    torch.multiprocessing.start_processes(
        half_the_heads, given, nprocs=2, start_method="fork"
    )
    for each in results:
        assert relative_error(each, whole(x)) <= 1e-6


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

    def others(module, name):  # all but those that absorption reads
        return isinstance(module, nn.Linear) and "kv_b_proj" not in name

    absorbing = copy.deepcopy(model)
    quantize_(absorbing, Int8WeightOnlyConfig(), filter_fn=others)
    mla = absorbing.layers[1].self_attn
    x = torch.randn(3, 5, 48)
    forms = [mla(x, form=form) for form in ("expanded", "absorbed")]
    assert torch.allclose(*forms, atol=1e-4)
    # --8<-- [end:quantised]


# What can stand in the place of a linear layer, or on it.


def dynamically_quantised(linear):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
        both = nn.Sequential(linear)
        return torch.ao.quantization.quantize_dynamic(both, {nn.Linear})[0]


def int8(linear):
    both = nn.Sequential(linear)
    quantize_(both, Int8WeightOnlyConfig())
    return both[0]


def gathered(linear):
    """Its weight is there while it is called, and at no other time: so do
    wrappers that shard it, or keep it elsewhere."""
    whole = linear.weight

    def gather(module, args):
        module.weight = whole

    def free(module, args, out):
        module.weight = nn.Parameter(torch.empty(0))

    linear.register_forward_pre_hook(gather)
    linear.register_forward_hook(free)
    free(linear, None, None)
    return linear


STAND_INS = {
    "int8 of torchao": int8,
    "dynamic int8 of torch.ao": dynamically_quantised,
    "a weight gathered by hooks": gathered,
    "sharded by itself": fully_shard,
    "pruned": lambda linear: prune.l1_unstructured(linear, "weight", 0.5),
    "weight norm": weight_norm,
}


@pytest.mark.parametrize("change", STAND_INS.values(), ids=STAND_INS)
@torch.no_grad()
def test_stand_ins_for_linear_layers(change, process_group):
    join_alone()
    layer = copy.deepcopy(model.layers[1].self_attn)
    x, plain = 3 * torch.randn(3, 7, 48), KVCache(7)
    layer(x[:, :5], cache=plain)
    layer.kv_b_proj = change(layer.kv_b_proj)
    want = layer(x, form="expanded")
    cache = KVCache(7)
    steps = [layer(t, cache=cache) for t in x.split(1, dim=1)]
    # What torch.ao rounds its inputs to depends on the largest of a call.
    bound = 0.03 if change is dynamically_quantised else 1e-5
    assert relative_error(torch.cat(steps, dim=1), want) < bound
    with pytest.raises(TypeError, match=r"^kv_b_proj is .*: absorption reads"):
        layer(x[:, 5:6], cache=plain, form="absorbed")
    assert plain.length == 5


def join_alone():
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )


def half_a_batch(rank, place, wanted):
    """What each of two processes does; compared with one that has it all."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place}",
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=30),  # against hanging alone
    )
    halves = torch.cat((tokens, tokens.flip(1)))[rank::2]
    sharded = copy.deepcopy(model)
    for block in sharded.layers:
        fully_shard(block)
    fully_shard(sharded)
    local = sharded.layers[1].self_attn.kv_b_proj.weight.to_local()
    whole = model.layers[1].self_attn.kv_b_proj.weight
    assert 2 * local.numel() == whole.numel()
    copied = DistributedDataParallel(copy.deepcopy(model))
    for each in sharded, copied:
        each(halves).logsumexp(dim=-1).mean().backward()
    gradients = torch.load(wanted)
    for p, q, want in zip(
        sharded.parameters(), copied.parameters(), gradients, strict=True
    ):
        assert relative_error(p.grad.full_tensor(), want) < 1e-5
        assert relative_error(q.grad, want) < 1e-5
    caches = [KVCache(max_len=9) for _ in model.layers]
    with torch.no_grad():
        logits = [sharded(t, caches=caches) for t in tokens.split(3, dim=1)]
    assert error(torch.cat(logits, dim=1)) < 1e-5
    dist.barrier()  # neither leaves while the other still reads
    dist.destroy_process_group()


def the_other_half(_, *args):
    half_a_batch(1, *args)


@pytest.mark.audit
def test_two_processes(tmp_path, process_group):
    both = torch.cat((tokens, tokens.flip(1)))
    whole = copy.deepcopy(model)
    whole(both).logsumexp(dim=-1).mean().backward()
    torch.save([p.grad for p in whole.parameters()], tmp_path / "gradients")
    args = (tmp_path / "store", tmp_path / "gradients")
    other = torch.multiprocessing.spawn(the_other_half, args, join=False)
    half_a_batch(0, *args)
    while not other.join():
        pass


def test_made_without_memory():
    # --8<-- [start:meta]
    with torch.device("meta"):
        empty = small_model().eval()
    assert all(weight.is_meta for weight in empty.parameters())
    assert not [*empty.buffers()]  # all that it holds is in state_dict()
    caches = [KVCache(max_len=9) for _ in empty.layers]
    with torch.no_grad():
        assert empty(tokens.to("meta"), caches=caches).shape == (3, 9, 97)
    held = [cache.nbytes for cache in caches]  # had it run for real

    empty.to_empty(device="cpu")  # arbitrary bytes
    empty.load_state_dict(model.state_dict())
    assert torch.equal(empty(tokens), expected)
    # --8<-- [end:meta]
    caches = [KVCache(max_len=9) for _ in model.layers]
    with torch.no_grad():
        model(tokens, caches=caches)
    assert held == [cache.nbytes for cache in caches]
    with torch.device("meta"):
        empty = small_model().eval()
    checkpoint = copy.deepcopy(model).bfloat16().state_dict()
    empty.load_state_dict(checkpoint, assign=True)
    assert {p.dtype for p in empty.parameters()} == {torch.bfloat16}
    assert error(empty(tokens)) < 0.1


def test_copied_and_saved():
    # --8<-- [start:copies]
    import pickle

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    restored = small_model().eval()
    restored.load_state_dict(torch.load(file, weights_only=True))
    pickled = pickle.loads(pickle.dumps(model))
    for twin in restored, pickled, copy.deepcopy(model):
        assert torch.equal(twin(tokens), expected)

    caches = [KVCache(max_len=9) for _ in model.layers]
    with torch.no_grad():
        model(tokens[:, :5], caches=caches)
        fork = copy.deepcopy(caches)  # two continuations of one prompt
        model(tokens[:, 5:].flip(1), caches=fork)
        logits = model(tokens[:, 5:], caches=caches)
    assert (logits - expected[:, 5:]).abs().max() < 1e-4
    # --8<-- [end:copies]
    assert relative_error(logits, expected[:, 5:]) < 1e-5


def refusals():
    """What the page quotes, as the error is raised."""
    layer, x = model.layers[1].self_attn, torch.randn(3, 5, 48)
    quantised, sharded = copy.deepcopy(layer), copy.deepcopy(layer)
    int8(quantised.kv_b_proj)
    yield lambda: quantised(x, form="absorbed")
    fully_shard(sharded.kv_b_proj)
    yield lambda: sharded(x, form="absorbed")
    yield lambda: layer(x, cache=KVCache(5))
    caches = [KVCache(max_len=9) for _ in model.layers]
    yield lambda: torch.export.export(model, (tokens,), {"caches": caches})
    named = {"tokens": {1: torch.export.Dim("T")}}
    yield lambda: torch.export.export(model, (tokens,), dynamic_shapes=named)
    yield lambda: checkpoint(model.layers[0], x, use_reentrant=True, cache=None)
    with torch.no_grad():
        model(tokens, caches=caches)
        for cache in caches:
            cache.crop(3)
        half = copy.deepcopy(model).half()
    yield torch.no_grad()(lambda: half(tokens[:, 3:], caches=caches))
    yield lambda: layer(x, mask=torch.ones(5, 5, device="meta").bool())
    yield lambda: layer(x, mask=torch.zeros(5, 5))
    yield lambda: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(5, 5).long()
    )
    yield lambda: F.scaled_dot_product_attention(x, x, x.bfloat16())


def tables(language):
    """The page's sections, by id: the rows of their tables."""
    text = (ROOT / f"docs/{language}/use/pytorch.md").read_text("utf-8")
    result = {}
    for section in re.split(r"^## .*\{ #", text, flags=re.M)[1:]:
        name, _, body = section.partition(" }")
        body = body.rpartition("???")[2]  # what was tested is in a fold
        rows = re.findall(r"^ *\|(.*)\|$", body, flags=re.M)[2:]
        result[name] = [
            [cell.strip() for cell in row.split(" | ")] for row in rows
        ]
    return result


def test_refused(process_group):
    join_alone()
    columns = (tables(language)["refused"] for language in ("en", "zh"))
    for *rows, refused in zip(*columns, refusals(), strict=True):
        with pytest.raises(Exception) as error:  # each is of another kind
            refused()
        for row in rows:
            kind, quoted = (cell.strip("`") for cell in row[1:])
            assert quoted in str(error.value), row
            assert type(error.value).__name__ == kind, row
    x = torch.randn(3, 2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):  # casts all three
        out = F.scaled_dot_product_attention(x, x, x.bfloat16())
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_row_of_the_page_names_its_tests(language):
    named = [
        name
        for row in tables(language)["works"]
        for name in re.findall(r"`(test_\w+)`", row[-1]) or [row]
    ]
    here = [name for name in globals() if name.startswith("test_")]
    meant = {n for n in here if not n.startswith(("test_every_row", "test_re"))}
    assert set(named) == meant
