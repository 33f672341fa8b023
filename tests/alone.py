"""Tries an installed attnref in an interpreter that has torch alone.

    python -I tests/alone.py [FOLDER ...]

Each folder is put on the path. Distributions other than attnref, torch and what
torch itself needs cannot be imported, also where they are installed.
"""

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import sys
import types
from importlib import metadata

sys.path[:0] = sys.argv[1:]
RUN = doctest.NORMALIZE_WHITESPACE


def needed(name: str) -> set[str]:
    """A distribution and all that it needs, by their normal names."""
    result, left = set(), [name]
    while left:
        name = re.sub("[-_.]+", "-", left.pop()).lower()
        with contextlib.suppress(metadata.PackageNotFoundError):
            needs = metadata.requires(name) or []
            if name not in result:
                result.add(name)
                needs = [n for n in needs if "extra ==" not in n]
                left += [re.match(r"[\w.-]+", need)[0] for need in needs]
    return result


class Blocked:
    """Refuses modules of other distributions."""

    def __init__(self) -> None:
        self.ours = needed("attnref")
        self.homes = {
            module: {re.sub("[-_.]+", "-", d).lower() for d in homes}
            for module, homes in metadata.packages_distributions().items()
        }

    def find_spec(self, name, *_):
        homes = self.homes.get(name.partition(".")[0])
        if homes and not homes & self.ours:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)


def examples_of(module: types.ModuleType) -> int:
    failed, run = doctest.testmod(module, optionflags=RUN)
    assert not failed, module
    return run


def main() -> str:
    sys.meta_path.insert(0, Blocked())
    import attnref

    assert "torch" not in sys.modules
    (entry,) = metadata.entry_points(group="console_scripts", name="attnref")
    printed = io.StringIO()

    def output(*words: str) -> str:
        sys.argv, before = [entry.name, *words], printed.tell()
        with contextlib.redirect_stdout(printed):
            assert entry.load()() == 0
        return printed.getvalue()[before:]

    assert "17,179,869,184" in output("kv", "--model", "llama-3.1-8b")
    text = output("copy", "--full", "gqa")
    assert "torch" not in sys.modules
    # The examples of each module, and so those of each layer; pytest alone
    # imports its plugin.
    run = {
        name: examples_of(importlib.import_module(name))
        for _, name, _ in pkgutil.walk_packages(attnref.__path__, "attnref.")
        if name not in ("attnref.__main__", "attnref.judge.plugin")
    }
    layers = [name for name in run if name.startswith("attnref.layers.")]
    assert len(layers) >= 5 and all(run[name] for name in layers), run
    for name in [name for name in sys.modules if name.startswith("attnref")]:
        sys.modules[name] = None  # the copy does without
    copy = sys.modules["gqa"] = types.ModuleType("gqa")
    exec(compile(text, "gqa.py", "exec"), vars(copy))
    copied = examples_of(copy)
    assert copied
    version = metadata.version("attnref")
    return f"attnref {version}: {sum(run.values())} examples, {copied} copied"


if __name__ == "__main__":
    print(main())
