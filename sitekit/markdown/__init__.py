"""What pages are written in: fences, includes, marks, both languages."""
