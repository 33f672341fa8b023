"""Which tests to copy hold for which module, and how each is called.

A suite has pairs: a property, and a function that makes its arguments from the
plain forms, or from a second package, in which a mistake is planted.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from attnref.judge import properties as has
from attnref.judge.catalogue import planted


def failing(variant, only=()):
    """The names of the tests to copy that fail with these lines. `only` says
    which tests to run."""
    names = []
    for prop, arguments in SUITES[variant[0].module]:
        if only and prop.__name__ not in only:
            continue
        try:
            prop(*arguments(planted(variant)))
        except Exception:
            if prop.__name__ not in names:
                names.append(prop.__name__)
    return names


# Layers, converted weights and a whole model.


def tokens(*shape):
    """Inputs, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator)


def fill_weights(module):
    """Give a module the same weights each time, so large that the softmax puts
    most weight on one key."""
    generator = torch.Generator().manual_seed(2)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5, generator=generator)
    return module.requires_grad_(False)


def mha(p):
    return fill_weights(p.mha.MHA(8, 2))


def mqa(p):
    return fill_weights(p.mqa.MQA(8, 4))


def mqa_and_weights(p):
    layer, x = mqa(p), tokens(3, 5, 8)
    return lambda: layer(x), layer.parameters()


def gqa(form, *, rope=True):
    """GQA of eight heads and four key/value heads; without RoPE it is what
    PyTorch computes."""
    if not rope:
        form.rope = lambda x, *_: x
    return fill_weights(form.GQA(8, 8, 4, head_dim=2))


def step_by_step(form, layer=None):
    """GQA that reads token by token into a cache, with pads on the left."""
    layer = layer or gqa(form)

    def attend(x, valid):
        cache = form.KVCache(x.shape[1])
        outs = [
            layer(x[:, t : t + 1], cache, valid[:, : t + 1])
            for t in range(x.shape[1])
        ]
        return torch.cat(outs, dim=1)

    return (attend,)


def counting_cache(form):
    """A cache that says how many bytes it holds."""

    class CountingCache(form.KVCache):
        @property
        def nbytes(self):
            return self.stored.nbytes

    return CountingCache


def refused_append(kind):
    cache, tokens = kind(2), torch.ones(3, 1, 3, 1)
    return lambda: cache.append(tokens, tokens), lambda: cache.length


def of_gqa(get):
    """The suite of GQA in the module that `get` takes from the plain forms: the
    file of the whole model contains GQA, too."""

    def causal(p):
        return gqa(get(p)).eval(), tokens(3, 5, 8)

    def causal_with_valid(p):
        layer, x = causal(p)
        return lambda x: layer(x, valid=torch.ones(3, x.shape[1]) > 0), x

    return (
        (
            has.layer_equals_torch,
            lambda p: (gqa(get(p), rope=False), tokens(3, 5, 8), 8, 4),
        ),
        (has.future_is_hidden, causal),
        (has.future_is_hidden, causal_with_valid),
        (has.past_is_seen, causal),
        (has.evaluation_repeats, causal),
        (
            has.pads_are_unseen,
            lambda p: (
                lambda x, valid: gqa(get(p))(x, valid=valid),
                tokens(3, 5, 8),
            ),
        ),
        (has.pads_change_nothing, lambda p: step_by_step(get(p))),
        (
            has.decoding_is_the_full_pass,
            lambda p: (gqa(get(p)), lambda: get(p).KVCache(6), tokens(3, 6, 8)),
        ),
        (
            has.head_width_is_free,
            lambda p: (lambda d: get(p).GQA(24, 6, 2, head_dim=d), 6),
        ),
        (
            has.rope_is_as_published,
            lambda p: (lambda x, t: get(p).rope(x, t, 5e5), 5e5),
        ),
        (has.order_is_seen, causal),
        (
            has.cache_is_small,
            lambda p: (
                gqa(get(p)).bfloat16(),
                counting_cache(get(p)),
                tokens(3, 6, 8).bfloat16(),
                *(4, 2),
            ),
        ),
        (has.full_cache_refuses, lambda p: (get(p).KVCache,)),
        (has.refusal_changes_nothing, lambda p: refused_append(get(p).KVCache)),
    )


def cross(p):
    return fill_weights(p.cross.CrossAttention(8, 2))


def block(p):
    return fill_weights(p.llama.Block(8, 12, 1e-6, n_heads=2, n_kv_heads=1))


def model_and_weights(p):
    llama, prompt = model(p), torch.arange(6)[None]
    parts = llama.model["layers"], llama.model["norm"]
    used = [weight for part in parts for weight in part.parameters()]
    return lambda: llama(prompt), used


def model(p):
    return fill_weights(p.llama.Llama(50, 2, 8, 12, n_heads=2, n_kv_heads=1))


def model_and_caches(p):
    prompt = torch.arange(12).view(2, 6)
    return model(p), lambda: [p.llama.KVCache(9) for _ in range(2)], prompt


def generator(p):
    llama = model(p)

    def generate(prompt, valid, cached):
        if cached:
            return llama.generate(prompt, 8, valid)
        for _ in range(8):
            token = llama(prompt, valid=valid)[:, -1:].argmax(-1)
            prompt = torch.cat((prompt, token), dim=1)
            valid = torch.cat((valid, token >= 0), dim=1)
        return prompt

    return (generate,)


def loop_and_queries(name, n_kv_heads):
    """A loop over heads, and its matrices of queries."""

    def arguments(package):
        generator = torch.Generator().manual_seed(3)
        small = (n_kv_heads, 8, 2)[n_kv_heads == 1 :]
        wq, *rest = (
            torch.randn(shape, generator=generator).double() / 2
            for shape in ((4, 8, 2), small, small, (8, 8))
        )
        x, run = tokens(2, 6, 8).double(), getattr(package, name)
        return lambda: run(x, wq, *rest), [wq]

    return arguments


def second_context(package):
    layer = fill_weights(package.CrossAttention(d_model=8, n_heads=2))
    x, context = tokens(2, 3, 8), tokens(2, 5, 8)
    return layer, x, context, package.GrowingKVCache()


def pooling(package):
    mha = fill_weights(package.MultiHeadAttention(d_model=8, n_heads=4))
    return lambda m: package.mha_to_gqa(m, 2), mha, tokens(2, 5, 8), 2


def load_torch(package):
    def load(theirs):
        sizes = {"d_model": 24, "n_heads": 6}
        ours = package.MultiHeadAttention(**sizes, bias=True, causal=False)
        ours.load_state_dict(package.weights_of_torch_mha(theirs))
        return ours

    return (load,)


def reorder_and_rotate(package):
    def rotate(x, layout):
        tables = package.rope_table(torch.arange(x.shape[2]), x.shape[3])
        return package.apply_rope(x, *tables, layout=layout)

    return lambda weight, dim: package.rope_rows(weight, dim, to="half"), rotate


def dequantising(package):
    def run(weight, scales, n):
        checkpoint = {"x": weight, "x_scale_inv": scales}
        weights = package.dequantised(checkpoint, block=n, dtype=torch.float32)
        return weights["x"]

    return (run,)


def refused_call(package):
    """Six tokens for three caches, the last of which has room for four."""
    sizes = {"d_model": 8}
    blocks = [
        package.Block(
            package.MultiHeadAttention(**sizes, n_heads=2), **sizes, d_ff=12
        )
        for _ in range(3)
    ]
    model = fill_weights(package.Decoder(blocks, n_tokens=29, **sizes))
    caches = [package.KVCache(room) for room in (8, 8, 4)]
    return (
        lambda: model(torch.arange(6)[None], caches=caches),
        lambda: [cache.length for cache in caches],
    )


# Softmax, masks and attention.


def repeat_kv(attention):
    """Grouped attention: each key/value head is repeated for its group."""

    def core(q, k, v, mask):
        G = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(G, 1), v.repeat_interleave(G, 1)
        return attention(q, k, v, mask)

    return core


def attention(softmax):
    """Attention by this softmax."""
    return lambda q, k, v: softmax(q @ k.mT) @ v


def padding(core, mask_of):
    """Attention in four heads, under the padding mask alone."""

    def attend(x, valid):
        heads = x.view(*x.shape[:2], 4, -1).transpose(1, 2)
        out = core(heads, heads, heads, mask_of(valid))
        return out.transpose(1, 2).flatten(2)

    return (attend,)


def packing(p):
    """Attention of packed documents."""

    def attend(x, ids):
        mask = p.masks.document_mask(ids[None])
        return p.attention.attention(*(x[:, None],) * 3, mask)[:, 0]

    return (attend,)


def one_document(p):
    """The mask of a single document, for the last tokens."""

    def mask(T, S):
        ids = torch.zeros(1, S, dtype=torch.long)
        return p.masks.document_mask(ids)[0, 0, -T:]

    return (mask,)


def prefix_layer(p):
    """A decoder layer with a prefix of two tokens."""
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_heads": 2}
    layer = p.MultiHeadAttention(**sizes, causal=p.Prefix(2))
    return layer, torch.randn(2, 5, 8)


def split_sinks(p):
    """Attention with sinks, the keys in three parts."""

    def core(q, k, v, sinks, mask):
        return p.split_kv(q, k, v, mask, sinks=sinks, splits=3)

    return (core,)


def without_sinks(p):
    """Attention with a sink of -inf, which takes no weight."""

    def core(q, k, v, mask=None):
        sinks = q.new_full((q.shape[1],), -torch.inf)
        return p.sinks.attention_with_sinks(q, k, v, sinks, mask)

    return (core,)


def norms(p):
    """The norm of heads, with given weights."""

    def norm(x, w, over, plus):
        width, head = p.order.norm_of_all_heads, p.order.rms_norm
        return (width if over == "width" else head)(x, w + 1 if plus else w)

    return (norm,)


def chunk_mask(p):
    t = torch.arange(6)
    return (lambda T, size: p.Chunk(size)(t[:T, None], t[:T]),)


# RoPE, positions and caches.

SIZES = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "rope_theta": 100.0}


def positioned_layer(package):
    """A layer that takes positions, and an input."""
    layer = fill_weights(package.GroupedQueryAttention(**SIZES))
    return lambda x, positions: layer(x, positions=positions), tokens(3, 6, 16)


def growing(package):
    layer = fill_weights(package.GroupedQueryAttention(**SIZES))
    return (
        lambda x, cache=None: layer(x, cache=cache),
        package.GrowingKVCache,
        tokens(2, 6, 16),
    )


def with_plain_cache(p):
    layer = fill_weights(p.gqa.GQA(8, 2, 1))
    return layer, lambda: p.kv_cache.KVCache(9), tokens(3, 6, 8)


def bfloat16_decoder(p):
    layer = fill_weights(p.gqa.GQA(8, 2, 1)).bfloat16()
    return layer, lambda: p.kv_cache.KVCache(9), tokens(3, 6, 8).bfloat16()


def window_rows(p):
    """What the tokens of two chunks see, if all heads see the same."""
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0]).view(4, 1, 1)

    def mask(W, T):
        rows = []
        for T_new, S in ((T - 2, T - 2), (2, T)):
            q, k = torch.zeros(1, 4, T_new, 1), torch.zeros(1, 2, S, 1)
            v = torch.eye(T)[:S] * sign[::2]
            out = p.window.window_attention(q, k, v[None], W, size=2)
            rows.append((out * sign > 0).all(dim=1)[0])
        return torch.cat(rows)

    return (mask,)


def ring(p):
    """A layer with a window of three tokens and the first, and its ring."""
    window = p.Window(3, 1)
    layer = fill_weights(p.GroupedQueryAttention(**SIZES, causal=window))
    return (
        lambda x, cache=None: layer(x, cache=cache),
        lambda: p.RingKVCache(3, first=1, reserve=1),
        tokens(2, 9, 16),
    )


def outgrown(p):
    """A layer whose frequencies change after four tokens."""
    rope = p.Rope(100.0, scaling=p.DynamicNtk(8.0, 4))
    sizes = {**SIZES, "rope_theta": None}
    layer = fill_weights(p.GroupedQueryAttention(**sizes, rope=rope))
    return (
        lambda x, cache=None: layer(x, cache=cache),
        p.GrowingKVCache,
        tokens(2, 6, 16),
    )


def frequencies(p):
    """The frequencies of four kinds of scaling, and YaRN's factor."""
    kinds = {
        "linear": p.PositionInterpolation(8.0),
        "ntk": p.Ntk(8.0),
        "llama3": p.Llama3(8.0, 1.0, 4.0, 4096),
        "yarn": p.Yarn(8.0, 4096),
        "step": p.Yarn(8.0, 4096, beta_fast=1.0),
    }
    return (
        lambda kind, *args: kinds[kind].slowed(*args),
        lambda: kinds["yarn"].table_scale,
    )


def unscaled_rope(p):
    """RoPE by the frequencies that scaling begins with."""

    def rope(x, positions):
        f = p.scaling.frequencies(x.shape[-1], 5e5)
        return p.scaling.rotate(x, positions, f)

    return rope, 5e5


def plain_frequencies(p):
    """The frequencies of the plain form, and YaRN's factor."""
    kinds = {
        "linear": lambda f: p.scaling.linear(f, 8.0),
        "ntk": lambda f: p.scaling.ntk(f, 8.0),
        "llama3": lambda f: p.scaling.llama3(f, 8.0, 4096),
        "yarn": lambda f: p.scaling.yarn(f, 8.0, 4096)[0],
        "step": lambda f: p.scaling.yarn(f, 8.0, 4096, fast=1.0)[0],
    }
    return (
        lambda kind, f, theta: kinds[kind](f),
        lambda: p.scaling.yarn(p.scaling.frequencies(8), 8.0, 4096)[1],
    )


# MLA and its absorbed form.

LATENT_SIZES = 24, 6, 8, 5  # R, Dn, Dr, Dv; H is 3
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def latent(p):
    return fill_weights(p.mla.MLA(12, 3, *LATENT_SIZES).double())


def mla_by_hand(p, absorbed):
    """The arguments of `is_mla`."""
    layer = latent(p)

    def run(x):
        return layer(x, absorbed=absorbed)

    return (
        run,
        dict(layer.state_dict()),
        tokens(6, 12).double(),
        (3, *LATENT_SIZES),
    )


def latents(p):
    def stored(x):
        cache = p.mla.KVCache(x.shape[1])
        latent(p)(x, cache)
        return [cache.stored]

    return stored, tokens(2, 6, 12).double(), LATENT_SIZES[0] + LATENT_SIZES[2]


def hook_target(p):
    layer = latent(p)
    x = tokens(1, 6, 12).double()
    return lambda x: layer(x, absorbed=False), layer.kv_b_proj, x


def yarn_scale(p):
    """A layer stretched 40 times by YaRN."""
    yarn = p.Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    rope = p.Rope(scaling=yarn)
    sizes = dict(zip(LATENT, LATENT_SIZES, strict=True))
    mla = p.MultiHeadLatentAttention(d_model=12, n_heads=3, rope=rope, **sizes)
    return mla.scale, 6 + 8, 40.0, 1.0


def outputs_with_a_closed_gate(p):
    """Of one layer, with its gate and without."""
    sizes = dict(zip(LATENT, LATENT_SIZES, strict=True))
    layer = fill_weights(
        p.MultiHeadLatentAttention(
            d_model=12, n_heads=3, rope=None, output_gate=True, **sizes
        )
    )
    layer.g_proj.weight.zero_()
    x = tokens(3, 5, 12)
    gated, layer.g_proj = layer(x), None
    return gated, layer(x)


def bounded_decay(p):
    """Of Kimi K3, where the projection is 0 and the bias is the step."""
    gate = p.kda.ForgetGate(4, 1, 2, bound=-5.0).requires_grad_(False)

    def decay(step, rate):
        gate.dt_bias.fill_(step)
        gate.A_log.fill_(rate).log_()
        return gate(torch.zeros(1, 1, 4), torch.float32)[0, 0, 0, 0].item()

    return decay, -5.0


def latent_decoder(absorbed):
    """A layer that reads its text in chunks."""

    def arguments(p):
        run = partial(latent(p), absorbed=absorbed)
        return run, lambda: p.mla.KVCache(6), tokens(2, 6, 12).double()

    return arguments


def latent_pads(p):
    return step_by_step(p.mla, fill_weights(p.mla.MLA(8, 2, *LATENT_SIZES)))


def latent_rotated(p):
    return lambda x, t: p.mla.rope(x, t, 100.0), 100.0, True


# Recurrent layers.


def recurrent_layer(p, kind):
    """A layer and its empty cache; the values of one head are wider."""
    if kind == "lightning":
        layer = p.lightning.LightningAttention(8, 4, 3, layer_idx=1, n_layers=3)
        return fill_weights(layer.double()), p.lightning.LightningState
    layer = p.gated_delta.GatedDeltaNet(8, 2, 4, 3, 5).double()
    return fill_weights(layer), p.gated_delta.State


def recurrent_suite(kind):
    def decoder(p):
        return *recurrent_layer(p, kind), tokens(3, 9, 8).double()

    def causal(p):
        return recurrent_layer(p, kind)[0], tokens(3, 5, 8).double()

    return (
        (has.future_is_hidden, causal),
        (has.past_is_seen, causal),
        (has.decoding_is_the_full_pass, decoder),
        (has.sequences_are_apart, decoder),
        (has.pads_leave_a_state, decoder),
    )


def gated_delta_by_hand(p):
    layer, _ = recurrent_layer(p, "gated_delta")
    x = tokens(7, 8).double()
    return layer, dict(layer.state_dict()), x, (2, 4, 3, 5)


def lightning_by_hand(p):
    layer, _ = recurrent_layer(p, "lightning")
    x = tokens(7, 8).double()
    return layer, dict(layer.state_dict()), x, 4, 0.5


# DeepSeek-V4's attention.

ANGLES = 1.0, 0.1


def compressed_layer(form, rate=2, index=(2, 6, 9)):
    """A layer whose compressed entries overlap. Its indexer chooses them all;
    with `index=()` it has none."""
    layer = form.CompressedAttention(
        *(8, 2, 8, 3, ANGLES, 6, 5, 2), rate=rate, index=index
    )
    return fill_weights(layer)


def compressed_by_hand(index):
    """The arguments of `is_compressed`."""

    def arguments(p):
        layer = compressed_layer(p.deepseek_v4, index=index)
        sizes, f = (2, 3, 2, 2), torch.tensor(ANGLES)
        return layer, dict(layer.state_dict()), tokens(9, 8), sizes, f

    return arguments


# DSA. With so many heads no sum of ReLUs is 0: keys would tie there.
SPARSE = 3, 24, 6, 8, 5  # H, R, Dn, Dr, Dv


def sparse(p, halves=True, width=12):
    index = 12, 10, 3  # Hi, Di, topk
    return fill_weights(p.dsa.DSA(width, *SPARSE, 7, index, 10000.0, halves))


def sparse_by_hand(halves):
    """The arguments of `is_dsa`."""

    def arguments(p):
        layer, x = sparse(p, halves).double(), tokens(9, 12).double()
        return layer, dict(layer.state_dict()), x, SPARSE, (12, 3, halves)

    return arguments


def compressed_in_chunks(p):
    form = p.deepseek_v4
    return compressed_layer(form), form.CompressedCache, tokens(2, 9, 8)


def compressed_alone(p):
    return compressed_layer(p.deepseek_v4, index=()), tokens(2, 10, 8)


def compressed_pads(p):
    form = p.deepseek_v4
    return (lambda x, valid: compressed_layer(form)(x, None, valid),)


def sparse_decoder(p):
    layer = sparse(p).double()
    return layer, lambda: p.dsa.KVCache(8), tokens(2, 8, 12).double()


def sparse_pads(p):
    return step_by_step(p.dsa, sparse(p, width=8))


def sparse_rotated(p):
    return lambda x, t: p.dsa.rope(x, t, 100.0), 100.0, True


# Attention in tiles, its gradients, and merged parts.


def in_tiles(p, *tile):
    return lambda *args: p.flash.flash(*args, tile=tile)[0]


def in_parts(p):
    """Attention to the first three keys and to the others, merged."""

    def core(q, k, v, mask):
        parts = [
            p.flash.flash(q, k[:, :, i], v[:, :, i], mask[..., i])
            for i in (slice(3), slice(3, None))
        ]
        return p.merge.merge(*zip(*parts, strict=True))[0]

    return (core,)


def dropping(p):
    """Attention with the same dropout at each call."""

    def core(q, k, v):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return p.flash(q, k, v, dropout=0.5, tile=(2, 3))

    return (core,)


MERGE_SUITE = (
    (has.parts_make_the_whole, lambda p: (p.flash.flash, p.merge.merge)),
    (has.far_scores, in_parts),
)

# Four devices, as threads.


def answers(run, inputs, d_out):
    """The output of a rank, and the gradients of its inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = run(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, d_out)


def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )


def causal_attention_with_sinks(q, k, v, sinks):
    """A sink is the score of a key of no value, which all queries see."""
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    later = torch.ones(16, 17, dtype=torch.bool).triu(1)
    bias = F.pad(sinks.view(-1, 1, 1), (16, 0)).expand(-1, 16, -1)
    later[:, 16] = False
    return F.scaled_dot_product_attention(
        q, k, v, bias.masked_fill(later, -torch.inf)
    )


def split_text(attend, *sinks):
    """Causal attention to a text that is placed in zigzag."""

    def arguments(p):
        ring, placed = p.ring_attention, p.ring_attention.place(16, 4)

        def on_ranks(*inputs):
            def work(group):
                local = placed[group.rank]
                *parts, d_out = (
                    x[:, :, local] if x.dim() == 4 else x for x in inputs
                )

                def run(q, k, v, *sinks):
                    options = dict(zip(("sinks",), sinks, strict=False))
                    return attend(p)(q, k, v, local, group, **options)

                return answers(run, parts, d_out)

            results = p.ranks.on_threads(work, 4)
            return [
                ring.join(x, placed) if x[0].dim() == 4 else sum(x)
                for x in zip(*results, strict=True)
            ]

        q, k, v = (tokens(3, h, 16, 8).double() for h in (4, 2, 2))
        one = causal_attention_with_sinks if sinks else causal_attention
        return on_ranks, one, 3 * q, k.flip(2), v.flip(3), *sinks

    return arguments


def split_heads(p):
    """GQA of 8 query and 2 key/value heads."""
    tp = p.tensor_parallel

    def heads(x, w):
        return (x @ w.mT).unflatten(2, (-1, 4)).transpose(1, 2)

    def on_one(x, q, k, v, o):
        out = causal_attention(heads(x, q), heads(x, k), heads(x, v))
        return out.transpose(1, 2).flatten(2) @ o.mT

    def on_ranks(x, q, k, v, o, d_out):
        def work(group):
            some = partial(tp.rows, copied=True)
            cuts = (tp.rows, 8), (some, 2), (some, 2), (tp.columns, 8)
            parts = [
                cut(w, n, group)
                for w, (cut, n) in zip((q, k, v, o), cuts, strict=True)
            ]

            def run(*inputs):
                return tp.gqa(*inputs, 4, group)

            out, dx, *grads = answers(run, (x, *parts), d_out)
            copies = tp.copies(2, group)
            grads[1:3] = map(copies.total, grads[1:3])
            return out, dx, *grads

        out, dx, *grads = zip(*p.ranks.on_threads(work, 4), strict=True)
        q, k, v, o = grads  # of two copies, the second
        whole = torch.cat(q), torch.cat(k[1::2]), torch.cat(v[1::2])
        return out[0], dx[0], *whole, torch.cat(o, dim=1)

    sizes = (32, 16), (8, 16), (8, 16), (16, 32)
    weights = [tokens(*size).double() / 4 for size in sizes]
    return on_ranks, on_one, tokens(3, 7, 16).double(), *weights


def split_state(p):
    """The delta rule over a text in four parts."""
    rule = p.gated_delta.delta_rule

    def on_one(*inputs):
        return rule(*inputs, torch.zeros(3, 2, 4, 5).double())[0]

    def on_ranks(*inputs):
        def work(group):
            local = slice(3 * group.rank, 3 * group.rank + 3)
            *parts, d_out = (x[:, :, local] for x in inputs)

            def run(*parts):
                return p.relay.relay(rule, *parts, group=group)[0]

            return answers(run, parts, d_out)

        results = zip(*p.ranks.on_threads(work, 4), strict=True)
        return [torch.cat(x, dim=2) for x in results]

    q, k = tokens(2, 3, 2, 12, 4).double()
    v, decay = tokens(3, 2, 12, 5).double(), -tokens(3, 2, 12).double().exp()
    return on_ranks, on_one, q, F.normalize(k, dim=-1), v, decay / 5, -decay / 9


SUITES = {
    "plain.mha": (
        (has.layer_equals_torch, lambda p: (mha(p), tokens(3, 5, 8), 2, 2)),
        (has.future_is_hidden, lambda p: (mha(p).eval(), tokens(3, 5, 8))),
        (has.past_is_seen, lambda p: (mha(p), tokens(3, 5, 8))),
        (has.rows_are_apart, lambda p: (mha(p), tokens(3, 5, 8))),
        (has.evaluation_repeats, lambda p: (mha(p), tokens(3, 5, 8))),
    ),
    "plain.mqa": (
        (has.layer_equals_torch, lambda p: (mqa(p), tokens(3, 5, 8), 4, 1)),
        (has.future_is_hidden, lambda p: (mqa(p).eval(), tokens(3, 5, 8))),
        (has.past_is_seen, lambda p: (mqa(p), tokens(3, 5, 8))),
        (has.rows_are_apart, lambda p: (mqa(p), tokens(3, 5, 8))),
        (has.every_weight_is_used, mqa_and_weights),
        (
            has.decoding_is_the_full_pass,
            lambda p: (
                mqa(p),
                lambda: p.kv_cache.KVCache(6),
                tokens(3, 6, 8),
            ),
        ),
    ),
    "plain.gqa": of_gqa(lambda p: p.gqa),
    "plain.llama": (
        *of_gqa(lambda p: p.llama),
        (has.residual_passes, lambda p: (block(p), tokens(3, 5, 8))),
        (has.every_weight_is_used, model_and_weights),
        (has.decoding_is_the_full_pass, model_and_caches),
        (has.generation_is_the_same, generator),
    ),
    "plain.cross": (
        (
            has.layer_equals_torch,
            lambda p: (cross(p), tokens(3, 5, 8), 2, 2, tokens(3, 4, 8)),
        ),
        (
            has.context_is_seen,
            lambda p: (cross(p), tokens(3, 5, 8), tokens(3, 4, 8)),
        ),
        (
            has.pads_are_unseen,
            lambda p: (
                lambda x, valid: cross(p)(tokens(3, 4, 8), x, valid).repeat(
                    1, 2, 1
                )[:, :5],
                tokens(3, 5, 8),
            ),
        ),
    ),
    "layers.mqa": (
        (has.every_weight_is_used, loop_and_queries("multi_query_loop", 1)),
    ),
    "layers.gqa": (
        (has.every_weight_is_used, loop_and_queries("grouped_query_loop", 2)),
    ),
    "layers.cross": ((has.new_context_is_read, second_context),),
    "layers.convert": (
        (has.equal_heads_pool, pooling),
        (has.equals_multihead_attention, load_torch),
        (has.layouts_agree, reorder_and_rotate),
        (has.float8_is_near, dequantising),
    ),
    "layers.block": ((has.refusal_changes_nothing, refused_call),),
    "plain.softmax": (
        (has.is_softmax, lambda p: (p.softmax.softmax,)),
        (
            has.is_softmax,
            lambda p: (partial(p.softmax.online_softmax, chunk=2),),
        ),
        (has.gradients_are_slopes, lambda p: (attention(p.softmax.softmax),)),
    ),
    "core.softmax": ((has.long_rows_sum_to_one, lambda p: (p.softmax,)),),
    "plain.attention": (
        (has.equals_torch, lambda p: (repeat_kv(p.attention.attention),)),
        (has.empty_rows_are_zero, lambda p: (p.attention.attention,)),
        (has.far_scores, lambda p: (p.attention.attention,)),
    ),
    "core.sdpa": (
        (has.equals_torch, lambda p: (p.sdpa,)),
        (has.half_is_exact, lambda p: (p.sdpa,)),
    ),
    "plain.sinks": (
        (has.sinks_take_weight, lambda p: (p.sinks.attention_with_sinks,)),
        (has.first_tokens_are_kept, lambda p: (p.sinks.streaming_mask,)),
        (has.far_scores, without_sinks),
    ),
    "core.merge": ((has.sinks_take_weight, split_sinks),),
    "plain.alibi": (
        (has.is_alibi, lambda p: (p.alibi.alibi,)),
        (
            has.scores_are_biased_and_capped,
            lambda p: (p.alibi.biased_attention,),
        ),
    ),
    "plain.order": (
        (has.parts_are_in_order, lambda p: (p.order.todays_heads,)),
        (has.norms_are_as_published, norms),
        (has.gates_are_of_their_heads, lambda p: (p.order.query_and_gate,)),
    ),
    "plain.masks": (
        (has.is_causal, lambda p: (p.masks.causal_mask,)),
        (has.is_window, lambda p: (lambda W, T: p.masks.window_mask(T, T, W),)),
        (
            has.pads_change_nothing,
            lambda p: padding(p.attention.attention, p.masks.padding_mask),
        ),
        (has.documents_are_apart, packing),
        (has.is_causal, one_document),
    ),
    "core.masks": (
        (has.chunks_are_apart, chunk_mask),
        (has.future_is_hidden, prefix_layer),
        (
            has.pads_change_nothing,
            lambda p: padding(
                p.sdpa, lambda valid: p.padding_mask_from_hf(valid.long())
            ),
        ),
    ),
    "plain.rope": (
        (
            has.rope_is_as_published,
            lambda p: (lambda x, t: p.rope.rope(x, t, 5e5), 5e5),
        ),
    ),
    "core.rope": (
        (has.distances_alone_count, positioned_layer),
        (has.positions_count_tokens, lambda p: (p.token_positions,)),
        (has.longer_text_is_read_again, outgrown),
    ),
    "core.scaling": ((has.frequencies_are_as_published, frequencies),),
    "plain.scaling": (
        (has.frequencies_are_as_published, plain_frequencies),
        (has.rope_is_as_published, unscaled_rope),
    ),
    "plain.window": ((has.is_window, window_rows),),
    "plain.ring": (
        (has.ring_is_a_window, lambda p: (p.ring.RingKVCache, p.ring.sees)),
    ),
    "plain.ring_attention": (
        (
            has.ranks_are_one_device,
            split_text(lambda p: p.ring_attention.ring_attention),
        ),
        (
            has.ranks_are_one_device,
            split_text(
                lambda p: p.ring_attention.ring_attention,
                torch.arange(-1.0, 3.0).double(),
            ),
        ),
    ),
    "plain.ulysses": (
        (has.ranks_are_one_device, split_text(lambda p: p.ulysses.ulysses)),
    ),
    "plain.tensor_parallel": ((has.ranks_are_one_device, split_heads),),
    "plain.relay": ((has.ranks_are_one_device, split_state),),
    "plain.paged": ((has.blocks_hold_each_text, lambda p: (p.paged.Pool,)),),
    "caches.ring": (
        (has.decoding_is_the_full_pass, ring),
        (has.rejected_tokens_leave_nothing, ring),
    ),
    "plain.kv_cache": (
        (has.full_cache_refuses, lambda p: (p.kv_cache.KVCache,)),
        (has.caches_are_apart, lambda p: (p.kv_cache.KVCache,)),
        (
            has.refusal_changes_nothing,
            lambda p: refused_append(p.kv_cache.KVCache),
        ),
        (has.decoding_is_the_full_pass, with_plain_cache),
        (has.decoding_is_the_full_pass, bfloat16_decoder),
    ),
    "caches.kv_cache": (
        (has.decoding_is_the_full_pass, growing),
        (has.cache_is_a_list, lambda p: (lambda room: p.GrowingKVCache(),)),
        (
            has.cache_keeps_no_graph,
            lambda p: (lambda room: p.GrowingKVCache(),),
        ),
    ),
    "plain.mla": (
        (has.is_mla, lambda p: mla_by_hand(p, absorbed=False)),
        (has.is_mla, lambda p: mla_by_hand(p, absorbed=True)),
        (has.order_is_seen, lambda p: (latent(p), tokens(2, 6, 12).double())),
        (has.rope_is_as_published, latent_rotated),
        (has.decoding_is_the_full_pass, latent_decoder(absorbed=False)),
        (has.decoding_is_the_full_pass, latent_decoder(absorbed=True)),
        (has.pads_change_nothing, latent_pads),
        (has.latent_is_cached, latents),
        (has.module_is_called, hook_target),
        (has.full_cache_refuses, lambda p: (p.mla.KVCache,)),
        (has.refusal_changes_nothing, lambda p: refused_append(p.mla.KVCache)),
    ),
    "plain.deepseek_v4": (
        (has.is_compressed, compressed_by_hand(index=())),
        (has.is_compressed, compressed_by_hand(index=(2, 6, 9))),
        (has.future_is_hidden, compressed_alone),
        (has.past_is_seen, compressed_alone),
        (has.decoding_is_the_full_pass, compressed_in_chunks),
        (has.pads_change_nothing, compressed_pads),
    ),
    "layers.mla": (
        (has.yarn_scales_scores, yarn_scale),
        (has.closed_gate_halves, outputs_with_a_closed_gate),
    ),
    "plain.kda": ((has.decay_is_bounded, bounded_decay),),
    "plain.gated_delta": (
        (has.is_gated_delta, gated_delta_by_hand),
        *recurrent_suite("gated_delta"),
    ),
    "plain.lightning": (
        (has.is_lightning, lightning_by_hand),
        *recurrent_suite("lightning"),
    ),
    "plain.dsa": (
        *((has.is_dsa, sparse_by_hand(halves)) for halves in (True, False)),
        (has.decoding_is_the_full_pass, sparse_decoder),
        (has.pads_change_nothing, sparse_pads),
        (has.rope_is_as_published, sparse_rotated),
        (has.caches_are_apart, lambda p: (p.dsa.KVCache,)),
        (has.full_cache_refuses, lambda p: (p.dsa.KVCache,)),
        (has.refusal_changes_nothing, lambda p: refused_append(p.dsa.KVCache)),
    ),
    "plain.flash": (
        (has.equals_torch, lambda p: (repeat_kv(in_tiles(p, 2, 3)),)),
        (has.far_scores, lambda p: (in_tiles(p, 4, 3),)),
        (has.empty_rows_are_zero, lambda p: (in_tiles(p, 2, 3),)),
        *MERGE_SUITE,
    ),
    "plain.merge": MERGE_SUITE,
    "core.flash": (
        (has.gradients_equal_torch, lambda p: (partial(p.flash, tile=(2, 3)),)),
        (has.gradients_are_slopes, dropping),
    ),
}
