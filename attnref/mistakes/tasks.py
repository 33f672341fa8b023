"""The exercises of `attnref check`: what each asks for. Needs no torch."""

import ast
from typing import NamedTuple

from attnref.mistakes.catalogue import Text
from attnref.numbers.specs import hint


class Task(NamedTuple):
    """What one exercise asks for: `stub` is the code to fill in."""

    title: Text
    about: Text
    stub: str

    @property
    def names(self) -> list[str]:
        """The functions or the class that a solution defines."""
        wanted = (ast.FunctionDef, ast.ClassDef)
        body = ast.parse(self.stub).body
        return [node.name for node in body if isinstance(node, wanted)]

    @property
    def signatures(self) -> list[str]:
        """Each as it is called: `KVCache(max_len)`."""
        found = []
        for node in ast.parse(self.stub).body:
            if isinstance(node, ast.FunctionDef):
                made = node
            elif isinstance(node, ast.ClassDef):
                (made,) = (
                    f
                    for f in node.body
                    if isinstance(f, ast.FunctionDef) and f.name == "__init__"
                )
            else:
                continue
            words = ast.unparse(made.args).removeprefix("self, ")
            found.append(f"{node.name}({words})")
        return found


# What is judged of every exercise but masks, and of those that are trained.
ALWAYS = Text(
    en="""\
Checked with many sizes and with large numbers, in float64 and float32, and in
bfloat16 and float16 unless your code raises an error there. The output has the
dtype of the input. Do not modify the input, and do not call attnref.""",
    zh="""\
判分时会试各种尺寸和很大的数，dtype 是 float64 和 float32；bfloat16 和 float16
可以报错，不报错就要对。输出的 dtype 与输入相同。
不能修改输入，不能调用 attnref。""",
)
TRAINED = Text(
    en="Gradients with respect to x, context, q, k and v are checked too, "
    "unless your\ncode computes with Python numbers (.tolist() and the like).",
    zh="x、context、q、k、v 的梯度也要正确；"
    "\n用 Python 的数（.tolist() 等）来算的除外。",
)
LEARNT = ("softmax", "sdpa", "mha", "mqa", "gqa", "cross", "rope")
MASK = Text(
    en="""\
mask is bool, True = may attend, has 2 or 4 axes and broadcasts to (B, H, T, S):
it may differ from row to row and from head to head. Where a query may attend to
no key of a head, the output of this head is zero.""",
    zh="""\
mask 是布尔张量，True 表示可以看，2 维或 4 维，能广播到 (B, H, T, S)：
批次的各行、各个头的掩码都可以不同。查询在某个头里一个键都看不到时，
这个头的输出为零。""",
)
WEIGHTS = Text(
    en="Weights are laid out as in nn.Linear, (out, in), and there are no "
    "biases.\nThe width of a head is D = E / n_heads.",
    zh="权重与 nn.Linear 的一样，形状 (out, in)，没有偏置；\n头维度 D = E "
    "/ n_heads。",
)
CACHE = Text(
    en="""\
The layer is causal. It returns the output for the tokens of x, and a cache of
any kind; the next call passes this cache and the next tokens: one, several, or
thousands. Over many tokens, the cache must grow by less than twice the floats
that they need, so a buffer may double.""",
    zh="""\
这一层是因果的。返回 x 这些 token 的输出，以及缓存（用什么数据结构随你）；
下一次调用会传入这个缓存和接下来的 token：一个、几个或几千个。
token 很多时，缓存增加的浮点数要少于所需的两倍：缓冲区每次可以翻倍。""",
)
MLA = Text(
    en="""\
w_q (H * (Dn + Dr), E): per head first Dn rows without position, then Dr rows
with RoPE. w_kv_a (R + Dr, E): the latent, then the RoPE key that all heads
share. w_norm (R,): the weight of the RMSNorm of the latent, eps = 1e-6.
w_kv_b (H * (Dn + Dv), R): per head Dn rows of keys, then Dv rows of values.
w_o (E, H * Dv). RoPE is in the interleaved layout: elements 2p and 2p + 1 are a
pair. Scores are divided by sqrt(Dn + Dr).""",
    zh="""\
w_q (H * (Dn + Dr), E)：每个头先是不带位置的 Dn 行，再是做 RoPE 的 Dr 行。
w_kv_a (R + Dr, E)：先是潜在向量，再是所有头共用的 RoPE 键。
w_norm (R,)：潜在向量的 RMSNorm 的权重，eps = 1e-6。
w_kv_b (H * (Dn + Dv), R)：每个头先是键的 Dn 行，再是值的 Dv 行。
w_o (E, H * Dv)。RoPE 用交错排布：第 2p 和 2p + 1 个元素为一对。
分数除以 sqrt(Dn + Dr)。""",
)


def _joined(*texts: Text) -> Text:
    ens, zhs = zip(*texts, strict=True)
    return Text("\n\n".join(ens), "\n\n".join(zhs))


def _def(signature: str) -> str:
    return f"def {signature}:\n    raise NotImplementedError\n"


TASKS = {
    "softmax": Task(
        Text("Softmax", "Softmax"),
        Text(
            en="Weights exp(x_j) / sum(exp(x)) along dim, without overflow, in "
            "the dtype of x.\nA row in which every score is -inf gives zeros.",
            zh="沿 dim 计算权重 exp(x_j) / sum(exp(x))，不能溢出，dtype 与 x "
            "相同。\n整行都是 -inf 时，结果为零。",
        ),
        _def("softmax(x, dim=-1)"),
    ),
    "online_softmax": Task(
        Text("Online softmax", "在线 softmax"),
        Text(
            en="The softmax along the last axis, of a row that is read in "
            "chunks of `chunk`\nscores, with a running maximum and a running "
            "sum. A row of -inf gives zeros.\nChecked: no sum and no maximum "
            "is taken over more than 2 * chunk scores at once.",
            zh="沿最后一维做 softmax，但这一行是分块读入的，每块 chunk "
            "个分数：\n一边读，一边更新最大值与指数和。整行都是 -inf "
            "时，结果为零。\n判分时会看：每次求和、取最大值的分数不超过 "
            "2 * chunk 个。",
        ),
        _def("online_softmax(x, chunk)"),
    ),
    "masks": Task(
        Text("Masks", "掩码"),
        Text(
            en="""\
Bool masks, True = may attend.

causal_mask (T, S): the T queries are the last T of the S positions, and none
sees a key after itself. padding_mask (B, 1, 1, S) from valid (B, S), True = a
real token: no pad is seen. window_mask (T, S): causal, and each query sees
itself and the size - 1 positions before it. document_mask (B, 1, S, S) from ids
(B, S), the number of each token's document: causal, and within a document. The
masks with a batch axis may have any shape that broadcasts to the same.""",
            zh="""\
布尔掩码，True 表示可以看。

causal_mask (T, S)：T 个查询是 S 个位置中的最后 T 个，谁也看不到自己后面的键。
padding_mask (B, 1, 1, S)：由 valid (B, S) 得到，valid 中 True 表示真实 token；
填充位置不可见。
window_mask (T, S)：因果，每个查询只看自己和前面的 size - 1 个位置。
document_mask (B, 1, S, S)：由 ids (B, S) 得到，ids 是各 token 所属文档的编号；
因果，且只看同一文档。带批次的两种可以是别的形状，只要广播后相同。""",
        ),
        "\n\n".join(
            map(
                _def,
                (
                    "causal_mask(T, S)",
                    "padding_mask(valid)",
                    "window_mask(T, S, size)",
                    "document_mask(ids)",
                ),
            )
        ),
    ),
    "sdpa": Task(
        Text("Scaled dot-product attention", "缩放点积注意力（SDPA）"),
        _joined(
            Text(
                en="softmax(q k^T / sqrt(D)) v, from q (B, H, T, D), k (B, H, "
                "S, D) and\nv (B, H, S, Dv): the output is (B, H, T, Dv).",
                zh="softmax(q k^T / sqrt(D)) v：q (B, H, T, D)，"
                "k (B, H, S, D)，"
                "\nv (B, H, S, Dv)，输出 (B, H, T, Dv)。",
            ),
            MASK,
        ),
        _def("sdpa(q, k, v, mask=None)"),
    ),
    "mha": Task(
        Text("Multi-head attention", "多头注意力（MHA）"),
        _joined(
            Text(
                en="Self-attention of x (B, T, E): each of n_heads heads has "
                "its own queries, keys\nand values. All weights are (E, E). "
                "Without a mask, every token sees all.",
                zh="x (B, T, E) 的自注意力：n_heads 个头各有自己的查询、键、"
                "值。权重都是 (E, E)。\n没有掩码时，每个 token 都能看到所有 "
                "token。",
            ),
            WEIGHTS,
            MASK,
        ),
        _def("mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None)"),
    ),
    "mha_cached": Task(
        Text("Multi-head attention with a cache", "带 KV 缓存的多头注意力"),
        _joined(
            Text(
                en="Self-attention of x (B, T, E) and of all tokens before it, "
                "without RoPE.\nAll weights are (E, E).",
                zh="x (B, T, E) 对自己和之前所有 token 的自注意力，不用 RoPE。"
                "权重都是 (E, E)。",
            ),
            WEIGHTS,
            CACHE,
        ),
        _def("mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None)"),
    ),
    "mqa": Task(
        Text("Multi-query attention", "多查询注意力（MQA）"),
        _joined(
            Text(
                en="Self-attention of x (B, T, E): n_heads query heads share "
                "one key and one value\nhead. w_q and w_o are (E, E), w_k and "
                "w_v (D, E).",
                zh="x (B, T, E) 的自注意力：n_heads 个查询头共用一个键头和一个"
                "值头。\nw_q、w_o 是 (E, E)，w_k、w_v 是 (D, E)。",
            ),
            WEIGHTS,
            MASK,
        ),
        _def("mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None)"),
    ),
    "gqa": Task(
        Text("Grouped-query attention", "分组查询注意力（GQA）"),
        _joined(
            Text(
                en="Self-attention of x (B, T, E): query head h reads "
                "key/value head\nh // (n_heads // n_kv_heads). w_q and w_o are "
                "(E, E), w_k and w_v\n(n_kv_heads * D, E).",
                zh="x (B, T, E) 的自注意力：查询头 h 读键值头 "
                "h // (n_heads // n_kv_heads)。\nw_q、w_o 是 (E, E)，w_k、w_v "
                "是 (n_kv_heads * D, E)。",
            ),
            WEIGHTS,
            MASK,
        ),
        _def("gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None)"),
    ),
    "llama": Task(
        Text(
            "GQA with RoPE and a cache, as in Llama",
            "带 RoPE 和缓存的 GQA（Llama 的注意力）",
        ),
        _joined(
            Text(
                en="Like the exercise gqa, with queries and keys rotated as in "
                "the exercise rope:\nthe tokens of a row have the positions "
                "0, 1, 2, ..., continued across calls.",
                zh="与练习 gqa 相同，查询和键再按练习 rope 旋转：\n每一行 "
                "token 的位置是 0、1、2……，跨调用连续计数。",
            ),
            WEIGHTS,
            CACHE,
        ),
        _def(
            "llama(\n    x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads,\n"
            "    theta=10000.0, cache=None,\n)"
        ),
    ),
    "cross": Task(
        Text("Cross-attention", "交叉注意力"),
        _joined(
            Text(
                en="Queries from x (B, T, E), keys and values from context "
                "(B, S, C). w_q and w_o\nare (E, E), w_k and w_v (E, C).",
                zh="查询来自 x (B, T, E)，键和值来自 context (B, S, C)。\n"
                "w_q、w_o 是 (E, E)，w_k、w_v 是 (E, C)。",
            ),
            WEIGHTS,
            MASK,
        ),
        _def("cross(x, context, w_q, w_k, w_v, w_o, n_heads, mask=None)"),
    ),
    "rope": Task(
        Text("Rotary position embedding", "旋转位置编码（RoPE）"),
        Text(
            en="Rotates x (B, H, T, D) by positions (T,), integers. At "
            "position i, elements p\nand p + D / 2 are a pair (the layout of "
            "Llama in transformers) and turn by the\nangle "
            "i * theta ** (-2 p / D). Positions come in any order, and may be "
            "large.",
            zh="按 positions (T,)（整数）旋转 x (B, H, T, D)。第 p 个和第 "
            "p + D / 2 个元素\n是一对（transformers 里 Llama 的排布），在位置 "
            "i 旋转的角度是\ni * theta ** (-2 p / D)。位置的次序任意，"
            "也可能很大。",
        ),
        _def("rope(x, positions, theta=10000.0)"),
    ),
    "kv_cache": Task(
        Text("KV cache", "KV 缓存"),
        Text(
            en="append stores k and v, each (B, K, T, D), and returns all "
            "keys and all values so\nfar. length is the number of "
            "stored tokens. An append beyond max_len raises\nan error and "
            "changes nothing.",
            zh="append 存入 k 和 v（都是 (B, K, T, D)），返回到目前为止的全部"
            "键和全部值。\nlength 是已存的 token 数。超过 max_len 的 append 要"
            "抛出异常，并且什么都不改变。",
        ),
        """\
class KVCache:
    def __init__(self, max_len):
        self.length = 0
        raise NotImplementedError

    def append(self, k, v):
        raise NotImplementedError
""",
    ),
    "mla_latent": Task(
        Text("MLA that caches the latent", "缓存潜在向量的 MLA"),
        _joined(
            Text(
                en="Multi-head latent attention of DeepSeek-V2 without "
                "compressed queries. The cache\nholds R + Dr elements per "
                "token: the latent after its RMSNorm, and the rotated\nRoPE "
                "key.",
                zh="DeepSeek-V2 的多头潜在注意力，查询不压缩。缓存里每个 "
                "token 存 R + Dr 个元素：\n过了 RMSNorm 的潜在向量，以及旋转过"
                "的 RoPE 键。",
            ),
            MLA,
            CACHE,
        ),
        _def(
            "mla_latent(\n    x, w_q, w_kv_a, w_norm, w_kv_b, w_o, n_heads,\n"
            "    theta=10000.0, cache=None,\n)"
        ),
    ),
    "mla_absorbed": Task(
        Text("MLA with absorbed weights", "吸收形式的 MLA"),
        _joined(
            Text(
                en="Like mla_latent, but attention runs on the latents "
                "themselves: W^UK is applied\nto the queries and W^UV to the "
                "weighted sum of latents, so that no cached key\nor value is "
                "expanded again. Checked: one token after 127 takes less than "
                "half\nthe FLOPs of expanding all keys and values.",
                zh="与 mla_latent 相同，但直接对潜在向量做注意力：W^UK 乘到"
                "查询上，W^UV 乘到\n潜在向量的加权和上，缓存里的键和值"
                "不再展开。\n判分时会看：读完 127 个 token 再算一个，FLOPs "
                "要少于全部展开时的一半。",
            ),
            MLA,
            CACHE,
        ),
        _def(
            "mla_absorbed(\n    x, w_q, w_kv_a, w_norm, w_kv_b, w_o, n_heads,\n"
            "    theta=10000.0, cache=None,\n)"
        ),
    ),
    "mha_to_gqa": Task(
        Text("Weights of MHA converted to GQA", "把 MHA 的权重转成 GQA"),
        Text(
            en="The weights w_k and w_v (n_heads * D, E) of MHA, mean-pooled "
            "over the heads of\neach group: two weights (n_kv_heads * D, E).",
            zh="把 MHA 的 w_k、w_v (n_heads * D, E) 按组取各头的平均，"
            "\n得到两个 (n_kv_heads * D, E) 的权重。",
        ),
        _def("mha_to_gqa(w_k, w_v, n_heads, n_kv_heads)"),
    ),
    "flash": Task(
        Text("FlashAttention, forward", "FlashAttention 前向"),
        _joined(
            Text(
                en="The output of the exercise sdpa, computed in tiles of "
                "tile[0] queries by tile[1]\nkeys, and the log-sum-exp of the "
                "scaled scores of each query, (B, H, T): -inf\nif it sees no "
                "key, in the dtype of q or in float32. Returns out, lse.\n"
                "Checked: with many tiles, no float tensor has more "
                "than an eighth as many\nelements as there are scores.",
                zh="输出与练习 sdpa 相同，但要分块计算，每块 tile[0] 个查询、"
                "tile[1] 个键；\n还有每个查询的分数（缩放之后）的 "
                "log-sum-exp，形状 (B, H, T)，一个键都看不到时\n为 "
                "-inf，dtype 与 q 相同或为 float32。返回 out, lse。\n"
                "判分时会看：块很多时，浮点张量都不超过全部分数的八分之一。",
            ),
            MASK,
        ),
        _def("flash(q, k, v, mask=None, tile=(2, 4))"),
    ),
    "merge": Task(
        Text("Merging attention over parts", "合并各部分的注意力"),
        Text(
            en="Output and log-sum-exp over all keys, from those over parts of "
            "the keys: lists\nof outputs (B, H, T, D) and of log-sum-exps "
            "(B, H, T). A part in which a query\nsees no key has the "
            "log-sum-exp -inf. If all parts do, the result is zeros\nand "
            "-inf. Returns out, lse.",
            zh="键分成几部分，由各部分的输出 (B, H, T, D) 和 log-sum-exp "
            "(B, H, T)（两个列表）\n合并出对全部键的输出和 log-sum-exp。"
            "查询在某部分里一个键都看不到时，\n这部分的 log-sum-exp 是 -inf；"
            "若各部分都如此，结果为零和 -inf。返回 out, lse。",
        ),
        _def("merge(outs, lses)"),
    ),
}


def task(word: str) -> str:
    """The name of an exercise, from how people write it: `Online-Softmax`."""
    name = word.strip().lower().replace("-", "_").removesuffix(".py")
    if name not in TASKS:
        meant = hint(name, {name: name for name in TASKS})
        raise ValueError(
            f"there is no exercise {word!r}{meant or '; --list prints all'}"
        )
    return name


def stub(name: str, language: str) -> str:
    """The file to fill in."""
    asked = TASKS[name]
    texts = [asked.title, asked.about]
    texts += [TRAINED] * (name in LEARNT) + [ALWAYS] * (name != "masks")
    about = getattr(_joined(*texts), language)
    return (
        f'"""{about}\n\n    attnref check {name} FILE\n"""\n\n'
        f"import torch\n\n\n{asked.stub}"
    )
