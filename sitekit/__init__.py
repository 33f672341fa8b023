"""What the site needs to be built. Imports attnref, never the reverse."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = {"en": ROOT / "mkdocs.yml", "zh": ROOT / "mkdocs.zh.yml"}
