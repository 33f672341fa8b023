"""pytest with the plugin of `attnref`, in a process of its own."""

import os
import subprocess
import sys

from sitekit import ROOT


def run_pytest(folder, adapter, *words, locale="C"):
    """The exit code of `pytest --attnref ADAPTER`, and what it prints."""
    options = "-q -p no:attnref -p attnref.judge.plugin -p no:xdist -rs"
    options += f" -c {os.devnull} --rootdir . --attnref"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), adapter, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": locale},
        capture_output=True,
        encoding="utf-8",
    )
    return ran.returncode, ran.stdout
