"""python -m sitekit synced [PAGE ...] | new layer|cache|page NAME | offline"""

import os
import shutil
import subprocess
import sys
import tempfile

import torch

from sitekit import ROOT, new
from sitekit.markdown import pages, parity


def offline() -> str:
    """Write the whole site as a zip that is read from file://."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    env = os.environ | {"OFFLINE": "true", "SITE_URL": ""}
    with tempfile.TemporaryDirectory() as folder:
        place = ["-d", f"{folder}/attnref"]
        subprocess.run([*build, *place], cwd=ROOT, env=env, check=True)
        target = ROOT / "dist" / "attnref-site"
        target.parent.mkdir(exist_ok=True)
        shutil.make_archive(str(target), "zip", folder)
    return "dist/attnref-site.zip: unpack it, open attnref/index.html"


def main(arguments: list[str]) -> str:
    match arguments:
        case ["synced"]:
            stems = map(pages.stem_of, pages.markdown_files("en"))
            problems = [line for stem in stems for line in parity.check(stem)]
            return "\n".join(problems) or "all pages are in line"
        case ["synced", *names]:
            stems = map(parity.whole_stem, names)
            lines = [f"{stem}: {parity.mark_synced(stem)}" for stem in stems]
            return "\n".join(lines)
        case ["new", *words]:
            return new.main(words)
        case ["offline"]:
            return offline()
    raise ValueError(f"usage: {__doc__}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors of figures are small
    try:
        print(main(sys.argv[1:]))
    except (ValueError, FileNotFoundError) as error:
        sys.exit(str(error))
