"""Addresses in the metadata of a release: of whoever releases, so no file names
one. `REPOSITORY_URL` is also what the links of the site's pages begin with."""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        metadata["urls"] = {}
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
            }
        if site := os.environ.get("SITE_URL"):
            metadata["urls"]["Documentation"] = site
