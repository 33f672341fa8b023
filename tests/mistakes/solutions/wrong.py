"""Wrong solutions, each with the properties it breaks."""


def sdpa_unmasked(q, k, v, mask=None):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


REFUSED = {"sdpa_unmasked": ("sdpa", {"same", "empty", "future", "pads"})}
