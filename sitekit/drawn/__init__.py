"""What each page draws and tabulates: one file a page, named like it.

A fence of docs/*/kv-cache.md finds the functions of kv_cache.py by name. A
table's function yields rows of cells, a figure's gives a tensor, a
plot's a `Plot`; each runs once. Machinery stands in sitekit.
"""
