"""Prefixes in a radix tree, as SGLang finds them. Needs no package."""


def shared(a, b):
    """How many tokens two texts have in common at their start."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


class Node:  # an edge: some tokens, the slot of each, and what follows them
    def __init__(self, tokens=(), slots=()):
        self.tokens, self.slots, self.children = tokens, slots, {}

    def find(self, tokens):
        """The slots of the longest start of `tokens` that is stored."""
        child = self.children.get(tokens[0]) if tokens else None
        if child is None:
            return []
        n = shared(child.tokens, tokens)
        end = n == len(child.tokens)
        return [*child.slots[:n], *(child.find(tokens[n:]) if end else [])]

    def insert(self, tokens, slots):
        """Note in which slot each of `tokens` is. What is known stays."""
        if not tokens:
            return
        child = self.children.setdefault(tokens[0], Node(tokens, slots))
        n = shared(child.tokens, tokens)
        if n < len(child.tokens):  # texts part within an edge: split it
            rest = Node(child.tokens[n:], child.slots[n:])
            rest.children = child.children
            child.tokens, child.slots = child.tokens[:n], child.slots[:n]
            child.children = {rest.tokens[0]: rest}
        child.insert(tokens[n:], slots[n:])
