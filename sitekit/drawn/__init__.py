"""What each page draws and tabulates: one file a page, named like it.

A fence of docs/*/kv-cache.md finds the functions of kv_cache.py by name. A
table's function gives rows of cells, a figure's a tensor or a `Flow`, a plot's
a `Plot`; one that takes long is cached. Machinery stands in sitekit.
"""
