"""Copied files, run by an interpreter that cannot import the package."""

import subprocess
import sys

ALONE = """
import doctest, importlib.util, json, pathlib, sys

class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("attnref", "sitekit", "tests"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
tried = {}
for path in map(pathlib.Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    flags = doctest.NORMALIZE_WHITESPACE
    failed, run = doctest.testmod(module, optionflags=flags)
    assert not failed, path
    tried[path.stem] = run
print(json.dumps(tried))
"""


def in_a_fresh_interpreter(folder, code, *arguments):
    process = subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout
